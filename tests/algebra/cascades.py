"""Cascades with verdicts derived by hand: how many passes, which treatments, what is refused and for what kind of reason."""

# One line per step reads best here.
# ruff: noqa: E501, E702

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from redfuser.index.expr import DType

from .dsl import (
    BF16,
    E4M3,
    NINF,
    Cascade,
    absv,
    ceil,
    clip,
    exp,
    exp2,
    expm1,
    floor,
    isnan,
    log,
    log2,
    maxv,
    minv,
    rnd,
    rsqrt,
    sigmoid,
    sqrt,
    tanh,
    where,
    xlogy,
)


@dataclass(frozen=True)
class Case:
    build: Callable[[Cascade], None]
    passes: int = 1
    treat: dict[str, set[str]] = field(default_factory=dict)  # stage -> treatments it must have
    refuse: dict[str, str] = field(default_factory=dict)  # stage -> kind
    options: dict[str, bool] = field(default_factory=dict)
    length: int | None = None
    dtype: DType = DType.FLOAT32

    @property
    def name(self) -> str:
        return self.build.__name__

    def problem(self):
        c = Cascade(self.name, self.length, self.dtype)
        self.build(c)
        return c.problem


ALL: list[Case] = []


def case(passes=1, treat=None, refuse=None, **kw):
    def add(f):
        ALL.append(Case(f, passes, treat or {}, refuse or {}, **kw))
        return f

    return add


# -- one pass: softmax and what is built on it ------------------------------------------------------------------------------
@case(treat={"m": {"plain"}, "Z": {"rescale"}})
def safe_softmax(c): c.softmax(c.x())
@case(treat={"O": {"rescale", "defer"}})
def attention(c):
    m, Z = c.softmax(c.x()); c.sum("O", exp(c.x() - m) / Z * c.col())
@case()
def attention_divided_last(c):
    m, _ = c.softmax(c.x()); c.sum("O", exp(c.x() - m) * c.col())
@case()
def attention_scaled_masked_softcap_alibi(c):
    i, j = c.at(c.b), c.at(c.l)
    s = where(j <= i * 40, tanh(c.x() * 0.125 / 30.0) * 30.0 + c.x("bias") - c.par("slope") * (i - j), NINF)
    m, Z = c.softmax(s); c.sum("O", exp(s - m) / Z * c.col())
@case()
def attention_bf16_probabilities(c):
    s = c.x(); m, Z = c.softmax(s); c.sum("O", (exp(s - m) / Z).to(BF16) * c.col(dtype=BF16))
@case()
def attention_zero_where_masked(c):
    s = c.x(); m = c.max("m", s); g = where(m.eq(NINF), 0.0, m); Z = c.sum("Z", exp(s - g)); z = where(Z.eq(0.0), 1.0, Z)
    c.sum("O", exp(s - g) / z * c.col())
@case()
def attention_gated(c):
    s = c.x(); m, Z = c.softmax(s); c.sum("O", where(m.eq(NINF), 0.0, exp(s - m) / Z) * c.col())
@case()
def attention_sink(c):
    x, sink = c.x(), c.par("sink"); m = c.max("m", x); M = maxv(m, sink); Z = c.sum("Z1", exp(x - M)) + exp(sink - M)
    c.sum("O", exp(x - M) / Z * c.col())
@case()
def attention_masked_inside(c):
    s = c.x(); keep = c.load("keep", c.b, c.l, dtype=DType.BOOL)
    m = c.max("m", where(keep, s, NINF)); e = exp(where(keep, s - m, NINF)); Z = c.sum("Z", e); c.sum("O", e / Z * c.col())
@case(treat={"L": {"rebase"}})
def nll_through_a_guarded_logsumexp(c):
    x = c.x(); m = c.max("m", x); g = where(absv(m).eq(-NINF), 0.0, m); Z = c.sum("Z", exp(x - g))
    c.sum("L", c.x("t") * (x - where(absv(m).eq(-NINF), m, m + log(Z))))
@case(treat={"A": {"order"}})
def largest_kept_probability(c):
    x, keep = c.x(), c.load("keep", c.b, c.l, dtype=DType.BOOL); m, Z = c.softmax(x)
    c.max("A", where(keep, exp(x - m) / Z, NINF)); c.min("B", where(keep, exp(x - m) / Z, -NINF))
@case(treat={"C": {"order"}})
def largest_clamped_kept_deviation(c):
    x, keep = c.x(), c.load("keep", c.b, c.l, dtype=DType.BOOL); m = c.max("m", c.x("y"))
    c.max("C", where(keep, maxv(x - m, -1.0), NINF))
