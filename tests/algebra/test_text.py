"""What the user reads: one statement per line, results instead of their guarded bases, guards as comments."""

from __future__ import annotations

from redfuser.algebra.derive import derive

from .cascades import ALL, BY_NAME


def report(name: str, stage: str):
    d = derive(BY_NAME[name].problem(), **BY_NAME[name].options)
    return next(r for r in d.reports if r.stage == stage)


def test_rescale():
    z = report("attention", "Z")
    assert z.update == "Z <- Z' * exp(m' - m) + sum(exp(x - m))    # 0 stands for m while m is -inf"
    assert z.merge == "Z <- Z.a * exp(m.a - m) + Z.b * exp(m.b - m)    # 0 stands for m while m is -inf"


def test_rebase_shows_the_base_and_its_move_once():
    assert report("variance", "M2").update.splitlines() == [
        "M2_n <- M2_n' + sum(1)",
        "s_mean <- s / M2_n    # 0 while M2_n is 0",
        "d <- s_mean - s_mean'",
        "M2 <- M2' - d * (2 * M2_1' - d * M2_n') + sum((x - s_mean)**2)    # kept while M2' is infinite",
        "M2_1 <- M2_1' - d * M2_n' + sum(x - s_mean)    # kept while M2_1' is infinite",
    ]
    assert "d.a, d.b <- s_mean - s_mean.a, s_mean - s_mean.b" in report("variance", "M2").merge.splitlines()


def test_a_scale_that_cannot_divide():
    assert report("scaled_norm", "q").update == (
        "q <- q' * (a' / a)**2 + sum((x / a)**2)    # 1 stands for a while a is 0 or infinite"
    )


def test_every_text_is_short_statements():
    for case in ALL:
        d = derive(case.problem(), **case.options)
        for r in d.reports:
            for line in (*r.update.splitlines(), *r.merge.splitlines()):
                code = line.split("    # ")[0]
                assert " <- " in code and ";" not in code and "' == " not in code, (case.name, line)
