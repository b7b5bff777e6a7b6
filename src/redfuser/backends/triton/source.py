"""A fused cascade as one file that needs only torch and triton: the kernels, their launch, and a check against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from redfuser.backends.listing import Listing
from redfuser.backends.script import CHECK, ERROR, Part, sentence, tidied, tuple_of
from redfuser.backends.tidy import paragraph
from redfuser.backends.torch_expr import TORCH
from redfuser.backends.triton.launch import Launcher
from redfuser.backends.triton.printed import Counters, Length, Place, Pointer, Printed, Source, Stride
from redfuser.tile.nodes import Kind, Strategy
from redfuser.tile.strategy import Schedule

Launchers = Callable[[Listing], Launcher]


def script(listings: Sequence[Listing], launcher: Launchers) -> str:
    """The file of one cascade, or of several of one function. Raises Unsupported where Triton has no form for one."""
    many = len(listings) > 1
    parts = [_Part(x, launcher, f"_{n}" if many else "") for n, x in enumerate(listings, 1)]
    kernels = [k for p in parts for k in p.source.kernels]
    helpers: dict[str, None] = {}
    for p in parts:
        helpers |= dict.fromkeys(x.strip("\n") for x in p.source.helpers.split("\n\n\n") if x.strip())
    interpreted = _INTERPRETED if any(p.is_narrow for p in parts) else ""
    blocks = [*helpers, *(k.text.strip("\n") for k in kernels)]
    for p in parts:
        blocks += [p.launch(), p.reference(), p.examples()]
    blocks += [ERROR, CHECK, *([interpreted.strip("\n")] if interpreted else []), _main(parts, bool(interpreted))]
    return "\n\n\n".join([_head(parts), *(b.strip("\n") for b in blocks)]) + "\n"


class _Part(Part):
    """One cascade of a file; ``suffix`` tells its functions from those of the others."""

    def __init__(self, x: Listing, launcher: Launchers, suffix: str) -> None:
        super().__init__(x, suffix, ("triton", "tl"))
        self.source: Source = launcher(self.x).printed(self.subject.inputs, dict(self.subject.hints))

    @property
    def is_narrow(self) -> bool:
        """True where numbers are kept in a format that Triton's interpreter does not compute as a GPU does."""
        text = "".join(k.text for k in self.source.kernels) + self.source.helpers
        kept = any(t.dtype.value in ("bfloat16", "float8_e4m3fn", "float8_e5m2") for t in self.x.program.tensors)
        return kept or "tl.bfloat16" in text or "tl.float8" in text

    @property
    def obstacle(self) -> str:
        """Why Triton's interpreter cannot run the kernels."""
        return "they use instructions of the GPU" if "inline_asm" in self.source.helpers else ""

    # -- the launch --------------------------------------------------------------------------------------------------
    def launch(self) -> str:
        s = self.subject
        lines = [f"def fused{self.suffix}({', '.join(self.parameters)}):"]
        doc = f"{s.function} by {_count(len(self.source.kernels), 'kernel')}; takes tensors with any strides."
        if any(k.bulk for k in self.source.kernels):
            doc = f"{s.function} by {_count(len(self.source.kernels), 'kernel')}; tiles come by the bulk copy engine."
        lines.append(f'    """{doc}"""')
        lines += [f"    {name} = {text}" for name, text in s.lengths]
        lines += [f"    {x}" for x in self.shapes()]
        device = self.device()
        lines += [f"    {n} = {n}.to({device})" for n in self.scalars()]
        for t in self.made:
            note = "  # partial states" if t.kind is Kind.SCRATCH else ""
            shape = tuple_of([self.length(i) for i in t.shape])
            lines.append(
                f"    {self.python[t.name]} = torch.empty({shape}, dtype={TORCH[t.dtype]}, device={device}){note}"
            )
        for k in self.source.kernels:
            lines += [f"    {x}" for x in self.call(k)]
        results = [self.python[t.name] for t in self.x.program.of(Kind.OUTPUT)]
        lines.append(f"    return {', '.join(results)}")
        return tidied(lines)

    def shapes(self) -> Iterator[str]:
        for t in self.x.program.of(Kind.INPUT):
            name, shape = self.python[t.name], tuple_of([self.length(i) for i in t.shape])
            yield f"assert {name}.shape == {shape} and {name}.dtype == {TORCH[t.dtype]}"
        copied = {pair for k in self.source.kernels for pair in k.bulk}
        for tensor, dim in sorted(copied):
            t = self.x.program.tensor(tensor)
            if t.kind is Kind.INPUT:
                yield f'assert {self.python[tensor]}.stride({dim}) == 1, "the bulk copy engine needs contiguous rows"'

    def device(self) -> str:
        largest = max(zip(self.subject.inputs, self.subject.parameters, strict=False), key=lambda x: x[0].dim())
        return f"{largest[1]}.device"

    def scalars(self) -> list[str]:
        inputs = list(zip(self.subject.inputs, self.subject.parameters, strict=False))
        return [n for x, n in inputs if x.dim() == 0] if any(x.dim() for x, _ in inputs) else []

    def call(self, k: Printed) -> Iterator[str]:
        blocks = {b.name: b.value for b in k.blocks}
        given = []
        for b in k.blocks:
            if b.size is None:
                given.append(f"{b.name}={b.value}")
            else:
                local = b.name.lower()
                yield f"{local} = triton.next_power_of_2({self.length(b.size)})"
                given.append(f"{b.name}={local}")

        def programs(grid: Sequence[Place]) -> str:
            counts = []
            for p in grid:
                text, step = self.length(p.positions), p.step
                if step is not None:
                    value = blocks.get(step, step)
                    text = f"triton.cdiv({text}, {step.lower() if value is None else value})"
                counts.append(f"({text})" if step is None and not text.isidentifier() and not text.isdigit() else text)
            return " * ".join(counts) or "1"

        arguments = []
        for _, a in k.arguments:
            match a:
                case Pointer():
                    arguments.append(self.python[a.tensor])
                case Counters():
                    assert k.meeting is not None
                    yield f"arrived = torch.zeros({programs(k.meeting)}, dtype=torch.int32, device={self.device()})"
                    arguments.append("arrived")
                case Stride():
                    arguments.append(f"{self.python[a.tensor]}.stride({a.dim})")
                case Length():
                    arguments.append(a.size)
        if k.bulk:
            yield 'triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))'
        given += [f"num_warps={self.schedule.warps}", f"num_stages={self.schedule.stages}"]
        yield f"grid = ({programs(k.grid)},)"
        yield f"{k.name}[grid]({', '.join([*arguments, *given])})"

    def said(self) -> list[str]:
        """What is computed, and how it was chosen."""
        s = self.schedule
        lines = [f"    {x}" for x in self.subject.summary]
        lines += [
            "",
            *paragraph(f"Schedule{self.suffix.replace('_', ' ')}: {_schedule(s)}. {sentence(self.x.why)}"),
        ]
        return lines


