"""Device functions that a printed kernel may call: each is a piece of Triton source, printed only where it is used."""

from __future__ import annotations

from collections.abc import Iterable

_SOURCES: dict[str, str] = {
    "larger": """
@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "smaller": """
@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "times": """
@triton.jit
def times(a, b):
    return a * b
""",
    "floor_div": """
@triton.jit
def floor_div(a, b):
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)
""",
    "floor_mod": """
@triton.jit
def floor_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "float_mod": """
@triton.jit
def float_mod(a, b):
    return a - tl.floor(a / b) * b
""",
    "sign": """
@triton.jit
def sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x)).to(x.dtype)
""",
    "truncate": """
@triton.jit
def truncate(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""",
    "nearest": """
@triton.jit
def nearest(x):
    # half to even
    down = tl.floor(x)
    rest = x - down
    odd = down - 2 * tl.floor(down * 0.5)
    up = tl.where(rest == 0.5, odd == 1, rest > 0.5)
    return tl.where(up, down + 1, down)
""",
    "expm1": """
@triton.jit
def expm1(x):
    # near 0 the series: exp(x) - 1 would lose the digits of x
    series = x * (1 + x * (0.5 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720))))))
    return tl.where(tl.abs(x) < 0.25, series, tl.exp(x) - 1)
""",
    "log1p": """
@triton.jit
def log1p(x):
    # log(1 + x) * x / ((1 + x) - 1) cancels the rounding of 1 + x
    y = 1 + x
    d = y - 1
    return tl.where((d == 0) | (y == float("inf")), tl.where(d == 0, x, y), tl.log(y) * (x / d))
""",
    "tanh": """
@triton.jit
def tanh(x):
    # near 0 the series of tanh(x) / x; elsewhere by one exponential
    y = x * x
    series = x * (1 + y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * (62 / 2835 - y * (1382 / 155925))))))
    return tl.where(tl.abs(x) < 0.35, series, 1 - 2 / (tl.exp(2 * x) + 1))
""",
    "coarse_tanh": """
@triton.jit
def coarse_tanh(x):
    # one instruction, right to 11 bits
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
""",
    "coarse_sigmoid": """
@triton.jit
def coarse_sigmoid(x):
    # one instruction, right to 11 bits
    y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [0.5 * x], dtype=tl.float32, is_pure=True, pack=1)
    return 0.5 + 0.5 * y
""",
    "sigmoid": """
@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))
""",
    "to_e4m3": """
@triton.jit
def to_e4m3(x):
    # the format has no infinity: what lies beyond its largest number becomes that number
    return tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x)).to(tl.float8e4nv)
""",
    "power": """
@triton.jit
def power(a, b):
    # exp(b log|a|), with the sign of a for odd whole b; NaN for negative a and fractional b
    whole = tl.floor(b) == b
    odd = whole & (b - 2 * tl.floor(b * 0.5) == 1)
    size = tl.exp2(b * tl.log2(tl.abs(a)))
    signed = tl.where(a < 0, tl.where(whole, tl.where(odd, -size, size), float("nan")), size)
    return tl.where(b == 0, 1.0, tl.where(a == 1, 1.0, signed))
""",
    "order_key": """
@triton.jit
def order_key(x, index, SMALLEST: tl.constexpr, NAN_LAST: tl.constexpr):
    # one integer that sorts as (value, lowest index): NaN is the best of all or the last, -0 equals 0
    bits = (x.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
    sortable = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if SMALLEST:
        sortable = ~sortable
    sortable = tl.where(x != x, -0x7F800002 if NAN_LAST else 0x7FFFFFFF, sortable)
    return (sortable.to(tl.int64) << 32) | (0xFFFFFFFF - tl.minimum(index.to(tl.int64), 0xFFFFFFFF))
""",
    "key_value": """
@triton.jit
def key_value(key, SMALLEST: tl.constexpr, NAN_LAST: tl.constexpr):
    sortable = (key >> 32).to(tl.int32)
    nan = sortable == (-0x7F800002 if NAN_LAST else 0x7FFFFFFF)
    if SMALLEST:
        sortable = ~sortable
    value = (sortable ^ ((sortable >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(nan, float("nan"), value)
""",
    "key_index": """
@triton.jit
def key_index(key):
    return 0xFFFFFFFF - (key & 0xFFFFFFFF)
""",
    "best_keys": """
@triton.jit
def best_keys(keys, slot, AXIS: tl.constexpr, K: tl.constexpr, NAN_LAST: tl.constexpr):
    # the K largest keys along AXIS, largest first; keys differ, so each round takes one.
    # A slot without an element holds the worst infinity, or NaN where it is the last, at no position
    NONE: tl.constexpr = -0x7F80000200000000 if NAN_LAST else -0x7F80000100000000
    out = slot.to(tl.int64) * 0 + NONE
    for n in tl.static_range(K):
        top = tl.max(keys, AXIS, keep_dims=True)
        out = tl.where(slot == n, top, out)
        keys = tl.where(keys == top, NONE, keys)
    return out
""",
    "merged_keys": """
@triton.jit
def merged_keys(left, right, slot, AXIS: tl.constexpr, K: tl.constexpr, NAN_LAST: tl.constexpr):
    # the K largest keys of two lists along AXIS, largest first; slots beyond K, read as padding, hold no element
    NONE: tl.constexpr = -0x7F80000200000000 if NAN_LAST else -0x7F80000100000000
    left = tl.where(slot < K, left, NONE)
    right = tl.where(slot < K, right, NONE)
    out = slot.to(tl.int64) * 0 + NONE
    for n in tl.static_range(K):
        top = tl.maximum(tl.max(left, AXIS, keep_dims=True), tl.max(right, AXIS, keep_dims=True))
        out = tl.where(slot == n, top, out)
        left = tl.where(left == top, NONE, left)
        right = tl.where(right == top, NONE, right)
    return out
""",
}


NAMES = frozenset(_SOURCES)


def source(names: Iterable[str]) -> str:
    """The definitions of the functions named, and of those they call, in an order that works."""
    wanted = set(names)
    return "\n".join(text for name, text in _SOURCES.items() if name in wanted)
