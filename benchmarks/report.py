"""Results as text: the Markdown file, and the short table that a run ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from benchmarks.alternatives import ALTERNATIVES
from benchmarks.record import FAILED, SKIPPED, Record

_FACTS = ("device", "torch", "triton", "cuda", "cudnn", "python", "redfuser", "options", "commit", "source")
_RUN = ("date", "command")


def _columns(records: Sequence[Record]) -> list[str]:
    used = {n for r in records for n in r.alternatives}
    return [n for n in ALTERNATIVES if n in used and n != "redfuser"]


def _time(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _cell(record: Record, name: str, graph: bool = False) -> str:
    found = record.alternatives.get(name)
    if found is None:
        return ""
    if found.status in (FAILED, SKIPPED):
        return found.status
    return _ratio(record.ratio(name, graph))


def _errors(record: Record) -> str:
    ours = record.alternatives.get("redfuser")
    mine = "-" if ours is None or ours.error is None else f"{ours.error.norm:.1e}"
    eager = "-" if record.eager_error is None else f"{record.eager_error.norm:.1e}"
    return f"{mine} / {eager}{'' if ours is None or ours.within_contract is not False else ' !'}"


def markdown(suite: str, records: Sequence[Record]) -> str:
    """Times of redfuser, ratios of the others, floor, errors; then what failed, and where each figure came from."""
    names = _columns(records)
    lines = [f"# Suite {suite}", ""]
    lines += [
        "Times are medians in µs. Under an alternative: its time over redfuser's, so above 1 redfuser is faster.",
        "`!`: an error above twice eager's plus a rounding.",
        "",
    ]
    lines += _table(records, names, graph=False)
    if any(m.graph_us is not None for r in records for m in r.alternatives.values()):
        captured = [r for r in records if any(m.graph_us is not None for m in r.alternatives.values())]
        lines += ["", "Replayed from a CUDA graph, without the time of launching from Python:", ""]
        lines += _table(captured, names, graph=True)
    notes = [
        f"- {r.name}, {n}: {m.status}: {' '.join(m.reason.split())[:300]}"
        for r in records
        for n, m in r.alternatives.items()
        if m.reason
    ]
    notes += [
        f"- {r.name}, {n}: no graph: {' '.join(m.graph_reason.split())[:200]}"
        for r in records
        for n, m in r.alternatives.items()
        if m.graph_reason
    ]
    notes += [f"- {r.name}: {' '.join(r.reason.split())[:300]}" for r in records if r.reason]
    if notes:
        lines += ["", "What was not measured:", "", *notes]
    lines += ["", "Where it was measured:", ""]
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in records:
        facts = tuple(str(r.environment.get(f, "")) for f in _FACTS)
        groups.setdefault(facts, []).append(r)
    for members in groups.values():
        lines += [f"- entries: {', '.join(m.name for m in members)}"] if len(groups) > 1 else []
        lines += [f"- {f}: {members[-1].environment[f]}" for f in (*_FACTS, *_RUN) if members[-1].environment.get(f)]
        c = members[0].ceilings
        lines += [_ceilings(suite, c)]
    return "\n".join(lines) + "\n"


def _ceilings(suite: str, c: Mapping[str, float]) -> str:
    if suite == "cpu":
        return (
            f"- ceilings: {c['flops'] / 1e9:.0f} GFLOP/s float32 (multiply-adds), {c['bandwidth'] / 1e9:.1f} GB/s read"
        )
    return f"- ceilings: {c['flops'] / 1e12:.1f} TFLOP/s bf16, {c['bandwidth'] / 1e9:.0f} GB/s (read and write)"


def _table(records: Sequence[Record], names: Sequence[str], graph: bool) -> list[str]:
    head = ["entry", "shape", "redfuser", *names, "floor", "x floor", "error / eager's"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in records:
        ours = r.alternatives.get("redfuser")
        mine = ours.status if ours is not None and ours.reason else _time(r.time("redfuser", graph))
        cells = [r.name, r.shape, mine, *(_cell(r, n, graph) for n in names)]
        cells += [_time(r.floor_us), _ratio(r.floor_ratio(graph)), _errors(r)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def short_table(records: Sequence[Record]) -> Table:
    """For a terminal. A second figure after a slash is that of graph replays."""
    names = _columns(records)
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("entry", no_wrap=True)
    for title in ("redfuser µs", *names, "x floor", "error / eager's"):
        table.add_column(title, justify="right", no_wrap=True)

    def both(call: str, replayed: str) -> str:
        return call if replayed in ("-", "", "failed", "skipped") else f"{call}/{replayed}"

    for r in records:
        ours = r.alternatives.get("redfuser")
        mine = both(_time(r.time("redfuser")), _time(r.time("redfuser", True)))
        if ours is not None and ours.reason:
            mine = ours.status
        ratios = [both(_cell(r, n), _cell(r, n, True)) for n in names]
        table.add_row(r.name, mine, *ratios, both(_ratio(r.floor_ratio()), _ratio(r.floor_ratio(True))), _errors(r))
    return table