@case(treat={"E": {"rebase"}})
def entropy_by_xlogy(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("E", xlogy(p, p))
@case()
def entropy_by_signs(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("E", where(isnan(p), p, where(p > 0.0, -p * log(p), where(p.eq(0.0), 0.0, NINF))))
@case()
def entropy_by_the_logarithm(c):
    x = c.x(); m, Z = c.softmax(x); q = x - m - log(Z); p = exp(q); c.sum("E", where((p > 0.0) | isnan(p), p * q, 0.0))
@case()
def entropy_of_what_is_positive(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("E", where(p > 0.0, p * log(p), 0.0))
@case()
def entropy_of_negatives(c):
    x = c.x(); m, Z = c.softmax(x); p = -exp(x - m) / Z; c.sum("E", where(p >= 0.0, 0.0, p * log(-p)))
@case()
def entropy_masked(c):
    x, keep = c.x(), c.load("keep", c.b, c.l, dtype=DType.BOOL); m = c.max("m", where(keep, x, NINF)); e = where(keep, exp(x - m), 0.0)
    Z = c.sum("Z", e); c.sum("E", xlogy(e / Z, e / Z))
@case()
def entropy_with_a_sink(c):
    x, sink = c.x(), c.par("sink"); m = c.max("m", x); M = maxv(m, sink); Z = c.sum("Z1", exp(x - M)) + exp(sink - M)
    p = exp(x - M) / Z; c.sum("E", xlogy(p, p))
@case()
def entropy_unsafe(c):
    e = exp(c.x()); p = e / c.sum("Z", e); c.sum("E", xlogy(p, p))
@case()
def divergence_at_a_temperature(c):
    x, y = c.x() / 3.0, c.x("y") / 3.0; m, Z = c.softmax(x); n, W = c.softmax(y, "n", "W"); p = exp(x - m) / Z
    c.sum("E", xlogy(p, p) - p * (y - n - log(W)))
@case()
def max_subtracted_twice(c):
    x = c.x(); m = c.max("m", x); y = x - m; m2 = c.max("m2", y); Z = c.sum("Z", exp(y - m2)); c.sum("O", exp(y - m2) / Z * c.col())
@case()
def temperature_softmax(c):
    x, al = c.x(), 0.7; m = c.max("m", x); Z = c.sum("Z", exp((x - m) * al)); c.sum("O", exp((x - m) * al) / Z * c.col())
@case()
def learned_temperature_softmax(c):
    x, al = c.x(), c.par("al"); m = c.max("m", x); Z = c.sum("Z", exp((x - m) * al)); c.sum("O", exp((x - m) * al) / Z * c.col())
@case()
def softmax_base_two(c):
    x = c.x() * 1.4426950408889634; m = c.max("m", x); Z = c.sum("Z", exp2(x - m)); c.sum("O", exp2(x - m) / Z * c.col())
@case()
def unsafe_softmax(c):
    Z = c.sum("Z", exp(c.x())); c.sum("O", exp(c.x()) * c.col() / Z)
@case()
def logsumexp_by_hand(c):
    x = c.x(); m = c.max("m", x); g = where(absv(m).eq(float("inf")), 0.0, m); c.sum("Z", exp(x - g))
@case()
def logsumexp_guarded_then_used(c):
    x = c.x(); m = c.max("m", x); g = where(absv(m).eq(float("inf")), 0.0, m); Z = c.sum("Z", exp(x - g)); L = log(Z) + g
    c.sum("O", exp(x - L) * c.col())
@case()
def cross_entropy(c):
    m, Z = c.softmax(c.x()); c.sum("L", c.x("t") * (c.x() - m - log(Z)))
@case()
def cross_entropy_at_target(c):
    m, Z = c.softmax(c.x()); y = c.load("y", c.b, dtype=DType.INT64)
    c.sum("L", where(c.at(c.l).eq(y), c.x() - (m + log(Z)), 0.0))
@case()
def logsumexp_then_nll(c):
    L = c.st("L", "logsumexp", c.x()); c.sum("N", c.x("t") * (c.x() - L))
@case()
def shifted_logsumexp(c):
    m = c.max("m", c.x()); c.st("L", "logsumexp", c.x() - m)
@case()
def softmax_through_logsumexp(c):
    L = c.st("L", "logsumexp", c.x()); c.sum("O", exp(c.x() - L) * c.col())
@case()
def entropy(c):
    m, Z = c.softmax(c.x()); p = exp(c.x() - m) / Z; c.sum("H", p * log(p))
@case()
def entropy_shifted(c):
    m, Z = c.softmax(c.x()); y = c.x() - m - log(Z); c.sum("H", exp(y) * y)
@case()
def kl_divergence(c):
    x, y = c.x(), c.x("y"); m, Z = c.softmax(x); n, W = c.softmax(y, "m2", "Z2")
    p, q = exp(x - m) / Z, exp(y - n) / W; c.sum("KL", p * (log(p) - log(q)))
@case()
def renyi(c):
    m, Z = c.softmax(c.x()); p = exp(c.x() - m) / Z; c.sum("P2", p**2.0); c.sum("Pa", p ** c.par("al"))
@case()
def focal_loss_at_target(c):
    m, Z = c.softmax(c.x()); p = exp(c.x() - m) / Z; c.sum("F", c.x("t") * (1.0 - p) ** 2.0 * log(p))
@case()
def softmax_backward(c):
    x, g = c.x(), c.x("g"); m, Z = c.softmax(x); p = exp(x - m) / Z; D = c.sum("D", p * g); c.sum("dq", p * (g - D) * c.col("k"))
@case()
def softmax_weighted_variance(c):
    v = c.vec("v"); m, Z = c.softmax(c.x()); p = exp(c.x() - m) / Z; mu = c.sum("mu", p * v); c.sum("V", p * (v - mu) ** 2.0)
@case()
def mixture_of_two_softmaxes(c):
    x, y = c.x(), c.x("y"); m, Z = c.softmax(x); n, W = c.softmax(y, "m2", "Z2")
    c.sum("O", (exp(x - m) / Z * 0.3 + exp(y - n) / W * 0.7) * c.col())
@case(treat={"T": {"order"}})
def topk_of_softmax(c):
    m, Z = c.softmax(c.x()); c.st("T", "topk", exp(c.x() - m) / Z, k=4)
@case(treat={"T": {"order"}})
def topk_of_normalised_sigmoid(c):
    S = c.sum("S", sigmoid(c.x())); c.st("T", "topk", sigmoid(c.x()) / S, k=4)
@case(treat={"T": {"order"}})
def argmax_of_softmax(c):
    m, Z = c.softmax(c.x()); c.st("T", "argmax", exp(c.x() - m) / Z)
@case()
def max_probability_times_x(c):
    m, Z = c.softmax(c.x()); P = c.max("P", exp(c.x() - m) / Z); c.sum("R", P * c.col())
@case()
def expm1_softmax(c):
    m = c.max("m", c.x()); c.sum("Z", expm1(c.x() - m))
@case()
def mean_shift_softmax(c):
    mu = c.mean(c.x()); Z = c.sum("Z", exp(c.x() - mu)); c.sum("O", exp(c.x() - mu) * c.col() / Z)
# -- one pass: scales --------------------------------------------------------------------------------------------------------
@case(treat={"O": {"defer"}})
def amax_scaled_gemm(c):
    a = c.max("a", absv(c.x())); c.sum("O", c.x() * 448.0 / maxv(a, 1e-6) * c.col())
@case()
def amax_scaled_gemm_clamped(c):
    a = c.max("a", absv(c.x())); s = 448.0 / maxv(a, 1e-6); c.sum("O", clip(c.x() * s, -448.0, 448.0) * c.col())
@case(treat={"O": {"rescale", "defer"}})
def amax_scaled_gemm_fp8(c):
    a = c.max("a", absv(c.x())); s = 448.0 / maxv(a, 1e-6); c.sum("O", clip(c.x() * s, -448.0, 448.0).to(E4M3) * c.col() / s)
@case()
def amax_scaled_gemm_fp8_bare(c):
    a = c.max("a", absv(c.x())); s = 448.0 / a; c.sum("O", (c.x() * s).to(E4M3) * c.col() / s)
@case(options={"exact_casts": True})
def amax_scaled_gemm_power_of_two(c):
    a = c.max("a", absv(c.x())); s = exp2(ceil(log2(maxv(a, 1e-6) / 448.0))); c.sum("O", (c.x() / s).to(E4M3) * c.col() * s)
@case()
def fp8_power_of_two_rounded_down(c):
    a = c.max("a", absv(c.x())); s = exp2(floor(log2(448.0 / maxv(a, 1e-6)))); c.sum("O", (c.x() * s).to(E4M3) * c.col() / s)
@case()
def fp8_weights(c):
    x = c.x(); m = c.max("m", x); p = exp(x - m); z = c.sum("Z", p); c.sum("O", (p * 448.0).to(E4M3) * c.col() / z)
@case()
def fp8_probabilities(c):
    x = c.x(); m, z = c.softmax(x); c.sum("O", (exp(x - m) / z * 448.0).to(E4M3) * c.col())
@case()
def int8_asymmetric_unrounded(c):
    x = c.x(); lo, hi = c.min("lo", x), c.max("hi", x); s = maxv(hi - lo, 1e-6) / 255.0; c.sum("O", (x - lo) / s * c.col())
@case(options={"fuse_rounding": True})
def int8_asymmetric_rounded(c):
    x = c.x(); lo, hi = c.min("lo", x), c.max("hi", x); s = maxv(hi - lo, 1e-6) / 255.0
    c.sum("O", (rnd(x / s) - rnd(lo / s)) * c.col())
@case()
def rms_norm_gemm(c):
    q = c.sum("q", c.x() ** 2.0); c.sum("O", c.x() * rsqrt(q / c.n + 1e-6) * c.vec("g") * c.col())
@case()
def rms_norm_gemm_bf16(c):
    x = c.x(dtype=BF16); q = c.sum("q", x * x); c.sum("O", (x * rsqrt(q / c.n + 1e-6)).to(BF16) * c.col(dtype=BF16))
@case()
def rms_norm_amax_quantise_gemm(c):
    x = c.x(); q = c.sum("q", x * x); y = x * rsqrt(q / c.n + 1e-6) * c.vec("g"); a = c.max("a", absv(y)); s = 448.0 / maxv(a, 1e-6)
    c.sum("O", (y * s).to(E4M3) * c.col() / s)
@case()
def cosine_similarity(c):
    x, y = c.x(), c.x("y"); a, b = c.sum("a", x * x), c.sum("b2", y * y); c.sum("cs", x / maxv(sqrt(a), 1e-8) * (y / maxv(sqrt(b), 1e-8)))
@case()
def l2_norm_max(c):
    a = c.sum("a", c.x() ** 2.0); c.max("A", c.x() * rsqrt(a + 1e-6))
@case(treat={"q": {"rescale"}})
def scaled_norm(c):
    a = c.max("a", absv(c.x())); c.sum("q", (c.x() / a) ** 2.0)
@case()
def l1_normalise_signed(c):
    s = c.sum("s", c.x()); c.sum("O", c.x() / s * c.col())
@case()
def two_stream_norm(c):
    x, y = c.x(), c.x("y"); a, b = c.sum("a", x * x), c.sum("b2", y * y); c.sum("S", (x * rsqrt(a + 1e-6) + y * rsqrt(b + 1e-6)) * c.col())
@case(treat={"P": {"rescale"}})
def scaled_product(c):
    x = absv(c.x()) + 0.1; m = c.max("m", x); c.st("P", "prod", x / m)
@case(treat={"q": {"order"}})
def quantised_max(c):
    a = c.max("a", absv(c.x())); c.max("q", rnd(c.x() * 127.0 / maxv(a, 1e-6)))
# -- one pass: shifts --------------------------------------------------------------------------------------------------------
@case(treat={"M2": {"rebase"}})
def variance(c):
    mu = c.mean(c.x()); c.sum("M2", (c.x() - mu) ** 2.0)
@case(length=40)
def variance_of_known_length(c):
    mu = c.sum("s", c.x()) / 40.0; c.sum("M2", (c.x() - mu) * (c.x() - mu))
@case()
def variance_with_count(c):
    n = c.sum("n", 1.0); mu = c.sum("s", c.x()) / n; c.sum("M2", (c.x() - mu) ** 2.0)
@case()
def variance_expanded(c):
    x = c.x(); mu = c.mean(x); c.sum("M2", x**2.0 - 2.0 * x * mu + mu**2.0)
@case(treat={"M2": {"rebase"}}, length=130)
def variance_expanded_over_a_number(c):
    x = c.x(); mu = c.sum("s", x) / 130.0; c.sum("M2", x * x - 2.0 * x * mu + mu * mu)
@case(treat={"M2": {"rebase"}}, length=130)
def variance_expanded_about_twice_half_the_mean(c):
    x = c.x(); mu = c.sum("s", x) / 130.0; c.sum("M2", x * x - x * (mu * 2.0) + mu**2.0)
@case(treat={"M2": {"rebase"}})
def weighted_variance_expanded(c):
    x, w = c.x(), exp(c.x("w")); mu = c.sum("S", w * x) / c.sum("W", w); c.sum("M2", w * (x * x - 2.0 * x * mu + mu * mu))
@case(treat={"C": {"rebase"}}, length=130)
def covariance_expanded(c):
    x, y = c.x(), c.x("y"); mu, nu = c.sum("s", x) / 130.0, c.sum("t", y) / 130.0
    c.sum("C", x * y - x * nu - y * mu + mu * nu)
@case(treat={"M2": {"rebase"}})
def variance_divided_inside(c):
    mu = c.sum("s", c.x() / c.n); c.sum("M2", (c.x() - mu) ** 2.0)
@case(treat={"M2": {"rebase"}}, length=130)
def variance_divided_inside_by_a_number(c):
    mu = c.sum("s", c.x() / 130.0); c.sum("M2", (c.x() - mu) ** 2.0)
@case()
def variance_about_half_the_mean(c):
    mu = c.sum("s", c.x()) / (c.n * 2.0); c.sum("M2", (c.x() - mu) ** 2.0)
@case()
def layer_norm_gemm(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); c.sum("O", (x - mu) * rsqrt(M2 / c.n + 1e-5) * c.col())
@case()
def layer_norm_gemm_bf16(c):
    x = c.x(dtype=BF16); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0)
    c.sum("O", ((x - mu) * rsqrt(M2 / c.n + 1e-5)).to(BF16) * c.col(dtype=BF16))
@case()
def layer_norm_gemm_expanded(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); r = rsqrt(M2 / c.n + 1e-5); c.sum("O", (x * r - mu * r) * c.col())
@case(treat={"A": {"order"}})
def layer_norm_then_amax(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); c.max("A", absv((x - mu) * rsqrt(M2 / c.n + 1e-5)))
@case()
def skewness(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); c.sum("K", ((x - mu) * rsqrt(M2 / c.n + 1e-5)) ** 3.0)
@case()
def kurtosis(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); c.sum("K", ((x - mu) * rsqrt(M2 / c.n + 1e-5)) ** 4.0)
@case(treat={"A": {"order"}, "B": {"order"}})
def zscore_extremes(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); z = (x - mu) * rsqrt(M2 / c.n + 1e-5); c.max("A", z); c.min("B", z)
@case()
def weighted_variance(c):
    w, x = absv(c.vec("w")), c.x(); W = c.sum("W", w); mu = c.sum("s", w * x) / W; c.sum("M2", w * (x - mu) ** 2.0)
@case()
def weighted_variance_any_sign(c):
    w, x = c.vec("w"), c.x(); W = c.sum("W", w); mu = c.sum("s", w * x) / W; c.sum("M2", w * (x - mu) ** 2.0)
@case()
def covariance(c):
    x, y = c.x(), c.x("y"); mx, my = c.mean(x, "sx"), c.mean(y, "sy"); c.sum("C", (x - mx) * (y - my))
@case()
def weighted_covariance(c):
    w, x, y = absv(c.vec("w")), c.x(), c.x("y"); W = c.sum("W", w); a, b = c.sum("sx", w * x), c.sum("sy", w * y)
    c.sum("C", w * (x - a / W) * (y - b / W))
@case()
def pearson(c):
    x, y = c.x(), c.x("y"); mx, my = c.mean(x, "sx"), c.mean(y, "sy")
    a = c.sum("a", (x - mx) ** 2.0); b = c.sum("b2", (y - my) ** 2.0); c.sum("C", (x - mx) * (y - my) * rsqrt(a * b + 1e-9))
@case()
def inertia_about_centroid(c):
    w, x, y, z = absv(c.vec("w")), c.x(), c.x("y"), c.x("z"); M = c.sum("M", w)
    a, b, d = (c.sum("s" + n, w * q) for n, q in zip("xyz", (x, y, z), strict=True))
    c.sum("I", w * ((x - a / M) ** 2.0 + (y - b / M) ** 2.0 + (z - d / M) ** 2.0))
@case()
def minmax_normalised_sum(c):
    x = c.x(); lo, hi = c.min("lo", x), c.max("hi", x); c.sum("S", (x - lo) / (hi - lo))
@case()
def gap_to_max(c):
    m = c.max("m", c.x()); c.sum("G", absv(c.x() - m))
@case()
def regression_residual(c):
    x, y = c.x(), c.x("y"); a, b = c.sum("xy", x * y), c.sum("yy", y * y); c.sum("R", (x - a / b * y) ** 2.0)
@case(treat={"B": {"order"}})
def any_above_mean(c):
    mu = c.mean(c.x()); c.st("B", "any", c.x() > 2.0 * mu)
@case(treat={"B": {"order"}})
def all_below_mean_plus(c):
    mu = c.mean(c.x()); c.st("B", "all", c.x() < mu + 3.0)
@case()
def any_masked_above_mean(c):
    mu = c.mean(c.x()); c.st("B", "any", c.load("keep", c.b, c.l, dtype=DType.BOOL) & (c.x() > mu))
@case()
def masked_variance(c):
    keep = c.load("keep", c.b, c.l, dtype=DType.BOOL); x = c.x(); n = c.sum("n", keep.to(DType.FLOAT32))
    mu = c.sum("s", where(keep, x, 0.0)) / n; c.sum("M2", where(keep, (x - mu) ** 2.0, 0.0))
@case()
def integer_counts(c):
    c.sum("n", (c.x() > 0.0).to(DType.INT64), dtype=DType.INT64); c.st("A", "any", c.x() > 1.0); c.st("B", "all", c.x() > -5.0)
# -- one pass: other spellings -------------------------------------------------------------------------------------------------
@case()
def softmax_plus_one(c):
    x = c.x(); m = maxv(c.max("m", x), 0.0); Z = c.sum("Z", exp(x - m)) + exp(-m); c.sum("O", exp(x - m) / Z * c.col())
@case()
def softmax_base_two_folded(c):
    x = c.x(); m = c.max("m", x); e = exp2(x * 0.18 - m * 0.18); Z = c.sum("Z", e); c.sum("O", e * c.col() * (1.0 / Z))
@case()
def softmax_normalised_in_the_exponent(c):
    x = c.x(); m, Z = c.softmax(x); c.sum("O", exp(x - m - log(Z)) * c.col())
@case()
def entropy_from_logits(c):
    x = c.x(); m, Z = c.softmax(x); c.sum("H", exp(x - m) / Z * ((log(Z) + m) - x))
@case()
def cross_entropy_by_exponential(c):
    m, Z = c.softmax(c.x()); c.sum("L", -(c.x("t") * log(exp(c.x() - m) / Z)))
@case()
def label_smoothing(c):
    m, Z = c.softmax(c.x()); c.sum("L", (c.x("t") * 0.9 + 0.1 / c.n) * (log(Z) + (m - c.x())))
@case()
def standardised_gemm(c):
    x = c.x(); mu = c.mean(x); v = c.sum("M2", (x - mu) * (x - mu)) / (c.n - 1.0); c.sum("O", (x - mu) / (sqrt(v) + 1e-5) * c.col())
@case()
def negated_shift(c):
    x = c.x(); mu = c.mean(x); c.sum("M2", (mu + (-x)) ** 2.0)
@case()
def reciprocal_scale(c):
    a = c.max("a", absv(c.x())); r = maxv(a, 1e-6) ** -1.0; c.sum("O", (c.x() * r) * (448.0 * c.col()))
@case()
def minmax_with_eps(c):
    x = c.x(); lo, hi = c.min("lo", x), c.max("hi", x); c.sum("S", ((x - lo) / ((hi - lo) + 1e-6)) ** 2.0)
@case()
def purity(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("G", p * p)
@case()
def masked_softmax_by_product(c):
    x = c.x(); keep = c.load("keep", c.b, c.l, dtype=DType.BOOL); m = c.max("m", where(keep, x, NINF))
    Z = c.sum("Z", where(keep, exp(x - m), 0.0)); c.sum("O", where(keep, exp(x - m) / Z, 0.0) * c.col())
@case()
def mean_over_integer_count(c):
    keep = c.load("keep", c.b, c.l, dtype=DType.BOOL); n = c.sum("n", keep.to(DType.INT64), dtype=DType.INT64)
    mu = c.sum("s", where(keep, c.x(), 0.0)) / n.to(DType.FLOAT32); c.sum("C", where(keep, (c.x() - mu) ** 3.0, 0.0))
@case(treat={"a": {"order"}})
def smallest_probability(c):
    m, Z = c.softmax(c.x()); c.min("a", exp(c.x() - m) / Z); c.st("i", "argmin", (c.x() - m) / Z)
@case()
def half_precision_attention(c):
    x = c.x(dtype=BF16); m, Z = c.softmax(x.to(DType.FLOAT32) * 0.125)
    c.sum("O", (exp(x.to(DType.FLOAT32) * 0.125 - m) / Z).to(BF16) * c.col(dtype=BF16), dtype=BF16)
@case(dtype=DType.FLOAT64)
def double_precision_layer_norm(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); c.sum("O", (x - mu) * rsqrt(M2 / c.n + 1e-5) * c.col())
@case()
def float16_layer_norm_gemm(c):
    x = c.x(dtype=DType.FLOAT16); mu = c.mean(x.to(DType.FLOAT32)); y = x.to(DType.FLOAT32) - mu; M2 = c.sum("M2", y * y)
    c.sum("O", (y * rsqrt(M2 / c.n + 1e-5)).to(DType.FLOAT16) * c.col(dtype=DType.FLOAT16))
@case()
def float16_rms_norm_gemm(c):
    x = c.x(); q = c.sum("q", x * x); c.sum("O", (x * rsqrt(q / c.n + 1e-6)).to(DType.FLOAT16) * c.col(dtype=DType.FLOAT16))
# -- several passes ----------------------------------------------------------------------------------------------------------
@case(2, refuse={"Z": "product_in_exp"})
def softmax_of_zscores(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); z = (x - mu) * rsqrt(M2 / c.n + 1e-5)
    A = c.max("A", z); Z = c.sum("Z", exp(z - A)); c.sum("O", exp(z - A) / Z * c.col())
@case(2, refuse={"Z": "product_in_exp"})
def softmax_of_scaled(c):
    x = c.x(); a = c.max("a", absv(x)); m = c.max("m", x / a); c.sum("Z", exp(x / a - m))
@case(2, refuse={"Z": "product_in_exp"})
def data_temperature(c):
    s = c.sum("s", absv(c.x())); m = c.max("m", c.x()); c.sum("Z", exp((c.x() - m) / (s / c.n + 1e-6)))
@case(2, refuse={"A": "product_in_exp"})
def gaussian_kernel(c):
    mu = c.mean(c.x()); c.sum("A", exp(-((c.x() - mu) ** 2.0)))
@case(2, refuse={"A": "product_in_exp"})
def softmax_of_softmax(c):
    m, Z = c.softmax(c.x()); c.sum("A", exp(exp(c.x() - m) / Z))
@case(2, refuse={"A": "nonlinear"})
def tanh_of_shift(c):
    m = c.max("m", c.x()); c.sum("A", tanh(c.x() - m))
@case(2, refuse={"A": "nonlinear"})
def sigmoid_of_shift(c):
    mu = c.mean(c.x()); c.sum("A", sigmoid(c.x() - mu) * c.col())
@case(2, refuse={"P": "nonlinear"})
def group_norm_silu_pool(c):
    x = c.x(); mu = c.mean(x); M2 = c.sum("M2", (x - mu) ** 2.0); z = (x - mu) * rsqrt(M2 / c.n + 1e-5); c.sum("P", z * sigmoid(z))
@case(2, refuse={"A": "nonlinear"})
def softplus_of_shift(c):
    m = c.max("m", c.x()); c.sum("A", log(1.0 + exp(c.x() - m)))
@case(2, refuse={"J": "nonlinear"})
def js_divergence(c):
    x, y = c.x(), c.x("y"); m, Z = c.softmax(x); n, W = c.softmax(y, "m2", "Z2")
    p, q = exp(x - m) / Z, exp(y - n) / W; c.sum("J", p * log(p / ((p + q) * 0.5)))
@case(2, refuse={"A": "data_branch"})
def relu_of_probability(c):
    m, Z = c.softmax(c.x()); c.sum("A", maxv(exp(c.x() - m) / Z - 0.01, 0.0) * c.col())
@case(2, refuse={"A": "data_branch"})
def clamped_probability(c):
    m, Z = c.softmax(c.x()); c.sum("A", maxv(exp(c.x() - m) / Z, 1e-9) * c.col())
@case(2, refuse={"A": "data_branch"})
def sparsemax_step(c):
    t = (c.sum("s", c.x()) - 1.0) / c.n; c.sum("A", maxv(c.x() - t, 0.0))
@case(2, refuse={"A": "data_branch"})
def entmax_step(c):
    mu = c.mean(c.x()); c.sum("A", maxv(c.x() * 0.5 - mu, 0.0) ** 2.0)
@case(2, refuse={"A": "data_branch"})
def count_below_mean(c):
    mu = c.mean(c.x()); c.sum("A", (c.x() < mu).to(DType.INT64), dtype=DType.INT64)
@case(2, refuse={"A": "data_branch"})
def sum_below_max(c):
    m = c.max("m", c.x()); c.sum("A", where(c.x() < m, c.x(), 0.0))
@case(2, refuse={"A": "data_branch"})
def huber_about_mean(c):
    r = c.x() - c.mean(c.x()); c.sum("A", where(absv(r) < 1.0, r * r * 0.5, absv(r) - 0.5))
@case(2, refuse={"A": "data_branch"})
def mean_absolute_deviation(c):
    mu = c.mean(c.x()); c.sum("A", absv(c.x() - mu))
@case(2, refuse={"A": "nonlinear"})
def harmonic_shift(c):
    x = absv(c.x()) + 0.1; m = c.min("m", x); c.sum("A", 1.0 / (x + m))
@case(2, refuse={"A": "order"})
def max_of_affine(c):
    a = c.sum("a", absv(c.x("z"))); c.max("A", c.x() * a + c.x("y"))
@case(2, refuse={"A": "order"})
def max_of_noise_on_log_softmax(c):
    x = c.x(); m, Z = c.softmax(x); c.max("A", x - m - log(Z) + c.x("g"))
@case(treat={"A": {"order"}})
def max_of_a_sum_less_its_maximum(c):
    y = c.x() + c.x("g"); m = c.max("m", y); c.max("A", y - m)
@case(treat={"A": {"order"}})
def max_of_a_sum_over_a_sum(c):
    Z = c.sum("Z", absv(c.x())); c.max("A", c.x() / Z + c.x("g") / Z)
@case(2, refuse={"E": "data_branch"})
def another_number_where_it_is_zero(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("E", where(p.eq(0.0), 1.0, p * log(p)))
@case(2, refuse={"E": "data_branch"})
def far_from_zero_where_it_is_zero(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("E", where(p.eq(0.0), 0.0, log(p)))
@case(2, refuse={"E": "data_branch"})
def zero_where_it_is_nan_without_a_sum(c):
    x = c.x(); m = c.max("m", x); p = exp(x - m); c.sum("E", where(p > 0.0, p * log(p), 0.0))
@case(2, refuse={"E": "data_branch"})
def logarithm_of_another_where_it_is_zero(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("E", xlogy(p, c.x("q")))
@case(2, refuse={"E": "data_branch"})
def zero_test_under_a_scale_of_other_data(c):
    m = c.max("m", c.x("y")); e = exp(c.x() - m); c.sum("E", xlogy(e, e))
@case(2, refuse={"E": "data_branch"})
def zero_test_under_a_sum_that_may_overflow(c):
    x = absv(c.x()); p = x / c.sum("s", x); c.sum("E", xlogy(p, p))
@case(2, refuse={"E": "data_branch"})
def zero_test_under_a_scale_of_any_sign(c):
    x = c.x(); m = c.max("m", x); p = exp(x - m) * c.sum("s", c.x("y")); c.sum("E", where(p.eq(0.0), 0.0, p * log(absv(p))))
@case(2, refuse={"E": "data_branch"})
def compared_with_another_number(c):
    x = c.x(); m, Z = c.softmax(x); p = exp(x - m) / Z; c.sum("E", where(p > 0.5, p * log(p), p))
@case(2, refuse={"A": "order"})
def max_of_weighted_deviation(c):
    mu = c.mean(c.x()); c.max("A", absv((c.x() - mu) * c.x("g")))
@case(2, refuse={"O": "rounding"})
def int8_rounded_without_leave(c):
    x = c.x(); a = c.max("a", absv(x)); c.sum("O", rnd(x * 127.0 / maxv(a, 1e-6)) * c.col())
@case(2, refuse={"O": "rounding"}, options={"exact_casts": True})
def fp8_cast_without_leave(c):
    a = c.max("a", absv(c.x())); s = 448.0 / maxv(a, 1e-6); c.sum("O", (c.x() * s).to(E4M3) * c.col() / s)
@case(2, refuse={"O": "rounding"})
def fp8_cast_scaled_by_a_mean(c):
    s = 448.0 / maxv(c.mean(absv(c.x())), 1e-6); c.sum("O", (c.x() * s).to(E4M3) * c.col() / s)
@case(2, refuse={"O": "rounding"})
def fp8_cast_that_cuts_off(c):
    a = c.max("a", absv(c.x())); s = 449.0 / maxv(a, 1e-6); c.sum("O", (c.x() * s).to(E4M3) * c.col() / s)
@case(2, refuse={"O": "rounding"})
def fp8_power_of_two_rounded_up(c):
    a = c.max("a", absv(c.x())); s = exp2(ceil(log2(448.0 / maxv(a, 1e-6)))); c.sum("O", (c.x() * s).to(E4M3) * c.col() / s)
@case(2, refuse={"O": "rounding"})
def fp8_weights_that_cut_off(c):
    x = c.x(); m = c.max("m", x); p = exp(x - m); z = c.sum("Z", p); c.sum("O", (p * 449.0).to(E4M3) * c.col() / z)
@case(2, refuse={"O": "rounding"})
def fp8_probabilities_that_cut_off(c):
    x = c.x(); m, z = c.softmax(x); c.sum("O", (exp(x - m) / z * 449.0).to(E4M3) * c.col())
@case(2, refuse={"O": "ill_conditioned"})
def shifted_by_a_spread(c):
    hi, lo = c.max("hi", c.x()), c.min("lo", c.x()); c.sum("O", (c.x() - hi * lo) ** 2.0)
@case(2, refuse={"R": "ill_conditioned"})
def residual_with_intercept(c):
    x, y = c.x(), c.x("y"); mx, my = c.mean(x, "sx"), c.mean(y, "sy"); a = c.sum("cxx", (x - mx) ** 2.0)
    b = c.sum("cxy", (x - mx) * (y - my)); c.sum("R", ((y - my) - b / a * (x - mx)) ** 2.0)
@case(3, refuse={"A": "nonlinear", "B": "nonlinear"})
def three_passes(c):
    m = c.max("m", c.x()); a = c.sum("A", tanh(c.x() - m)); c.sum("B", tanh(c.x() - a))


BY_NAME = {c.name: c for c in ALL}
__all__ = ["ALL", "BY_NAME", "Case", "minv"]
