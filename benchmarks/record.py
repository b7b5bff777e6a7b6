"""The figures of one entry, as they are written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.accuracy import Error

DONE, SKIPPED, FAILED = "done", "skipped", "failed"


@dataclass
class Measured:
    """One alternative: its times in microseconds, or why there are none."""

    status: str = DONE
    reason: str = ""
    us: float | None = None  # median over rounds, called from Python
    us_range: tuple[float, float] | None = None
    graph_us: float | None = None  # median, of replays of a CUDA graph
    graph_reason: str = ""
    error: Error | None = None
    difference: float | None = None  # of the whole outputs from those of the first alternative that ran
    within_contract: bool | None = None
    agrees: bool | None = None  # whole outputs, with those of the first
    notes: list[str] = field(default_factory=list)  # warnings on the way; what redfuser decided
    prepare_s: float | None = None  # compiling, tuning and the first call


@dataclass
class Record:
    """One entry, with all that a reader needs to know how it came about."""

    name: str
    suite: str
    shape: str
    quick: bool
    flops: float
    bytes: int
    floor_us: float
    ceilings: dict[str, float]
    input_sets: int
    rounds: int
    eager_error: Error | None
    alternatives: dict[str, Measured] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # set where the entry as a whole failed

    def time(self, alternative: str, graph: bool = False) -> float | None:
        found = self.alternatives.get(alternative)
        return None if found is None else found.graph_us if graph else found.us

    def ratio(self, alternative: str, graph: bool = False) -> float | None:
        """How many times as long as redfuser the alternative takes: above 1, redfuser is faster."""
        ours, theirs = self.time("redfuser", graph), self.time(alternative, graph)
        return None if ours is None or theirs is None else theirs / ours

    def floor_ratio(self, graph: bool = False) -> float | None:
        """How many times the floor redfuser takes."""
        ours = self.time("redfuser", graph)
        return None if ours is None or not self.floor_us else ours / self.floor_us

    def to_dict(self) -> dict[str, Any]:
        ratios = {n: self.ratio(n) for n in self.alternatives if n != "redfuser"}
        graph = {n: self.ratio(n, True) for n in self.alternatives if n != "redfuser"}
        return asdict(self) | {
            "ratios": {n: r for n, r in ratios.items() if r is not None},
            "graph_ratios": {n: r for n, r in graph.items() if r is not None},
            "floor_ratio": self.floor_ratio(),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Record:
        known = {k: v for k, v in data.items() if k not in ("ratios", "graph_ratios", "floor_ratio")}
        known["eager_error"] = _error(known["eager_error"])
        known["alternatives"] = {
            name: Measured(**{**m, "error": _error(m["error"])}) for name, m in known["alternatives"].items()
        }
        return Record(**known)


def _error(data: dict[str, float] | None) -> Error | None:
    return None if data is None else Error(**data)
