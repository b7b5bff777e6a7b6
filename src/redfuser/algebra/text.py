"""What the user reads about a stage: update, merge and state, in the stages' names.

    Z <- Z' * exp(m' - m) + sum(exp(s - m))    # 0 stands for m while m is -inf

A primed value is the one before this tile; ``.a`` and ``.b`` are two partial states. A base that only guards a result
is shown as that result; guards are comments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from redfuser.algebra.nodes import Accumulator, Base, Pass, Stage, StageReport, Step
from redfuser.algebra.state import Notes
from redfuser.index.expr import (
    Apply,
    Cast,
    Const,
    DType,
    Expr,
    Fn,
    Load,
    Ref,
    children,
    const,
    loads,
    ref,
    transform,
    walk,
)
from redfuser.index.nodes import Reducer
from redfuser.index.print import show

_COMBINE = {Reducer.SUM: "+", Reducer.PROD: "*", Reducer.ANY: "|", Reducer.ALL: "&"}


def update_of(a: Accumulator) -> str:
    """The exact step, guards and bases as they are: ``Z <- where(m' == -inf, Z', ...) + sum(...)``."""
    kept = f"{a.name}'" if a.correction is None else show(a.correction)
    return _statement(a, kept, f"{a.reducer}({show(a.element)})")


def _statement(a: Accumulator, left: str, right: str) -> str:
    sign = _COMBINE.get(a.reducer)
    return f"{a.name} <- {left} {sign} {right}" if sign else f"{a.name} <- {a.reducer}({left}, {right})"


# -- guards -----------------------------------------------------------------------------------------------------------
def _infinite(test: Expr) -> Expr | None:
    """v where the test is ``abs(v) == inf``."""
    if isinstance(test, Apply) and test.fn is Fn.EQ and isinstance(test.args[0], Apply) and test.args[0].fn is Fn.ABS:
        b = test.args[1]
        return test.args[0].args[0] if isinstance(b, Const) and b.value == float("inf") else None
    return None


def _unguarded(e: Expr) -> tuple[Expr, tuple[Expr, Expr] | None]:
    """A base without its guard, and the guard as (test, what stands in)."""
    if not (isinstance(e, Apply) and e.fn is Fn.WHERE and isinstance(e.args[1], Const)):
        return e, None
    test, stand_in, value = e.args
    if isinstance(value, Apply) and value.fn is Fn.WHERE and _infinite(value.args[0]) is not None:
        value = value.args[2]  # fixes rows that are infinite anyway
    if isinstance(value, Apply) and value.fn is Fn.WHERE and value.args[0] is test:
        value = value.args[2]  # the program has the same guard
    return value, (test, stand_in)


@dataclass(slots=True)
class _Shown:
    """How the values of a pass are shown: bases that are results under a guard have the results' names."""

    aliases: Mapping[str, Ref]
    guards: Mapping[str, str]  # base -> what stands in for it, and when
    short: frozenset[str]  # sources shown without their indices
    moves: Mapping[str, str]  # base -> the name of how far it moved, where that is needed more than once
    side: str = "'"  # what marks an old value
    seen: dict[str, None] = field(default_factory=dict)  # aliased bases that a line showed

    def __call__(self, e: Expr) -> str:
        return show(transform(e, self._leaf))

    def _leaf(self, x: Expr) -> Expr | None:
        match x:
            case Apply(fn=Fn.SUB, args=(Ref() as new, Ref() as before)) if _moves(new, before) in self.moves:
                side = self.side if self.side != "'" else ""
                return Ref(self.moves[new.name] + side, new.dtype, False, new.part)
            case Apply(fn=Fn.MUL, args=(a, b)) if a is b:
                return Apply(Fn.POW, (transform(a, self._leaf), const(2, DType.INT64)), x.dtype)
            case Ref() if x.name in self.aliases:
                self.seen[x.name] = None
                return self._marked(self.aliases[x.name].name, x)
            case Ref():
                return self._marked(x.name, x)
            case Load() if x.source in self.short:
                return Load(x.source, (), x.dtype, x.part)
            case Cast() if isinstance(x.arg, Ref) and not x.arg.dtype.is_float:
                return self._leaf(x.arg)
            case Const(value=float(v)) if v.is_integer() and abs(v) < 1e6:
                return const(int(v), DType.INT64)
            case _:
                return None

    def _marked(self, name: str, x: Ref) -> Expr:
        return Ref(name + (self.side if x.old else ""), x.dtype, False, x.part)

    def when(self, test: Expr) -> str:
        """``m' is -inf``, ``Z is 0 or infinite``."""
        found: dict[str, list[str]] = {}
        for t in _alternatives(test):
            v = _infinite(t)
            if v is not None:
                found.setdefault(self(v), []).append("infinite")
            elif isinstance(t, Apply) and t.fn is Fn.EQ:
                found.setdefault(self(t.args[0]), []).append(self(t.args[1]))
            else:
                found.setdefault(self(t), []).append("true")
        return " or ".join(f"{v} is {' or '.join(values)}" for v, values in found.items())


def _moves(new: Ref, before: Ref) -> str | None:
    """The base whose way since the last tile the difference is."""
    return new.name if new.name == before.name and before.old and not new.old else None


def _count_moves(e: Expr, found: dict[str, int]) -> None:
    if isinstance(e, Apply) and e.fn is Fn.SUB and isinstance(e.args[0], Ref) and isinstance(e.args[1], Ref):
        name = _moves(e.args[0], e.args[1])
        if name is not None:
            found[name] = found.get(name, 0) + 1
    for a in children(e):
        _count_moves(a, found)


