"""Low precision, integers and booleans, as PyTorch promotes and rounds them."""

import pytest
import torch
import torch.nn.functional as F
from lowering import check, traced

from redfuser.frontend.lower import lower
from redfuser.index.expr import Cast, DType, walk
from redfuser.index.nodes import Reduce

LOW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.softmax(-1),
        lambda x: F.layer_norm(x, (8,)),
        lambda x: F.rms_norm(x, (8,), eps=1e-5),
        lambda x: x.mean(-1),
        lambda x: x.var(-1),
        lambda x: x.sum(-1),
        lambda x: x.float().to(torch.bfloat16).float() * 3,
        lambda x: (x @ x.mT).amax(-1),
        lambda x: x * 0.1,
    ],
)
def test_rounded(fn: object, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    check(fn, torch.randn(6, 8).to(dtype), rounded=True, tolerance=2 * eps)  # type: ignore[arg-type]


def test_softmax_rounds_once() -> None:
    lowered = lower(traced(lambda x: x.softmax(-1), [torch.randn(4, 6).bfloat16()])[0])
    reductions = [d for d in lowered.program.definitions if isinstance(d, Reduce)]
    assert {d.dtype for d in reductions} == {DType.FLOAT32}
    casts = [e for d in lowered.program.definitions for e in walk(d.body) if isinstance(e, Cast)]
    assert [c.dtype for c in casts] == [DType.BFLOAT16]


def test_no_rounding_between_elementwise_operations() -> None:
    lowered = lower(traced(lambda x: ((x + 1) * x).exp().sum(-1), [torch.randn(4, 6).bfloat16()])[0])
    (d,) = (d for d in lowered.program.definitions if isinstance(d, Reduce))
    assert not any(isinstance(e, Cast) for e in walk(d.body))
    assert d.dtype is DType.BFLOAT16


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_wraparound(dtype: torch.dtype) -> None:
    x = torch.randint(0, 120, (4, 6)).to(dtype)
    check(lambda x: (x * 3 + 100, x - 101, (x * x).sum(-1), -x, x.amax(-1)), x)


def test_bits() -> None:
    a, b = torch.randint(0, 99, (2, 4, 6)).unbind()
    check(lambda a, b: (a & b, a | b, a ^ b, ~a), a, b)


def test_quantised() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().clamp(-128, 127).to(torch.int8).to(x.dtype) @ x.mT * scale

    check(f, torch.randn(5, 8))


def test_float8() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = 448.0 / x.abs().amax(-1, keepdim=True)
        return (x * scale).to(torch.float8_e4m3fn).float().sum(-1)

    check(f, torch.randn(5, 8), rounded=True, tolerance=1e-4)


def test_mean_of_integers_raises_as_eager() -> None:
    with pytest.raises(Exception, match="dtype"):
        traced(lambda x: x.mean(), [torch.arange(3)])
