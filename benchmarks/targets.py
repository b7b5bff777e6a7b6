"""What the suites are to show, as data: on an H200, and for the suite of CPUs on two cores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Figure(Enum):
    """What a target bounds."""

    RATIO = "ratio"  # the alternative takes at least so many times as long as redfuser
    FLOOR = "floor"  # redfuser takes at most so many times the floor
    TIME = "time"  # redfuser takes at most so many microseconds


@dataclass(frozen=True)
class Target:
    """A bound on every entry whose name matches the pattern."""

    entries: str
    alternative: str  # empty unless the figure is a ratio
    bound: float
    figure: Figure = Figure.RATIO
    graph: bool = False  # of graph replays, where launches dominate
    stretch: bool = False  # reported, and not failed


def _floor(pattern: str, bound: float) -> Target:
    return Target(pattern, "", bound, Figure.FLOOR)


TARGETS: tuple[Target, ...] = (
    # attention as plain PyTorch
    Target("attention-*", "sdpa-flash", 1.0),
    Target("causal", "sdpa-flash", 1.0),
    *(Target(f"attention-{n}", "sdpa-cudnn", 0.85) for n in ("bert", "llama-7b", "long")),
    Target("attention-*", "flex", 1.0),
    # variants: all that FlexAttention expresses, and torch.compile
    *(Target(n, "flex", 1.0) for n in ("causal", "soft-cap", "alibi", "window", "prefix-lm", "documents")),
    *(Target(n, "flex", 1.0) for n in ("sink", "bias", "cosine")),
    *(Target(n, "compile", 6.0) for n in ("causal", "alibi", "window", "prefix-lm", "documents", "sink", "bias")),
    Target("soft-cap", "compile", 3.0),
    # decoding
    Target("gqa-decode-*", "sdpa-flash", 1.0, graph=True),
    Target("gqa-decode-*", "sdpa-cudnn", 0.9, graph=True),
    Target("mla-decode-*", "compile", 1.0),
    Target("mla-decode-b1", "", 20.0, Figure.TIME, graph=True, stretch=True),
    Target("mla-decode-b128", "", 700.0, Figure.TIME, stretch=True),
    # routing
    Target("route-256", "compile", 8.0, graph=True),
    Target("route-128", "compile", 8.0, graph=True),
    # bound by memory
    *(Target(f"{n}-1x16777216", "compile", 2.0) for n in ("logsumexp", "variance", "softmax")),
    # rows of 100 MB and more: all but the single ones
    *(_floor(f"{n}-[!1]*", 1.2) for n in ("logsumexp", "entropy", "variance", "cross-entropy")),
    *(_floor(f"{n}-[!1]*", 1.2) for n in ("softmax", "layer-norm")),
    # everything
    Target("*", "compile", 0.95),
    Target("*", "compile-max", 0.95),
)


def _cpu(name: str, bound: float, *alternatives: str, stretch: bool = False) -> tuple[Target, ...]:
    return tuple(Target(name, a, bound, stretch=stretch) for a in alternatives or ("eager", "compile"))


CPU_TARGETS: tuple[Target, ...] = (
    *_cpu("attention", 1.0, "sdpa-flash"),
    *_cpu("causal", 1.15, "sdpa-flash"),
    *_cpu("soft-cap", 3.0),
    *_cpu("decode", 0.9, "sdpa-flash"),
    *_cpu("attention-bf16", 1.0, "sdpa-flash"),
    *_cpu("logsumexp", 1.5),
    *_cpu("entropy", 4.0),
    *_cpu("variance", 1.2),
    *_cpu("inertia", 1.8),
    *_cpu("route", 4.0),
    *_cpu("softmax", 1.0),
    *_cpu("rmsnorm-gemm", 0.95, stretch=True),
    # at least 70 % of the read bandwidth
    *(Target(n, "", 1 / 0.7, Figure.FLOOR) for n in ("logsumexp", "entropy", "variance")),
)
