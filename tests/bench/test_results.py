"""Files, resuming, tables and verdicts, over records made by hand."""

import json

import pytest

from benchmarks.accuracy import Error
from benchmarks.check import Verdict, check
from benchmarks.check import main as check_main
from benchmarks.record import Measured, Record
from benchmarks.results import Results, read
from benchmarks.targets import TARGETS

HERE = {"device": "NVIDIA H200", "torch": "2.11", "source": "abc", "commit": "f00", "date": "d", "command": "c"}


def record(name="softmax-1x16777216", ours=50.0, compiled=110.0, good=True, **more):
    eager = Error(1e-3, 1e-3)
    return Record(
        name, "memory", "1x16777216 bf16", False, 1.0, 2, 40.0, {"flops": 7e14, "bandwidth": 4e12}, 2, 9, eager,
        {
            "redfuser": Measured(us=ours, us_range=(49.0, 52.0), error=Error(1e-3, 1e-3), within_contract=good, graph_us=45.0),
            "compile": Measured(us=compiled, us_range=(109.0, 111.0), error=eager, within_contract=True, agrees=True),
            "flex": Measured("failed", "RuntimeError: no\nway"),
        },
        dict(HERE), **more,
    )  # fmt: skip


def test_what_is_written_is_read_again(tmp_path):
    results = Results(tmp_path, "memory", "NVIDIA H200")
    results.add(record(), ["softmax-1x16777216"])
    assert results.path.name == "memory-nvidia-h200.json"
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".md"}
    (again,) = read(results.path).values()
    assert json.dumps(again.to_dict()) == json.dumps(record().to_dict())
    assert again.alternatives["redfuser"].error == Error(1e-3, 1e-3)
    assert again.ratio("compile") == 2.2 and again.ratio("compile", graph=True) is None
    assert again.floor_ratio() == 1.25


def test_the_table_names_times_ratios_failures_and_the_place(tmp_path):
    results = Results(tmp_path, "memory", "NVIDIA H200")
    results.add(record(good=False), ["softmax-1x16777216"])
    text = results.path.with_suffix(".md").read_text()
    assert "| softmax-1x16777216 | 1x16777216 bf16 | 50.0 |" in text
    assert "2.20" in text and "1.0e-03 / 1.0e-03 !" in text
    assert "flex: failed: RuntimeError: no way" in text
    assert "NVIDIA H200" in text and "commit: f00" in text and "CUDA graph" in text


def test_an_entry_that_left_the_suite_leaves_the_file(tmp_path):
    results = Results(tmp_path, "memory", "d")
    results.add(record("old"), ["old"])
    results.add(record("new"), ["new"])
    assert list(read(results.path)) == ["new"]


@pytest.mark.parametrize(
    ("where", "against", "quick", "expected"),
    [
        (HERE, ["redfuser", "compile"], False, True),
        (HERE, ["redfuser", "eager"], False, False),
        (HERE, ["redfuser"], True, False),
        (HERE | {"torch": "2.12"}, ["redfuser"], False, False),
        (HERE | {"source": "abd"}, ["redfuser"], False, False),
        (HERE | {"commit": "other", "date": "later"}, ["redfuser"], False, True),
    ],
)
def test_resuming_asks_for_the_same_place_and_alternatives(tmp_path, where, against, quick, expected):
    results = Results(tmp_path, "memory", "d")
    results.add(record(), ["softmax-1x16777216"])
    assert Results(tmp_path, "memory", "d").has("softmax-1x16777216", where, against, quick) is expected
    assert not results.has("another", where, against, quick)


def test_another_format_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"format": 0, "entries": []}')
    with pytest.raises(ValueError, match="format 0"):
        read(tmp_path / "x.json")


def verdicts(r):
    return {line.text: line.verdict for line in check([r])}


def test_targets_are_met_missed_or_unknown():
    met, missed = verdicts(record()), verdicts(record(ours=60.0))
    assert met["compile / redfuser 2.20 ≥ 2"] is Verdict.PASS
    assert missed["compile / redfuser 1.83 ≥ 2"] is Verdict.FAIL
    assert verdicts(record(compiled=None))["compile / redfuser ≥ 2: no figure"] is Verdict.UNKNOWN
    assert Verdict.NOT_RUN in met.values()  # compile-max


def test_floor_stretch_and_graph_targets():
    row = record("entropy-8192x8192", ours=50.0)
    assert verdicts(row)["redfuser / floor 1.12 ≤ 1.2"] is Verdict.PASS  # of the replays
    row.alternatives["redfuser"] = Measured(us=50.0, us_range=(49.0, 52.0))
    assert verdicts(row)["redfuser / floor 1.25 ≤ 1.2"] is Verdict.FAIL
    mla = record("mla-decode-b1", compiled=100.0)
    assert verdicts(mla)["redfuser µs in a graph 45.00 ≤ 20"] is Verdict.SHORT


def test_the_contract_is_a_target_of_every_entry():
    text = "error 1.0e-03, eager's 1.0e-03"
    assert verdicts(record())[text] is Verdict.PASS
    assert verdicts(record(good=False))[text] is Verdict.FAIL
    apart = record()
    apart.alternatives["compile"].agrees = False
    assert any("whole differs" in t and v is Verdict.FAIL for t, v in verdicts(apart).items())
    failed = record()
    failed.alternatives["redfuser"] = Measured("failed", "it broke")
    assert verdicts(failed)["redfuser gave no result: it broke"] is Verdict.FAIL


def test_every_target_names_an_entry():
    import fnmatch

    from benchmarks.entries import SUITES, entries

    names = [e.name for suite in SUITES for e in entries(suite)]
    dead = [t for t in TARGETS if not any(fnmatch.fnmatchcase(n, t.entries) for n in names)]
    assert not dead


def test_the_command_tells_by_its_status(tmp_path, capsys):
    results = Results(tmp_path, "memory", "d")
    results.add(record(), ["softmax-1x16777216"])
    assert check_main([str(results.path)]) == 0
    results.add(record(ours=60.0), ["softmax-1x16777216"])
    assert check_main([str(results.path)]) == 1
    assert "FAIL     softmax-1x16777216" in capsys.readouterr().out
