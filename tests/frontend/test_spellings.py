"""The same function spelled differently gives the same reductions, and every spelling the right numbers."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from lowering import check, shape_of

from redfuser.index.print import show_program

Tensor = torch.Tensor
Q, K, V = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
BIAS = torch.randn(5, 7)
MASK = torch.rand(5, 7) > 0.3
MASK[:, 0] = True


def by_hand(s: Tensor) -> Tensor:
    e = torch.exp(s - s.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def shifted_twice(s: Tensor) -> Tensor:
    return torch.softmax(s - s.amax(-1, keepdim=True), -1)


SOFTMAX: dict[str, Callable[[Tensor], Tensor]] = {
    "torch": lambda s: torch.softmax(s, -1),
    "functional": lambda s: F.softmax(s, dim=3),
    "method": lambda s: s.softmax(-1),
    "dtype": lambda s: F.softmax(s, -1, dtype=torch.float64).to(s.dtype),
    "by hand": by_hand,
    "amax": lambda s: (s - s.amax(-1, keepdim=True)).exp() / (s - s.amax(-1, keepdim=True)).exp().sum(-1, True),
    "shifted twice": shifted_twice,
    "exp of log": lambda s: s.log_softmax(-1).exp(),
}
SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda q, k: torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(8),
    "at": lambda q, k: (q @ k.mT) * 8**-0.5,
    "scaled query": lambda q, k: (q * 8**-0.5) @ k.transpose(2, 3),
    "einsum": lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k) / 8**0.5,
    "bmm": lambda q, k: torch.bmm(q.reshape(8, 5, 8), k.reshape(8, 7, 8).mT).view(2, 4, 5, 7) * 8**-0.5,
}
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda s: s,
    "mask + scores": lambda s: BIAS.to(s) + s,
    "scores + mask": lambda s: s + BIAS.to(s),
    "masked_fill": lambda s: s.masked_fill(~MASK, float("-inf")),
    "where": lambda s: torch.where(MASK, s, float("-inf")),
    "arange": lambda s: s.masked_fill(torch.arange(7) > torch.arange(5)[:, None], float("-inf")),
    "tril": lambda s: s.masked_fill(torch.ones(5, 7, dtype=torch.bool).tril().logical_not(), -math.inf),
    "triu": lambda s: s + torch.full((5, 7), -math.inf).triu(1).to(s),
}
ATTENTION = [("max", 3, 1), ("sum", 3, 1), ("sum", 4, 1), ("sum", 4, 1)]


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_softmax(softmax: str) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return SOFTMAX[softmax](SCORES["at"](q, k)) @ v

    assert shape_of(check(f, Q, K, V)) == ATTENTION


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_scores_and_masks(scores: str, mask: str) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return MASKS[mask](SCORES[scores](q, k)).softmax(-1) @ v

    assert shape_of(check(f, Q, K, V)) == ATTENTION


def test_softmax_without_a_maximum() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = (q @ k.mT).exp()
        return (e @ v) / e.sum(-1, keepdim=True)

    assert shape_of(check(f, Q, K, V)) == [("sum", 3, 1), ("sum", 4, 1), ("sum", 4, 1)]


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_any_number_of_batch_dimensions(batch: tuple[int, ...]) -> None:
    q, k = torch.randn(*batch, 5, 8), torch.randn(*batch, 7, 8)
    kept = len([n for n in batch if n != 1])
    expected = [("max", kept + 1, 1), ("sum", kept + 1, 1), ("sum", kept + 2, 1), ("sum", kept + 2, 1)]
    assert shape_of(check(lambda q, k: (q @ k.mT).softmax(-1) @ k, q, k)) == expected


@pytest.mark.parametrize("keys", [5, 7, 3])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_scaled_dot_product_attention(keys: int, mask: str) -> None:
    q, k, v = Q, torch.randn(2, 4, keys, 8), torch.randn(2, 4, keys, 8)
    given = {"bool": torch.rand(5, keys) > 0.4, "float": torch.randn(5, keys)}.get(mask)

    def f(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=mask == "causal")

    assert shape_of(check(f, q, k, v, given)) == ATTENTION


def test_fully_masked_row_is_zero() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3), Q, K, V, mask)


def test_shared_heads_are_an_axis_of_their_own() -> None:
    k, v = torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    spelled = {
        "flag": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "repeat_interleave": lambda q, k, v: (
            (q @ k.repeat_interleave(2, 1).mT * 8**-0.5).softmax(-1) @ v.repeat_interleave(2, 1)
        ),
        "expand": lambda q, k, v: (
            (q @ repeated(k).mT * 8**-0.5).softmax(-1) @ repeated(v)
        ),
        "five dimensions": lambda q, k, v: (
            (q.view(2, 2, 2, 5, 8) @ k[:, :, None].mT * 8**-0.5).softmax(-1) @ v[:, :, None]
        ).view(2, 4, 5, 8),
    }  # fmt: skip
    shapes = {name: shape_of(check(f, Q, k, v)) for name, f in spelled.items()}
    expected = [("max", 4, 1), ("sum", 4, 1), ("sum", 5, 1), ("sum", 5, 1)]
    assert shapes == dict.fromkeys(spelled, expected)


def repeated(x: Tensor) -> Tensor:
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)


def test_heads_inside_the_model_dimension() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = ((x @ w[i]).view(b, s, 4, 4).transpose(1, 2) for i in range(3))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(b, s, 16)

    found = shape_of(check(f, torch.randn(2, 5, 16), torch.randn(3, 16, 16)))
    assert found == [("max", 3, 1), *[("sum", 3, 1)] * 4, ("sum", 4, 1), ("sum", 4, 1)]


def test_an_appended_score_becomes_a_term() -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        s = torch.cat([q @ k.mT, sink.view(1, 4, 1, 1).expand(2, 4, 5, 1)], -1)
        s = s - s.max(-1, keepdim=True).values
        return s.softmax(-1)[..., :-1] @ v

    lowered = check(f, Q, K, V, torch.randn(4))
    assert shape_of(lowered) == ATTENTION
    assert all(d.over[0].size.value in (7, 8) for d in lowered.program.reductions)


def test_variance_twice_is_one() -> None:
    lowered = check(lambda x: x.var(-1) + x.std(-1) + (x - x.mean(-1, keepdim=True)).square().mean(-1), Q[0, 0])
    assert shape_of(lowered) == [("sum", 1, 1), ("sum", 1, 1)]


def test_residual_stream_is_stored() -> None:
    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        h = F.layer_norm(x @ a, (8,))
        return F.layer_norm(h + (h @ b).relu(), (8,))

    lowered = check(f, Q[0, 0], K[0, 0, :, :].mT @ V[0, 0], V[0, 1, :, :].mT @ K[0, 1])
    stored = [d for d in lowered.program.definitions[:-1] if not hasattr(d, "over")]
    assert len(stored) == 1


def test_causal_masks_have_one_form() -> None:
    i, l = torch.arange(5)[:, None], torch.arange(7)
    ones = torch.ones(5, 7, dtype=torch.bool)
    spelled: list[Callable[[Tensor], Tensor]] = [
        lambda s: torch.where(l_() <= i_(), s, -torch.inf),
        lambda s: torch.where(i_() >= l_(), s, -torch.inf),
        lambda s: s.masked_fill(l_() > i_(), -torch.inf),
        lambda s: s.masked_fill(~(l_() - i_() < 1), -torch.inf),
        lambda s: s.masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(1), -torch.inf),
        lambda s: s.masked_fill(~torch.ones(5, 7, dtype=torch.bool).tril(), -torch.inf),
        lambda s: s.masked_fill(torch.ones(5, 7).tril() == 0, -torch.inf),
        lambda s: s.masked_fill((l_() <= i_()).int() != 1, -torch.inf),
    ]
    assert (l <= i).equal(ones.tril())
    programs = [check(lambda s, f=f: f(s).amax(-1), torch.randn(5, 7)).program for f in spelled]
    bodies = {show_program(p).split(" of ")[1].split("\n")[0] for p in programs}
    assert bodies == {"where(l <= i, s[i, l], -inf)"}


def i_() -> Tensor:
    return torch.arange(5)[:, None]


def l_() -> Tensor:
    return torch.arange(7)


def test_a_difference_from_its_logsumexp_is_a_log_softmax() -> None:
    t = torch.rand(5, 7)
    by_logsumexp = check(lambda x, t: (t * (x - x.logsumexp(-1, keepdim=True))).sum(-1), torch.randn(5, 7), t)
    by_softmax = check(lambda x, t: (t * x.log_softmax(-1)).sum(-1), torch.randn(5, 7), t)
    texts = [show_program(p.program).replace("log_softmax", "logsumexp") for p in (by_logsumexp, by_softmax)]
    assert texts[0] == texts[1]
