"""What the files of all backends have in common: the reference, random arguments, and the check of one against the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from redfuser.backends.listing import RESERVED, Listing
from redfuser.backends.tidy import tidy
from redfuser.index.ints import Int
from redfuser.index.print import show_int
from redfuser.tile.names import Names
from redfuser.tile.nodes import Kind


class Part:
    """One cascade of a file; ``suffix`` tells its functions from those of the others, ``taken`` are names of the file."""

    def __init__(self, x: Listing, suffix: str, taken: Sequence[str]) -> None:
        program = replace(x.program, name=x.program.name + suffix)
        self.x = replace(x, program=program)
        self.subject, self.schedule, self.suffix = x.subject(), x.schedule, suffix
        count = len(self.subject.inputs)
        self.python = dict(zip((t.name for t in program.of(Kind.INPUT)), self.subject.parameters[:count], strict=True))
        names = Names((*RESERVED, *taken, *self.subject.parameters, *(n for n, _ in self.subject.lengths)))
        self.made = [t for t in program.tensors if t.kind is not Kind.INPUT]
        self.python |= {t.name: names.new(t.name) for t in self.made}
        self.names = names

    @property
    def parameters(self) -> list[str]:
        """As the user's function takes them; what it does not name comes after."""
        order = [n for n in self.subject.order if n in self.subject.parameters]
        return [*order, *(n for n in self.subject.parameters if n not in order)]

    def length(self, i: Int) -> str:
        return show_int(i)

    # -- what it is checked against ----------------------------------------------------------------------------------
    def reference(self) -> str:
        lines = [
            f"def reference{self.suffix}({', '.join(self.parameters)}, precision=None):",
            '    """The same operation by operation. ``precision`` takes the place of every dtype that floats are cast to."""',
            *(f"    {x}" for x in self.subject.reference),
            f"    return {', '.join(self.subject.results)}",
        ]
        return tidied(lines)

    def examples(self) -> str:
        given = dict(zip(self.subject.parameters, self.subject.examples, strict=True))
        lines = [
            f"def examples{self.suffix}(draw, device):",
            '    """Random arguments of the shapes, strides and dtypes that were traced."""',
        ]
        for name in self.parameters:
            x = given[name]
            lines += [f"    {line}" for line in ([f"{name} = {x}"] if isinstance(x, int) else self.example(name, x))]
        lines.append(f"    return {tuple_of(self.parameters)}")
        return tidied(lines)

    def example(self, name: str, x: Tensor) -> list[str]:
        shape = tuple_of([str(n) for n in x.shape])
        if x.dtype.is_floating_point:
            value = f"draw({shape}, device=device)"
        elif str(x.dtype) == "torch.bool":
            value = f"torch.rand({shape}, device=device) < 0.75"
        else:
            low, high = {"torch.uint8": (0, 256), "torch.int8": (-128, 128), "torch.int16": (-999, 1000)}.get(
                str(x.dtype), (0, self.subject.bound)
            )
            value = f"torch.randint({low}, {high}, {shape}, device=device)"
        to = "" if str(x.dtype) in ("torch.float32", "torch.bool", "torch.int64") else f".to({x.dtype})"
        if x.is_contiguous() or not x.numel():
            return [f"{name} = {value}{to}" if " < " not in value else f"{name} = {value}"]
        strides = tuple_of([str(n) for n in x.stride()])
        return [
            f"{name} = torch.empty_strided({shape}, {strides}, dtype={x.dtype}, device=device)",
            f"{name}.copy_({value})",
        ]

    def check(self) -> str:
        names = f"fused{self.suffix}, reference{self.suffix}, examples{self.suffix}"
        results = ", ".join(f'"{self.python[t.name]}"' for t in self.x.program.of(Kind.OUTPUT))
        return f"check({names}, [{results}], device)"


ERROR = '''
def error(got, exact):
    """Of numbers the largest difference, relative to the largest number; of integers the share that is off.

    Integers narrower than 32 bits are rounded numbers, and may be off by one.
    """
    if not exact.dtype.is_floating_point:
        step = 1 if exact.dtype.itemsize < 4 and exact.dtype != torch.bool else 0
        return ((got.long() - exact.long()).abs() > step).double().mean().item()
    got, finite = got.double(), exact.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return math.inf
    difference = (got - exact)[finite].abs().max()
    return (difference / exact[finite].abs().max().clamp_min(1e-30)).item()
'''

CHECK = '''
def check(fused, reference, examples, names, device):
    """Whether the kernels are as close to float64 as PyTorch, up to a factor of 2 and one rounding."""
    worst = {name: [0.0, 0.0, 0.0] for name in names}
    compared = set()
    for seed, draw in enumerate([torch.randn, torch.randn, torch.randn, torch.rand]):
        torch.manual_seed(seed)
        given = examples(draw, device)
        wide = [x.double() if torch.is_tensor(x) and x.dtype.is_floating_point else x for x in given]
        found = [fused(*given), reference(*given), reference(*wide, precision=torch.float64)]
        for name, ours, eager, exact in zip(names, *(x if isinstance(x, tuple) else (x,) for x in found)):
            if exact.dtype.is_floating_point and not exact.isfinite().any():
                continue
            compared.add(name)
            rounding = torch.finfo(ours.dtype).eps if ours.dtype.is_floating_point else 0.0
            a, b, _ = worst[name]
            worst[name] = [max(a, error(ours, exact)), max(b, error(eager, exact)), rounding]
    good = True
    for name, (ours, eager, rounding) in worst.items():
        holds = name in compared and ours <= 2 * eager + rounding
        good = good and holds
        verdict = "as close as PyTorch" if holds else "WRONG" if name in compared else "nothing finite to compare"
        print(f"{name}: error {ours:.2e}, of PyTorch {eager:.2e}: {verdict}")
    return good
'''


def tidied(lines: Sequence[str]) -> str:
    return "\n".join(t for line in lines for t in tidy(line))


def tuple_of(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def sentence(text: str) -> str:
    return f"Chosen: {text}." if text else ""
