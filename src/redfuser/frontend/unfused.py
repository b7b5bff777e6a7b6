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
        self._lean = False
        self._lock = threading.Lock()

    def __call__(self, inputs: Sequence[torch.Tensor], ints: Sequence[int]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(self._run(*inputs, *ints))

    def lean(self, inputs: Sequence[torch.Tensor]) -> bool:
        """True where Inductor calls a fused attention kernel for it, so that no scores are written. Nothing is run."""
        from torch._functorch import config as functorch
        from torch._inductor import config as inductor

        with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):  # a hit tells nothing
            self._compile(inputs)
        return self._lean

    def _first(self, *inputs: Any) -> Any:
        self._compile(inputs)
        return self._run(*inputs)

    def _compile(self, inputs: Sequence[Any]) -> None:
        from torch._dynamo.utils import counters

        with self._lock:
            if self._run == self._first:
                before = counters["inductor"]["fuse_attention"]
                self._run = self._compiled(inputs)
                matched = counters["inductor"]["fuse_attention"] > before
                self._lean = matched and self._run is not self._module

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
