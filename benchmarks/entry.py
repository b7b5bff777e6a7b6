"""What one comparison is made of: a plain function, its inputs, how much work it is, and other ways to compute it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = tuple[Tensor, ...]
Outputs = tuple[Tensor, ...]
Function = Callable[..., "Tensor | Outputs"]


class Maker:
    """Draws the inputs of an entry from one seeded generator, on one device."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def normal(self, *size: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        """Normal numbers of the given deviation, drawn in float32 and rounded."""
        drawn = torch.empty(size, device=self.device, dtype=torch.float32 if dtype == torch.float64 else dtype)
        drawn.normal_(0.0, scale, generator=self.generator)
        return drawn.to(dtype)

    def integers(self, high: int, *size: int) -> Tensor:
        return torch.randint(high, size, device=self.device, generator=self.generator)


@dataclass(frozen=True)
class Sample:
    """A part of the problem small enough for float64: how to cut it from the inputs and from the outputs."""

    inputs: Callable[[Inputs], Inputs]
    outputs: Callable[[Outputs], Outputs]


@dataclass(frozen=True)
class Entry:
    """One comparison. The bytes of the floor are those of the inputs and outputs, each moved once."""

    name: str
    suite: str
    shape: str
    fn: Function  # plain PyTorch, as a user would write it
    inputs: Callable[[Maker], Inputs]
    flops: float  # that any implementation must do
    samples: Sequence[Sample]
    reference: Function | None = None  # of float64 inputs, where fn itself would cast to less
    judge: Callable[[Outputs, Inputs], Outputs] | None = None  # outputs -> what can be compared as numbers
    eager_bytes: int = 0  # intermediates that are alive at once when fn runs eagerly
    sdpa: Function | None = None  # the same function by F.scaled_dot_product_attention
    sdpa_backends: tuple[str, ...] = ("flash", "cudnn")
    flex: Callable[[Inputs], Callable[[], Tensor]] | None = None  # the same function by FlexAttention, ready to call
    library: Function | None = None  # the same function by a library kernel that is neither
    library_name: str = ""
    cold: bool = False  # bound by memory: inputs rotate so that no cache holds them
    graph: bool = False  # so short that launches dominate: also timed as replays of a CUDA graph


def outputs_of(result: Tensor | Sequence[Tensor]) -> Outputs:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def leading(count: int, rows: Sequence[bool], total: int) -> tuple[Sample, ...]:
    """Samples of the first and the last ``count`` rows; ``rows`` says which inputs have that leading axis.

    All outputs have it. One sample, of everything, where ``count`` covers half of it.
    """

    def cut(part: slice) -> Sample:
        return Sample(
            lambda inputs: tuple(x[part] if is_rows else x for x, is_rows in zip(inputs, rows, strict=True)),
            lambda outputs: tuple(x[part] for x in outputs),
        )

    if 2 * count >= total:
        return (cut(slice(None)),)
    return cut(slice(0, count)), cut(slice(total - count, total))
