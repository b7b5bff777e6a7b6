"""The Dynamo backend: rewrite before autograd, then hand the rest over.

Whatever goes wrong on our side, the graph runs as it came. A user's function never fails because of a fusion.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
import torch.fx as fx

from redfuser.frontend.direct import direct
from redfuser.frontend.functional import NotFunctional, functional, lookup
from redfuser.frontend.kinds import is_size, is_view
from redfuser.frontend.lower import Lowered, TooDeep, lower
from redfuser.frontend.partition import Cut, extract
from redfuser.frontend.region_op import Kernel
from redfuser.frontend.splice import splice
from redfuser.frontend.values import Mistaken

log = logging.getLogger("redfuser")

Factory = Callable[[Cut], Kernel | None]
Choice = tuple[frozenset[str], frozenset[str], Factory]
Choose = Callable[[Lowered], Sequence[Choice]]
Compiled = Callable[..., Any]
Rest = Literal["inductor", "eager"]


def make_backend(
    choose: Choose, rest: Rest = "inductor", strict: bool = False
) -> Callable[[fx.GraphModule, list[Any]], Compiled]:
    """A backend for ``torch.compile``. What goes wrong on our side is raised when ``strict``, else logged.

    ``choose`` looks at a lowered graph and names what to fuse: members of each cascade, what is computed beside them, and
    a factory that makes the kernel for the cut around them, or None to leave it. ``rest`` compiles what is not fused,
    and a cascade at the lengths at which its kernel leaves it.
    """

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        if _is_meta(example_inputs):
            return gm.forward  # shapes alone: nothing is launched
        try:
            fused = rewrite(gm, example_inputs, choose, rest)
        except Mistaken:
            return gm.forward  # a compiler might compute something where eager raises
        except Exception:
            if strict:
                raise
            log.warning("a graph is left as it is: fusing it failed", exc_info=True)
            fused = None
        if fused is None:
            return hand_over(gm, example_inputs, rest)
        try:
            if _only_regions(fused) and not _records_gradients(fused, example_inputs):
                return _as_traced(fused, direct(fused).forward)
            with torch._C._DisableAutocast() if fused.meta["autocast"] else contextlib.nullcontext():
                return _as_traced(fused, hand_over(fused, example_inputs, rest))
        except Exception:
            if strict:
                raise
            log.warning("a graph is left as it is: compiling around the fused regions failed", exc_info=True)
            return hand_over(gm, example_inputs, rest)

    return backend


def rewrite(
    gm: fx.GraphModule, example_inputs: Sequence[Any], choose: Choose, rest: Rest = "inductor"
) -> fx.GraphModule | None:
    """The functional graph with fused regions in it; None when nothing is fused. ``gm`` itself is not changed."""
    if any(_switches_gradients(n) for n in gm.graph.nodes):
        if _records_gradients(gm, example_inputs):
            # recomputing a region under autograd would differentiate what the user excluded
            log.info("a graph that switches gradients on or off inside is not fused while gradients are recorded")
            return None
        gm = _without_switches(gm)
    try:
        graph = functional(gm, example_inputs)
    except NotFunctional as why:
        log.info("a graph is left as it is: %s", why)
        return None
    try:
        lowered = lower(graph)
    except TooDeep as why:
        log.info("a graph is left as it is: %s", why)
        return None
    if lowered.mistaken:
        raise Mistaken("an operation that PyTorch refuses")
    done = 0
    for members, beside, factory in choose(lowered):
        cut = extract(lowered, members, beside, inductor=rest == "inductor")
        kernel = None if cut is None else factory(cut)
        if cut is not None and kernel is not None:
            splice(graph, cut, kernel)
            done += 1
    if not done:
        return None
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _as_traced(gm: fx.GraphModule, compiled: Compiled) -> Compiled:
    """The casts of autocast are in the graph; applying autocast again would change what the user excluded from it."""
    if not gm.meta["autocast"]:
        return compiled

    def run(*args: Any) -> Any:
        with torch._C._DisableAutocast():
            return compiled(*args)

    return run


def hand_over(gm: fx.GraphModule, example_inputs: Sequence[Any], rest: Rest) -> Compiled:
    """Compiles a graph without fusing anything of ours."""
    if rest == "eager":
        return gm.forward
    if not has_compiler():
        from torch._dynamo.backends.debugging import aot_eager

        compiled: Compiled = aot_eager(gm, list(example_inputs))
        return compiled
    from torch._inductor.compile_fx import compile_fx

    fast: Any = compile_fx(gm, list(example_inputs))
    return cast(Compiled, fast)


@functools.cache
def has_compiler() -> bool:
    """Whether Inductor has a C++ compiler. Says so, once, when it has none."""
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except InvalidCxxCompiler:
        warnings.warn(
            "redfuser: no C++ compiler was found, so what is not fused runs through aot_eager; "
            "install g++ or clang, or set CXX, to compile it",
            stacklevel=2,
        )
        return False
    return True


def _switches_gradients(n: fx.Node) -> bool:
    return n.op == "call_function" and n.target in (
        torch._C._set_grad_enabled,
        torch.autograd.grad_mode._enter_inference_mode,
        torch.autograd.grad_mode._exit_inference_mode,
    )


def _without_switches(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph for a call in which nothing needs a gradient: switching them on or off then means nothing."""
    out = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    out.meta = gm.meta
    for n in reversed(out.graph.nodes):
        if _switches_gradients(n) and not n.users:
            out.graph.erase_node(n)
    out.recompile()
    return out


def _only_regions(gm: fx.GraphModule) -> bool:
    """Nothing is left but regions and views of what they take and give."""
    return all(
        n.op != "call_function"
        or n.target in (torch.ops.redfuser.region.default, operator.getitem)
        or is_view(n)
        or is_size(n)
        for n in gm.graph.nodes
    )


def _is_meta(inputs: Sequence[Any]) -> bool:
    return any(isinstance(x, torch.Tensor) and x.device.type == "meta" for x in inputs)


def _records_gradients(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    held = [lookup(gm, n.target) for n in gm.graph.nodes if n.op == "get_attr"]
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in [*inputs, *held])