def _head(parts: Sequence[_Part]) -> str:
    first = parts[0]
    lines = [f"{first.subject.function}, fused. Printed by redfuser for {first.x.target}; needs torch and triton only."]
    for p in parts:
        lines += ["", *p.said()]
    lines += ["", "    python FILE                       checks the kernels against eager PyTorch, on a GPU"]
    if not any(p.obstacle for p in parts):
        lines.append("    TRITON_INTERPRET=1 python FILE    the same on the CPU, slowly")
    text = "\n".join(x.replace("\\", "\\\\").replace('"""', "'''") for x in lines)
    return f'"""{text}\n"""\n\nimport math\nimport os\nimport sys\n\nimport torch\nimport triton\nimport triton.language as tl'


def _main(parts: Sequence[_Part], interpreted: bool) -> str:
    obstacle = next((p.obstacle for p in parts if p.obstacle), "")
    absent = "there is no GPU here" + ("" if obstacle else "; TRITON_INTERPRET=1 runs the kernels on the CPU")
    lines = ['if __name__ == "__main__":', '    interpreted = os.environ.get("TRITON_INTERPRET") == "1"']
    if obstacle:
        lines += ["    if interpreted:", f'        sys.exit("these kernels are checked on a GPU only: {obstacle}")']
    lines += [
        "    if not interpreted and not torch.cuda.is_available():",
        f'        sys.exit("{absent}")',
        '    device = "cpu" if interpreted else "cuda"',
    ]
    if interpreted:
        lines += ["    if interpreted:", "        repair_interpreter()"]
    if len(parts) == 1:
        lines.append(f"    sys.exit(0 if {parts[0].check()} else 1)")
    else:
        checks = ", ".join(p.check() for p in parts)
        lines.append(f"    sys.exit(0 if all([{checks}]) else 1)")
    return tidied(lines)


_INTERPRETED = '''
def repair_interpreter():
    """Triton's interpreter cuts bfloat16 off and loses a carry of float8; its dot multiplies the bits of bfloat16."""
    import numpy as np
    from triton.runtime import interpreter

    kinds = {
        "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
    }
    integers = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
    dot = interpreter.InterpreterBuilder.create_dot

    def convert(data, source, target, rounding_mode):
        source, target = kinds[str(source)], kinds[str(target)]
        bits = torch.from_numpy(np.array(data).view(integers[source.itemsize]).reshape(-1))
        found = bits.view(source).to(target)
        bits = found.view(getattr(torch, f"int{8 * target.itemsize}")).numpy()
        return bits.view(f"uint{8 * target.itemsize}").reshape(np.shape(data))

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle(convert(x.data, tl.bfloat16, tl.float32, None).view(np.float32), tl.float32)

    def create_dot(self, a, b, *more):
        return dot(self, widened(a), widened(b), *more)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = create_dot
'''


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _schedule(s: Schedule) -> str:
    parts = f", {s.segments} segments" if s.strategy is Strategy.MULTI else ""
    column = f", columns by {s.column}" if s.column is not None else ""
    tile = "" if s.strategy is Strategy.WHOLE else f", tiles of {s.tile}"
    lanes = f" dealt to {s.lanes} lanes, {s.run} at a time" if s.lanes else ""
    return f"{s.strategy}{parts}, rows by {s.row}{tile}{lanes}{column}, {s.warps} warps, {s.stages} stages"


__all__ = ["script"]
