"""A fused cascade as one file that needs torch and a C++ compiler: the kernels, how they are compiled, and a check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from redfuser.backends.cpu.compile import Compiler
from redfuser.backends.cpu.emit import Source
from redfuser.backends.cpu.writer import FIRST_TENSOR, runtime_text
from redfuser.backends.listing import Listing
from redfuser.backends.script import CHECK, ERROR, Part, sentence, tidied, tuple_of
from redfuser.backends.tidy import paragraph
from redfuser.backends.torch_expr import TORCH
from redfuser.tile.nodes import Kind, Strategy
from redfuser.tile.strategy import Schedule

Printer = Callable[[Listing], Source]
_TAKEN = ("ctypes", "subprocess", "tempfile", "Path", "array", "RUNTIME", "COMPILE", "library", "openmp", "compiled")


def script(listings: Sequence[Listing], printer: Printer, compiler: Compiler, target: str) -> str:
    """The file of one cascade, or of several of one function."""
    many = len(listings) > 1
    parts = [_Part(x, printer, f"_{n}" if many else "") for n, x in enumerate(listings, 1)]
    command = [*("python" if c == sys.executable else c.rsplit("/", 1)[-1] for c in compiler.command)]
    flags = [*compiler.flags(target), "-shared"]
    blocks = [_head(parts, " ".join([*command, *flags]))]
    for p in parts:
        blocks += [f"SOURCE{p.suffix} = r'''\n{p.source.text}'''", p.launch(), p.reference(), p.examples()]
    start = ["sys.executable" if c == sys.executable else repr(c) for c in compiler.command]
    build = _BUILD.replace("COMMAND", f"[{', '.join([*start, *map(repr, flags)])}]")
    blocks += [ERROR, CHECK, build, f"# the runtime header of the kernels\nRUNTIME = r'''\n{_flat()}'''", _main(parts)]
    return "\n\n\n".join(b.strip("\n") for b in blocks) + "\n"


class _Part(Part):
    def __init__(self, x: Listing, printer: Printer, suffix: str) -> None:
        super().__init__(x, suffix, _TAKEN)
        self.source = printer(self.x)

    def launch(self) -> str:
        s, program = self.subject, self.x.program
        lines = [f"def fused{self.suffix}({', '.join(self.parameters)}):"]
        lines.append(f'    """{s.function} in C++; takes tensors with any strides."""')
        lines += [f"    {name} = {text}" for name, text in s.lengths]
        for t in program.of(Kind.INPUT):
            name, shape = self.python[t.name], tuple_of([self.length(i) for i in t.shape])
            lines.append(f"    assert {name}.shape == {shape} and {name}.dtype == {TORCH[t.dtype]}")
        for t in self.made:
            note = "  # partial states" if t.kind is Kind.SCRATCH else ""
            shape = tuple_of([self.length(i) for i in t.shape])
            lines.append(f"    {self.python[t.name]} = torch.empty({shape}, dtype={TORCH[t.dtype]}){note}")
        tensors = tuple_of([self.python[t.name] for t in program.tensors])
        lengths = "".join(f", {n}" for n in self.source.sizes)
        lines.append(f"    tensors = {tensors}")
        lines.append("    strides = [n for x in tensors for n in x.stride()]")
        lines.append(
            f"    numbers = [*openmp(), *([0] * {FIRST_TENSOR - 2}), *(x.data_ptr() for x in tensors), *strides{lengths}]"
        )
        lines.append(f"    library(SOURCE{self.suffix}).{self.source.name}((ctypes.c_int64 * len(numbers))(*numbers))")
        lines.append(f"    return {', '.join(self.python[t.name] for t in program.of(Kind.OUTPUT))}")
        return tidied(lines)

    def said(self) -> list[str]:
        text = f"Schedule{self.suffix.replace('_', ' ')}: {_schedule(self.schedule)}. {sentence(self.x.why)}"
        return [*(f"    {x}" for x in self.subject.summary), "", *paragraph(text)]


def _schedule(s: Schedule) -> str:
    parts = f", {s.segments} segments" if s.strategy is Strategy.MULTI else ""
    tile = "" if s.strategy is Strategy.WHOLE else f", tiles of {s.tile}"
    lanes = f", {s.vector} axes in lanes" if s.vector is not None else ""
    return f"{s.strategy}{parts}, rows by {s.row}{tile}{lanes}"


def _flat() -> str:
    """The runtime header as one text that includes nothing."""
    lines = runtime_text().splitlines()
    return "\n".join(x for x in lines if not x.startswith(("#pragma once", "#include"))) + "\n"


def _head(parts: Sequence[_Part], command: str) -> str:
    lines = [f"{parts[0].subject.function}, fused. Printed by redfuser as C++; needs torch and a compiler."]
    for p in parts:
        lines += ["", *p.said()]
    lines += [
        "",
        "    python FILE    compiles the kernels and checks them against eager PyTorch",
        "",
        "They are compiled with",
    ]
    lines += ["", *(f"    {x.strip()}" for x in paragraph(f"{command} -o kernels.so kernels.cpp"))]
    text = "\n".join(x.replace("\\", "\\\\").replace('"""', "'''") for x in lines)
    imports = "\n".join(f"import {m}" for m in ("ctypes", "functools", "math", "subprocess", "sys", "tempfile"))
    return f'"""{text}\n"""\n\n{imports}\nfrom pathlib import Path\n\nimport torch'


_BUILD = '''
COMPILE = COMMAND


@functools.cache
def library(source):
    """The kernels, compiled and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        Path(folder, "redfuser.h").write_text(RUNTIME)
        # the size of a lane is said before the header; the header stands where it is included
        file.write_text(source)
        subprocess.run([*COMPILE, "-o", str(out), str(file)], check=True)
        return ctypes.CDLL(str(out))


def openmp():
    """The addresses of what starts and counts threads in the OpenMP that PyTorch has loaded."""
    found = [*Path(torch.__file__).parent.glob("lib/libtorch_cpu.*")]
    try:
        loaded = ctypes.CDLL(str(found[0]))
        return [ctypes.cast(f, ctypes.c_void_p).value for f in (loaded.GOMP_parallel, loaded.omp_get_max_threads)]
    except (IndexError, AttributeError, OSError):
        return [0, 0]
'''


def _main(parts: Sequence[_Part]) -> str:
    checks = ", ".join(p.check() for p in parts)
    good = checks if len(parts) == 1 else f"all([{checks}])"
    lines = ['if __name__ == "__main__":', '    device = "cpu"', f"    sys.exit(0 if {good} else 1)"]
    return tidied(lines)
