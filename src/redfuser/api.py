"""The public functions: fuse, analyze, explain, assert_fused."""

from __future__ import annotations

import copy
import functools
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from redfuser import settings
from redfuser.analysis import Analysis
from redfuser.errors import NotFusedError
from redfuser.settings import Options


class Fused:
    """A fused function, method or module: called like the original, on CPU or CUDA tensors of any length.

    It compiles on the first call and again for a new rank or dtype; a changed length compiles once more at most.
    Picklable and deep-copyable; the copy compiles anew. Meta tensors give meta outputs without a launch.
    Under forward-mode differentiation it runs as it is written.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self.fn = fn
        self.options = options
        self._compiled: _Compiled | None = None
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self.options.enabled or forward_ad._current_level >= 0:
            return self.fn(*args, **kwargs)
        compiled = self._compiled
        if compiled is None:
            compiled = self._compiled = _Compiled(self.fn, self.options)
        try:
            return compiled.run(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as e:
            if self.options.strict and isinstance(e, torch._dynamo.exc.BackendCompilerFailed):
                raise
            failure = e
        # Dynamo wraps errors in its own: the user's mistakes are raised by the function itself, outside the handler.
        result = self.fn(*args, **kwargs)
        warnings.warn(f"redfuser: {_name(self.fn)} runs as it is written: {_first_line(failure)}", stacklevel=2)
        return result

    def __getattr__(self, name: str) -> Any:
        """What a module has besides being called: ``parameters``, ``eval``, ``state_dict`` and the rest."""
        if name.startswith("__") or name in ("fn", "options"):
            raise AttributeError(name)
        return getattr(self.fn, name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def analyze(self, *args: Any, **kwargs: Any) -> Analysis:
        """As :func:`redfuser.analyze`, with this function's options."""
        return analyze(self, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """As :func:`redfuser.explain`, with this function's options."""
        return explain(self, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {"fn": self.fn, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["fn"], state["options"])  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> Fused:
        return Fused(copy.deepcopy(self.fn, memo), self.options)

    def __repr__(self) -> str:
        return f"redfuser.fuse({_name(self.fn)})"


def fuse(fn: Callable[..., Any] | None = None, *, options: Options | None = None, **overrides: Any) -> Any:
    """A function, method or module with its cascades fused. A decorator too, with or without options.

    Args:
        fn: any callable that ``torch.compile`` accepts; arguments may be pytrees.
        options: settings; the ones in force where ``fuse`` is called if not given.
        overrides: single settings, such as ``strategy="single"``.

    Returns:
        A :class:`Fused`; with ``fn=None`` a decorator.

    Raises:
        UnknownOptionError: for an option or value that does not exist.

    >>> @fuse(rest="eager")
    ... def mean_entropy(x):
    ...     p = x.softmax(-1)
    ...     return -(p * p.log()).sum(-1).mean()
    >>> mean_entropy(torch.zeros(2, 8)).exp().round().item()
    8.0
    """
    chosen = (options or settings.current()).replace(**overrides)
    if fn is None:
        return lambda f: fuse(f, options=chosen)
    if not callable(fn):
        raise TypeError(f"fuse takes a function, a method or a module, not {type(fn).__name__}.")
    return Fused(fn, chosen)


def analyze(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Analysis:
    """The cascades of one call: which reductions, how each is treated, how many passes, and what was refused.

    No kernel is built and no data is read: fake or meta tensors are enough, unless the function branches on data. A
    graph break gives several graphs and a refusal.

    >>> a = analyze(lambda x: x.softmax(-1), torch.zeros(4, 128))
    >>> a.cascades[0].passes, [r.reducer == "sum" for r in a.cascades[0].reductions]
    (1, [False, True])
    """
    from redfuser.frontend.capture import capture
    from redfuser.pipeline import analyse

    target, options = (fn.fn, fn.options) if isinstance(fn, Fused) else (fn, settings.current())
    return analyse(capture(target, args, kwargs), _name(target), options, _parameters(target))


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """The analysis as something to read: ``str()`` for a terminal, ``to_dict()`` for JSON, ``source`` for the kernels."""
    return Explanation(analyze(fn, *args, **kwargs))


class Explanation:
    """An :class:`Analysis` with its renderings."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    def __str__(self) -> str:
        from redfuser.report.text import render

        return render(self.analysis)

    __repr__ = __str__

    @property
    def source(self) -> str:
        """One complete file: the kernels, their launch and a check against eager.

        It needs torch, and triton or a C++ compiler. It is printed for ``target``, present or not; the reference backend
        runs tile programs with PyTorch's operations and prints none, so that the text is empty.
        """
        return self.analysis.source

    def to_dict(self) -> dict[str, Any]:
        """The same content as JSON types, in the same order."""
        from redfuser.report.data import to_dict

        return to_dict(self.analysis)


def assert_fused(fn: Callable[..., Any], *args: Any, passes: int = 1, **kwargs: Any) -> Analysis:
    """For tests: raises NotFusedError unless there is a cascade and each needs at most ``passes`` loops.

    It asks what is proved, not what runs: a small cascade may be left unfused by its cost all the same.

    >>> assert_fused(lambda x: x.var(-1), torch.zeros(4, 128)).cascades[0].passes
    1
    """
    analysis = analyze(fn, *args, **kwargs)
    if not analysis.cascades:
        refused = "\n".join(str(r) for r in analysis.refusals)
        none = "it has no two reductions over one axis of which the second uses the first, and none that streams a large product"
        raise NotFusedError(f"{analysis.function} has no cascade: {refused or none}.")
    worst = [c for c in analysis.cascades if c.passes > passes]
    if worst:
        lines = [f"{c.name} needs {c.passes} passes" for c in worst]
        lines += [str(r) for c in worst for r in c.refusals]
        raise NotFusedError(f"{analysis.function}: " + "\n".join(lines))
    return analysis


class _Compiled:
    """One compilation of a function: Dynamo with our backend and a limit of its own."""

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        from redfuser.pipeline import dynamo_backend

        self.variants = 0
        inner = dynamo_backend(options)

        def backend(graph: Any, example_inputs: list[Any]) -> Any:
            self.variants += 1
            if self.variants == options.recompile_limit:
                warnings.warn(
                    f"redfuser: {_name(fn)} was compiled {self.variants} times, the limit; further variants run as they "
                    "are written. Raise recompile_limit, or give the changing lengths one rank and dtype.",
                    stacklevel=2,
                )
            return inner(graph, example_inputs)

        self.run = _compile(fn, backend, options.recompile_limit)


def _compile(fn: Callable[..., Any], backend: Callable[..., Any], limit: int) -> Callable[..., Any]:
    """As ``torch.compile`` does it, with settings of Dynamo around each compilation: around each call they cost 20 µs.

    Besides the limit, a mark for PyTorch's profiler is left out that compiled code would set at every call.
    """
    settings: dict[str, Any] = {"recompile_limit": limit}
    if hasattr(torch._dynamo.config, "record_runtime_overhead"):
        settings["record_runtime_overhead"] = False
    context: Any = torch._dynamo.optimize(backend=backend)
    compile_frame = context.callback

    @functools.wraps(compile_frame)
    def with_settings(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(settings):
            return compile_frame(*args, **kwargs)

    context.callback = with_settings
    run: Callable[..., Any] = context(fn)
    return run


def _first_line(e: Exception) -> str:
    return next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)


def _parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)
