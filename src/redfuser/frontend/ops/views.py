"""Views: the same elements under other indices. They vanish into the indices of loads."""

from __future__ import annotations

from redfuser.frontend.ops.registry import Call, Lowering, Result, as_length, lowers
from redfuser.frontend.values import Index, NotCovered, Value, dimension
from redfuser.index.ints import ZERO, Int, as_int, divide_exact, floordiv, mod, nonnegative, product


@lowers(
    "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "view_as_real_copy", "positive", "conj",
    "resolve_conj", "resolve_neg", "detach_copy", "alias_copy", "lift", "_conj",
)  # fmt: skip
def same(lo: Lowering, call: Call) -> Result:
    return call.value("self")


@lowers(
    "view.default", "reshape", "_unsafe_view", "view_copy", "_reshape_copy", "unflatten", "flatten", "view_as",
    "reshape_as",
)  # fmt: skip
def reshape(lo: Lowering, call: Call) -> Result:
    return reshaped(call.value("self"), call.shape)


def reshaped(v: Value, shape: tuple[Int, ...]) -> Value:
    """The same elements in row-major order under another shape. Dimensions are grouped where the products agree."""
    if shape == v.shape:
        return v
    groups = _group(v.shape, shape)

    def index(ix: Index) -> Index:
        out = [ZERO] * v.rank
        for old, new in groups:
            line = ZERO
            for n in new:
                line = line * shape[n] + ix[n]
            for place, o in enumerate(reversed(old)):
                size = v.shape[o]
                if place == len(old) - 1:
                    out[o] = line
                else:
                    out[o], line = mod(line, size), floordiv(line, size)
        return tuple(out)

    return v.view(shape, index)


