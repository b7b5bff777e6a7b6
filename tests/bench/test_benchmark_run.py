"""The command from end to end, at tiny shapes on the CPU."""

import pytest

from benchmarks.results import read
from benchmarks.run import main


@pytest.fixture(autouse=True)
def _eager_rest(monkeypatch):
    monkeypatch.setenv("REDFUSER_REST", "eager")  # Inductor's compile times stay out


def test_measures_writes_and_resumes(tmp_path, capsys):
    args = ["--suite", "memory", "--device", "cpu", "--quick", "--out", str(tmp_path), "--only"]
    assert main([*args, "logsumexp-8192x8192"]) == 0
    out = capsys.readouterr().out
    assert "redfuser µs" in out and "logsumexp-8192x8192" in out
    (path,) = tmp_path.glob("*.json")
    first = read(path)["logsumexp-8192x8192"]
    assert first.alternatives["eager"].us and first.alternatives["redfuser"].within_contract
    assert first.floor_us > 0 and first.environment["options"] == "REDFUSER_REST=eager REDFUSER_TUNE=off"
    assert main([*args, "logsumexp-8192x8192", "top8-8192x8192", "--resume"]) == 0
    assert "1/2 logsumexp" not in capsys.readouterr().out
    again = read(path)
    assert again["logsumexp-8192x8192"].to_dict() == first.to_dict()
    assert again["top8-8192x8192"].alternatives["redfuser"].within_contract


def test_a_failing_alternative_is_recorded_and_the_others_are_timed(tmp_path):
    args = ["--suite", "paper", "--device", "cpu", "--quick", "--out", str(tmp_path), "--only", "attention-bert"]
    assert main([*args, "--against", "sdpa-cudnn,eager"]) == 0
    (path,) = tmp_path.glob("*.json")
    found = read(path)["attention-bert"].alternatives
    assert found["sdpa-cudnn"].status == "failed" and "RuntimeError" in found["sdpa-cudnn"].reason
    assert found["eager"].us and found["redfuser"].us


def test_a_budget_that_is_spent_begins_nothing(tmp_path, capsys):
    args = ["--suite", "memory", "--device", "cpu", "--quick", "--out", str(tmp_path), "--budget", "1"]
    assert main(args) == 3
    assert "--resume" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_list_and_mistakes(capsys):
    assert main(["--list", "--suite", "variants", "--device", "cpu", "--against", "flex"]) == 0
    out = capsys.readouterr().out
    assert "soft-cap" in out and "redfuser, flex" in out
    for wrong in (["--against", "flexx"], ["--only", "no-such-entry"], ["--suite", "other"]):
        with pytest.raises(SystemExit) as e:
            main(wrong)
        assert e.value.code == 2
    assert "known: redfuser" in capsys.readouterr().err