def _alternatives(test: Expr) -> list[Expr]:
    if isinstance(test, Apply) and test.fn is Fn.OR:
        return [t for a in test.args for t in _alternatives(a)]
    return [test]


def _shown(done: Pass, steps: Sequence[Step]) -> _Shown:
    aliases: dict[str, Ref] = {}
    guards: dict[str, str] = {}
    plain = _Shown({}, {}, frozenset(), {})
    for s in done.steps:
        if isinstance(s, Base):
            value, guard = _unguarded(s.value)
            if isinstance(value, Ref) and not value.old:
                aliases[s.name] = value
                if guard is not None:
                    guards[s.name] = f"{plain(guard[1])} stands for {value.name} while {plain.when(guard[0])}"
    found: dict[str, set[Load]] = {}
    for s in steps:
        for x in loads(s.element if isinstance(s, Accumulator) else s.value):
            found.setdefault(x.source, set()).add(x)
    names = {s.name for s in done.steps}
    counts: dict[str, int] = {}
    for s in steps:
        if isinstance(s, Accumulator) and s.correction is not None:
            _count_moves(s.correction, counts)
    often = [b for b, n in counts.items() if n > 1]
    letters = ["d"] if len(often) == 1 else [f"d{i + 1}" for i in range(len(often))]
    free = not {*names, *found} & set(letters)
    moves = {b: letter if free else f"d_{b}" for b, letter in zip(often, letters, strict=True)}
    short = frozenset(n for n, xs in found.items() if len({x.index for x in xs}) == 1 and n not in names)
    return _Shown(aliases, guards, short, moves)


# -- lines ------------------------------------------------------------------------------------------------------------
def _line(text: str, comments: Iterable[str]) -> str:
    told = "; ".join(dict.fromkeys(c for c in comments if c))
    return f"{text}    # {told}" if told else text


def _base(s: Base, shown: _Shown) -> str:
    value, guard = _unguarded(s.value)
    text = shown(value)
    told = ""
    if guard is not None:
        when = shown.when(guard[0])
        told = f"{shown(guard[1])} while {'it' + when.removeprefix(text) if when.startswith(text + ' ') else when}"
    return _line(f"{s.name} <- {text}", [told])


def _moved(name: str, shown: _Shown, sides: Sequence[str]) -> str:
    """``d <- mean - mean'``, the line that says how far a base moved."""
    new = shown.aliases[name].name if name in shown.aliases else name
    marks = ["" if side == "'" else side for side in sides]
    left = ", ".join(f"{shown.moves[name]}{mark}" for mark in marks)
    return f"{left} <- {', '.join(f'{new} - {new}{side}' for side in sides)}"


def _kept(a: Accumulator) -> tuple[Expr, Expr | None]:
    """What is carried over, and the test under which it is carried over as it is."""
    e = a.correction
    if isinstance(e, Apply) and e.fn is Fn.WHERE and isinstance(e.args[1], Ref) and e.args[1].name == a.name:
        return e.args[2], e.args[0]
    return e if e is not None else ref(a.name, a.dtype, old=True), None


def _update(s: Step, shown: _Shown) -> str:
    if isinstance(s, Base):
        return _base(s, shown)
    shown.seen.clear()
    kept, test = _kept(s)
    text = _statement(s, shown(kept), f"{s.reducer}({shown(s.element)})")
    return _line(text, _comments(shown, test))


def _merge(s: Step, shown: _Shown) -> str:
    """Both partial states brought to the joint base, then combined."""
    if isinstance(s, Base):
        return _base(s, shown)
    shown.seen.clear()
    kept, test = _kept(s)
    left, right = (replace(shown, side=side)(kept) for side in (".a", ".b"))
    text = _statement(s, left, right)
    return _line(text, _comments(replace(shown, side=".a"), test, " (b alike)"))


def _comments(shown: _Shown, test: Expr | None, more: str = "") -> list[str]:
    if test is not None:
        return [f"kept while {shown.when(test)}{more}"]
    return [shown.guards.get(name, "") for name in shown.seen]


def report(stage: Stage, done: Pass, notes: Notes, index: int) -> StageReport:
    """The stage's own accumulators; where it shares another stage's, those it reads."""
    names = list(notes.names)
    read = next(r for r in done.reads if r.stage == stage.name)
    if not names:
        names = [x.name for x in walk(read.value) if isinstance(x, Ref)]
    steps = [s for s in done.steps if s.name in names]
    shown = _shown(done, steps)
    update = "\n".join(_lines(steps, shown, _update, "'"))
    merge = "\n".join(_lines(steps, shown, _merge, ".a", ".b"))
    return StageReport(stage.name, frozenset(notes.treatments), update, merge, tuple(s.name for s in steps), index)


def _lines(steps: Sequence[Step], shown: _Shown, line: Callable[[Step, _Shown], str], *sides: str) -> Iterator[str]:
    own = {s.name for s in steps}
    ahead = [b for b in shown.moves if b in shown.aliases or b not in own]
    for s in steps:
        if s.name not in shown.aliases:
            if isinstance(s, Accumulator) and s.correction is not None:
                yield from (_moved(b, shown, sides) for b in ahead)
                ahead = []
            yield line(s, shown)
            if s.name in shown.moves:
                yield _moved(s.name, shown, sides)
