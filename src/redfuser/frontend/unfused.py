"""The code that a region replaces, as fast as PyTorch has it: on a GPU by Inductor, where its lengths are fixed and the
option ``rest`` does not say otherwise."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.fx as fx

log = logging.getLogger("redfuser")


class Unfused:
    """Calls the sub-graph; ``compiled`` the first time that it is called."""

    def __init__(self, module: fx.GraphModule, compiled: bool) -> None:
        self._module = module
        self._run: Callable[..., Any] = self._first if compiled else module
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[torch.Tensor], ints: Sequence[int]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(self._run(*inputs, *ints))

    def _first(self, *inputs: Any) -> Any:
        with self._lock:
            if self._run == self._first:
                self._run = self._compiled(inputs)
        return self._run(*inputs)

    def _compiled(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._guards import tracing
        from torch._inductor.compile_fx import compile_fx
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            # apart from the compilation that may be under way, whose symbols would come in
            with tracing(None):
                mode = FakeTensorMode()
                fakes = [mode.from_tensor(x) for x in inputs]
                return cast(Callable[..., Any], compile_fx(copy.deepcopy(self._module), fakes))
        except Exception:
            log.info("Inductor does not compile the unfused code of a region: it runs eagerly", exc_info=True)
            return self._module
