"""What the machine can do at most, measured in the run that compares with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.timing import Runner, race


@dataclass(frozen=True)
class Ceilings:
    """The rate of a large bf16 GEMM on random numbers, and of a large copy (bytes read plus bytes written).

    On a CPU: of multiply-adds in float32 that wait for nothing, and of reads.
    """

    flops: float  # per second
    bandwidth: float  # bytes per second

    def floor(self, flops: float, moved: float) -> float:
        """Microseconds below which no implementation gets far."""
        return max(flops / self.flops, moved / self.bandwidth) * 1e6


def measure(device: str, quick: bool = False) -> Ceilings:
    """Matmul and copy take turns as the alternatives of an entry do, after one second of warming up."""
    cuda = torch.device(device).type == "cuda"
    if not cuda:
        from benchmarks import ceilings_cpu

        found = ceilings_cpu.measure(quick)
        if found is not None:
            return found
    n, size = (256, 2**22) if quick else (8192, 2**31)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.empty(n, n, device=device, dtype=torch.bfloat16).normal_(generator=generator) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.empty(size, device=device, dtype=torch.uint8).random_(generator=generator)
    target = torch.empty_like(source)
    runners = [
        Runner("matmul", [lambda: torch.matmul(a, b, out=product)]),
        Runner("copy", [lambda: target.copy_(source)]),
    ]
    times = race(runners, 3 if quick else 9, 0.002 if quick else 0.05, cuda, 0.0 if quick else 1.0)
    return Ceilings(2.0 * n**3 / times["matmul"].median * 1e6, 2.0 * size / times["copy"].median * 1e6)