def _group(a: tuple[Int, ...], b: tuple[Int, ...]) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions of ``a`` and ``b`` with equal products, as short as they can be told apart."""
    everything = [(list(range(len(a))), list(range(len(b))))]
    if product(a) is not product(b):
        return _by_guard(a, b)
    if any(n.value == 0 for n in (*a, *b)):
        return everything
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        old, new = ([i], [j]) if i < len(a) and j < len(b) else ([i], []) if i < len(a) else ([], [j])
        i, j = i + len(old), j + len(new)
        pa, pb = product(a[n] for n in old), product(b[n] for n in new)
        while pa is not pb:
            grow_old = divide_exact(pb, pa) is not None if i < len(a) else False
            if grow_old or j >= len(b):
                if i >= len(a):
                    return everything
                old.append(i)
                pa, i = pa * a[i], i + 1
            else:
                new.append(j)
                pb, j = pb * b[j], j + 1
        groups.append((old, new))
    return groups


def _by_guard(a: tuple[Int, ...], b: tuple[Int, ...]) -> list[tuple[list[int], list[int]]]:
    """Sizes whose products agree only by what the caller checked: equal ends are told apart, the rest is one run."""
    shortest = min(len(a), len(b))
    head = next((n for n in range(shortest) if a[n] is not b[n] or a[n].value == 0), shortest)
    rest = shortest - head
    tail = next((n for n in range(rest) if a[-1 - n] is not b[-1 - n] or a[-1 - n].value == 0), rest)
    same = [([n], [n]) for n in range(head)]
    ends = [([len(a) - tail + n], [len(b) - tail + n]) for n in range(tail)]
    return [*same, (list(range(head, len(a) - tail)), list(range(head, len(b) - tail))), *ends]


@lowers("transpose", "swapaxes", "swapdims")
def transpose(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    order = list(range(v.rank))
    names = [n for n in ("dim0", "dim1", "axis0", "axis1") if n in call.args]
    if v.rank:
        p, q = (call.dim(n) for n in names)
        order[p], order[q] = order[q], order[p]
    return permuted(v, order)


@lowers("permute", "movedim")
def permute(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    if call.op == "movedim":
        raise NotCovered("movedim")
    return permuted(v, [dimension(d, v.rank) for d in call["dims"]])


@lowers("t", "numpy_T", "mT", "adjoint")
def t(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    order = list(range(v.rank))
    return permuted(v, order[::-1] if call.op == "numpy_T" else [*order[:-2], *order[-2:][::-1]])


def permuted(v: Value, order: list[int]) -> Value:
    back = [order.index(n) for n in range(v.rank)]
    return v.view([v.shape[n] for n in order], lambda ix: tuple(ix[n] for n in back))


@lowers("expand", "broadcast_to", "expand_copy", "expand_as")
def expand(lo: Lowering, call: Call) -> Result:
    return call.value("self").broadcast(call.shape)


@lowers("unsqueeze", "unsqueeze_copy")
def unsqueeze(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    return unsqueezed(v, call.dim(rank=v.rank + 1))


def unsqueezed(v: Value, d: int) -> Value:
    return v.view([*v.shape[:d], as_int(1), *v.shape[d:]], lambda ix: (*ix[:d], *ix[d + 1 :]))


@lowers("squeeze", "squeeze_copy")
def squeeze(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    return squeezed(v, [d for d in call.dims() if v.shape[d].value == 1])


def squeezed(v: Value, dims: list[int]) -> Value:
    kept = [n for n in range(v.rank) if n not in dims]

    def index(ix: Index) -> Index:
        out = [ZERO] * v.rank
        for n, i in zip(kept, ix, strict=True):
            out[n] = i
        return tuple(out)

    return v.view([v.shape[n] for n in kept], index)


@lowers("select.int", "select_copy")
def select(lo: Lowering, call: Call) -> Result:
    v, d = call.value("self"), call.dim()
    i = wrapped(call.length("index"), v.shape[d])
    return v.view([*v.shape[:d], *v.shape[d + 1 :]], lambda ix: (*ix[:d], i, *ix[d:]))


def wrapped(i: Int, n: Int) -> Int:
    """A Python index, which may count from the end."""
    if nonnegative(i):
        return i
    if nonnegative(-i - 1):
        return i + n
    raise NotCovered("an index whose sign is not known")


@lowers("slice", "slice_copy", "narrow")
def slice_(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    d = call.dim()
    begin = slice_start(call.get("start"), v.shape[d], call.shape[d], call.get("end"))
    step = as_length(call.get("step", 1))
    return v.view(call.shape, lambda ix: (*ix[:d], ix[d] * step + begin, *ix[d + 1 :]))


def slice_start(start: object, size: Int, length: Int, end: object = None) -> Int:
    """Where a slice begins, as Python clips it; its resulting length tells whether a number was out of range."""
    if start is None or length.value == 0:
        return ZERO
    i = as_length(start)
    begin = wrapped(i, size)
    if not nonnegative(begin):
        # a negative start before the beginning is clipped when it surely is
        if nonnegative(-begin):
            return ZERO
        stop = end if isinstance(end, int) and end < 0 else 0
        if isinstance(start, int) and length.value == stop - start:
            return begin
        raise NotCovered("a slice that starts before a length that is not known")
    return begin


@lowers("split", "split_with_sizes", "chunk", "unsafe_split", "tensor_split", "unsafe_chunk", "split_copy")
def split(lo: Lowering, call: Call) -> Result:
    from redfuser.frontend.values import int_from_torch

    v, d = call.value("self"), call.dim()
    out: list[Result] = []
    begin = ZERO
    for part in call.meta:
        shape = tuple(int_from_torch(n) for n in part.shape)
        out.append(_piece(v, d, begin, shape))
        begin = begin + shape[d]
    return out


def _piece(v: Value, d: int, begin: Int, shape: tuple[Int, ...]) -> Value:
    return v.view(shape, lambda ix: (*ix[:d], ix[d] + begin, *ix[d + 1 :]))


@lowers("unbind", "unbind_copy")
def unbind(lo: Lowering, call: Call) -> Result:
    v, d = call.value("self"), call.dim()
    shape = (*v.shape[:d], *v.shape[d + 1 :])
    return [_slot(v, d, as_int(n), shape) for n in range(len(call.meta))]


def _slot(v: Value, d: int, n: Int, shape: tuple[Int, ...]) -> Value:
    return v.view(shape, lambda ix: (*ix[:d], n, *ix[d:]))


@lowers("flip")
def flip(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    dims = call.dims("dims")
    return v.view(v.shape, lambda ix: tuple(v.shape[n] - 1 - i if n in dims else i for n, i in enumerate(ix)))


@lowers("diagonal")
def diagonal(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    a, b = call.dim("dim1"), call.dim("dim2")
    shift = call["offset"]
    rest = [n for n in range(v.rank) if n not in (a, b)]

    def index(ix: Index) -> Index:
        out = [ZERO] * v.rank
        for n, i in zip(rest, ix[:-1], strict=True):
            out[n] = i
        out[a], out[b] = ix[-1] + max(-shift, 0), ix[-1] + max(shift, 0)
        return tuple(out)

    return v.view(call.shape, index)


@lowers("repeat", "tile")
def repeat(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    off = len(call.shape) - v.rank
    return v.view(
        call.shape,
        lambda ix: tuple(ZERO if n.value == 1 else mod(i, n) for n, i in zip(v.shape, ix[off:], strict=True)),
    )


@lowers("repeat_interleave.self_int")
def repeat_interleave(lo: Lowering, call: Call) -> Result:
    v = call.value("self")
    times = call.length("repeats")
    if call.get("dim") is None:
        v = reshaped(v, (product(v.shape),))
    d = dimension(call.get("dim") or 0, v.rank)
    return v.view(call.shape, lambda ix: (*ix[:d], floordiv(ix[d], times), *ix[d + 1 :]))
