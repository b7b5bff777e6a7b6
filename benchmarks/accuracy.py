"""Errors against float64, on the samples of an entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.entry import Entry, Inputs, Outputs, Sample, outputs_of


@dataclass(frozen=True)
class Error:
    """The worst over outputs and samples of ||out - ref|| / ||ref|| and of max |out - ref| / max |ref|.

    Infinite where an output is not finite and its reference is.
    """

    norm: float
    max: float


def error_of(outputs: Outputs, reference: Outputs) -> Error:
    """Equal non-finite values count as equal; shapes that differ raise ``ValueError``."""
    if len(outputs) != len(reference):
        raise ValueError(f"{len(outputs)} outputs, the reference has {len(reference)}")
    norm = worst = 0.0
    for out, ref in zip(outputs, reference, strict=True):
        if out.shape != ref.shape:
            raise ValueError(f"an output of shape {tuple(out.shape)}, the reference has {tuple(ref.shape)}")
        if out.numel() == 0:
            continue
        o, r = out.double(), ref.double()
        finite = torch.isfinite(r)
        strange = ~finite & ~((o == r) | (o.isnan() & r.isnan()))
        if bool(strange.any()) or not bool(torch.isfinite(o[finite]).all()):
            return Error(float("inf"), float("inf"))
        difference, scale = (o - r)[finite], r[finite]
        norm = max(norm, _ratio(difference.norm(), scale.norm()))
        worst = max(worst, _ratio(difference.abs().max(), scale.abs().max()) if scale.numel() else 0.0)
    return Error(norm, worst)


def _ratio(difference: Tensor, scale: Tensor) -> float:
    """Relative where there is something to relate to."""
    return float(difference / scale) if float(scale) > 0 else float(difference)


def _wide(inputs: Inputs) -> Inputs:
    return tuple(x.double() if x.dtype.is_floating_point else x for x in inputs)


class Reference:
    """The float64 results of an entry's samples, and the error that eager PyTorch makes on them."""

    def __init__(self, entry: Entry, inputs: Inputs) -> None:
        self.entry = entry
        self.parts: list[tuple[Sample, Inputs, Outputs]] = []
        eager: list[Outputs] = []
        for sample in entry.samples:
            cut = sample.inputs(inputs)
            ours = outputs_of((entry.reference or entry.fn)(*_wide(cut)))
            self.parts.append((sample, cut, self._judged(ours, cut)))
            eager.append(self._judged(outputs_of(entry.fn(*cut)), cut))
        self.eager = _worst([error_of(o, ref) for o, (_, _, ref) in zip(eager, self.parts, strict=True)])

    def error(self, outputs: Outputs) -> Error:
        """Of whole outputs: on the samples, and infinite where a whole output has a number that is not finite while
        every sample of it is."""
        for i, out in enumerate(outputs):
            comparable = out.dtype.is_floating_point and out.itemsize > 1
            expected = all(bool(torch.isfinite(ref[i]).all()) for _, _, ref in self.parts)
            if comparable and expected and not bool(torch.isfinite(out).all()):
                return Error(float("inf"), float("inf"))
        return _worst([error_of(self._judged(sample.outputs(outputs), cut), ref) for sample, cut, ref in self.parts])

    def _judged(self, outputs: Outputs, inputs: Inputs) -> Outputs:
        return outputs if self.entry.judge is None else self.entry.judge(outputs, inputs)


def _worst(errors: Sequence[Error]) -> Error:
    return Error(max(e.norm for e in errors), max(e.max for e in errors))


def difference(outputs: Outputs, others: Outputs) -> float:
    """Relative norm of the difference of whole outputs, over those that are floats; NaN never compares as equal."""
    found = 0.0
    for out, other in zip(outputs, others, strict=True):
        if out.dtype.is_floating_point and out.itemsize > 1:
            o, r = out.float(), other.float()
            same = o == r
            apart = torch.where(same, 0.0, o - r).norm()
            found = max(found, _ratio(apart, torch.where(same & r.isinf(), 0.0, r).norm()))
            if bool(apart.isnan()):
                return float("inf")
    return found


def within_contract(ours: Error, eager: Error, outputs: Outputs) -> bool:
    """The library's promise: at most twice eager's error plus one rounding of the coarsest output."""
    rounding = _rounding(outputs)
    return ours.norm <= 2 * eager.norm + rounding and ours.max <= 2 * eager.max + rounding


def agree(apart: float, eager: Error, outputs: Outputs) -> bool:
    """Whether two whole outputs are no further apart than two that both keep the promise may be."""
    return apart <= 4 * eager.norm + 2 * _rounding(outputs)


def _rounding(outputs: Outputs) -> float:
    return max((torch.finfo(o.dtype).eps for o in outputs if o.dtype.is_floating_point), default=0.0)
