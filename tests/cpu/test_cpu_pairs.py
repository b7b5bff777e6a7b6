"""Dots of bfloat16 numbers: sums of products of pairs where the machine has them (vdpbf16ps), widened numbers elsewhere."""

import ctypes
import math
import subprocess

import pytest
import torch
from catalogue import rnd
from helpers import EPS, assert_close
from native import launch, launcher
from stages import record

from redfuser.backends.cpu.compile import compile_text, find_compiler, open_library, zig
from redfuser.backends.cpu.writer import RUNTIME
from redfuser.tile.nodes import Role, Strategy
from redfuser.tile.strategy import Schedule

INF, NAN = math.inf, math.nan
BF16 = torch.bfloat16
STEP = 2.0**-23
SMALLEST = 2.0**-126  # what is smaller is subnormal
SOURCE = """
#define LANE_BYTES {lane}
#include "redfuser.h"
extern "C" void product(const i64 *a) {{
  dot(a[0], a[1], a[2], (const bf16 *)a[3], a[4], a[5], (const bf16 *)a[6], a[7], a[8], (float *)a[9], a[10], a[11] != 0);
}}
"""
TARGETS = ["native", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:sapphirerapids"]
x86 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs an x86-64 CPU"
)


def said_by_compiler(target, *arguments, text='#include "redfuser.h"\n'):
    """What the compiler prints of a source for a machine."""
    compiler = find_compiler()
    command = [*compiler.command, *compiler.flags(target), f"-I{RUNTIME}", *arguments, "-x", "c++", "-", "-o", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def has_pairs(target):
    return "#define PAIRS" in said_by_compiler(target, "-dM", "-E")


# -- the runtime header alone ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=["lanes of 4 bytes", "lanes of 8 bytes", "the compiler of the package"])
def library(request):
    packaged = request.param == "the compiler of the package"
    compiler = zig() if packaged else find_compiler()
    if compiler is None:
        pytest.skip("ziglang is not installed")
    lane = 8 if request.param == "lanes of 8 bytes" else 4
    return open_library(compile_text(SOURCE.format(lane=lane), compiler, "native"))


def product(library, left, right, add=None):
    """left @ right (+ add), float32, as the runtime header computes it."""
    (m, k), n = left.shape, right.shape[1]
    step = -(-n // 16) * 16
    c = torch.full((m, step), NAN)
    if add is not None:
        c[:, :n] = add
    numbers = [m, n, k, left.data_ptr(), *left.stride(), right.data_ptr(), *right.stride(), c.data_ptr(), step]
    library.product((ctypes.c_int64 * 12)(*numbers, add is not None))
    return c[:, :n]


def layouts(x):
    """The same matrix as it is, transposed in memory, and with gaps between its elements."""
    gaps = torch.full((*x.shape, 3), NAN, dtype=x.dtype)
    gaps[..., 1] = x
    return [x, x.t().contiguous().t(), gaps[..., 1]]


SHAPES = [
    (1, 64, 37), (2, 8, 1), (3, 40, 2), (4, 17, 3), (5, 16, 64), (7, 23, 19), (13, 40, 300), (33, 100, 71), (40, 300, 20),
    (64, 64, 64), (70, 130, 257), (130, 129, 513),
]  # fmt: skip


@pytest.mark.parametrize("m, n, k", SHAPES)
def test_any_shape_and_strides(library, m, n, k):
    a, b, c = rnd(m, k).to(BF16), rnd(k, n, seed=1).to(BF16), rnd(m, n, seed=2)
    bound = (k + 1) * STEP * (a.double().abs() @ b.double().abs() + c.double().abs())
    for left in layouts(a):
        for right in layouts(b):
            for add in (None, c):
                want = a.double() @ b.double() + (0 if add is None else c.double())
                assert bool(((product(library, left, right, add).double() - want).abs() <= bound).all())


@pytest.mark.parametrize("k", [2, 7, 64, 301])
def test_infinities_and_nan_stay_in_their_rows_and_columns(library, k):
    a, b = rnd(20, k).to(BF16), rnd(k, 37, seed=1).to(BF16)
    for value in (INF, -INF, NAN):
        for last in (k - 1, 0):
            left, right = a.clone(), b.clone()
            left[5, last] = value
            right[last, 20] = value
            for x, whole in zip(layouts(left), layouts(a), strict=True):
                for y, all_of_b in zip(layouts(right), layouts(b), strict=True):
                    got, want = product(library, x, y).double(), left.double() @ right.double()
                    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
                    assert_close(got, want, tolerance=k * STEP)
                    kept = torch.ones(20, 37, dtype=torch.bool)
                    kept[5], kept[:, 20] = False, False
                    assert torch.equal(got[kept], product(library, whole, all_of_b).double()[kept])


def test_an_infinity_times_zero(library):
    a, b = torch.zeros(8, 32, dtype=BF16), torch.zeros(32, 32, dtype=BF16)
    a[3, 4] = INF
    got = product(library, a, b)
    assert bool(got[3].isnan().all()) and float(got.nan_to_num().abs().sum()) == 0.0


@pytest.mark.parametrize("scale", [1e-18, 1e-12, 1e15, 1e18])
def test_small_and_large_values(library, scale):
    a, b = (rnd(20, 65) * scale).to(BF16), (rnd(65, 40, seed=1) * scale).to(BF16)
    assert_close(product(library, a, b), a.double() @ b.double(), tolerance=65 * STEP)
    largest = torch.full((20, 65), 3e38, dtype=BF16)
    assert bool((product(library, largest, torch.ones(65, 40, dtype=BF16)) == INF).all())


@pytest.mark.parametrize("m", [1, 4, 20])
def test_subnormal_numbers_count(library, m):
    """The machine's sums of products take them for 0; where there is one, numbers are widened."""
    small, large = (rnd(m, 33) * 1e-39).to(BF16), (rnd(33, 40, seed=1) * 1e30).to(BF16)
    assert 0 < float(small.abs().max()) < SMALLEST
    one, ones = torch.zeros(m, 33, dtype=BF16), torch.full((33, 40), 1e38, dtype=BF16)
    one[-1, -1] = 1e-39
    for a, b in ((small, large), (large.t()[:m], small.t().contiguous()), (one, ones)):
        assert_close(product(library, a, b) * 1e9, (a.double() @ b.double()) * 1e9, tolerance=33 * STEP)


def test_sums_below_the_smallest_normal_number(library):
    """They may be 0: the error of a term is at most the smallest normal number."""
    a, b = (rnd(20, 33) * 1e-20).to(BF16), (rnd(33, 40, seed=1) * 1e-20).to(BF16)
    error = (product(library, a, b).double() - a.double() @ b.double()).abs()
    assert float(error.max()) <= 2 * 33 * SMALLEST


# -- kernels -----------------------------------------------------------------------------------------------------------
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def masked(q, k, v, mask):
    return torch.softmax((q @ k.transpose(-1, -2)).masked_fill(mask, -INF), -1) @ v


def inputs(rows, length, inner, columns, scale=1.0):
    sizes = ((2, rows, inner), (2, length, inner), (2, length, columns))
    return tuple((rnd(*s, seed=n) * scale).to(BF16) for n, s in enumerate(sizes))


BY_ROWS = Schedule(Strategy.SINGLE, row=64, tile=128, vector=Role.ROW)
FORMS = [
    BY_ROWS,
    Schedule(Strategy.SINGLE, row=16, tile=19, vector=Role.ROW),
    Schedule(Strategy.SINGLE, row=32, tile=128, vector=Role.COLUMN),
    Schedule(Strategy.MULTI, row=32, tile=31, segments=3, vector=Role.ROW),
    Schedule(Strategy.SINGLE, row=4, tile=128, vector=Role.COLUMN),
]


def agrees(r, schedule, target="native"):
    """Within twice eager's error, a rounding of each term for tiles below 128, and one of the output."""
    (want,), (eager,), (got,) = r.oracle(), r.eager(), launch(r, schedule, target=target)
    # where the CPU has AMX, PyTorch's product of bfloat16 spreads a row of NaN to the row before: no error to measure by
    eager = torch.where(want.isfinite() & eager.isnan(), want, eager.double())
    n = max(max(x.shape) for x in r.inputs.values())
    assert_close(got, want, tolerance=2 * assert_close(eager, want, tolerance=0.1) + n * EPS[torch.float32] + EPS[BF16])


@pytest.mark.parametrize("schedule", FORMS, ids=["rows", "few rows", "columns", "segments", "narrow"])
@pytest.mark.parametrize("shape", [(64, 256, 64, 64), (37, 131, 15, 33), (70, 129, 5, 21), (64, 3, 1, 16)], ids=str)
def test_attention(schedule, shape):
    (r,) = record(attention, inputs(*shape))
    agrees(r, schedule)


@pytest.mark.parametrize("schedule", FORMS[:3], ids=["rows", "few rows", "columns"])
def test_strided_inputs(schedule):
    q, k, v = inputs(40, 77, 18, 20)
    turned = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    gaps = tuple(torch.stack([x, x], -1)[..., 1] for x in (q, k, v))
    for args in (turned, gaps, (q, turned[1], gaps[2])):
        (r,) = record(attention, args)
        agrees(r, schedule)


@pytest.mark.parametrize("schedule", FORMS[:3], ids=["rows", "few rows", "columns"])
def test_masks_large_values_and_nan(schedule):
    q, k, v = inputs(40, 77, 18, 20)
    mask = rnd(40, 77, seed=5) > 0.3
    mask[3], mask[4, 1:] = True, True  # a row of which all is masked, and one with one left
    (r,) = record(masked, (q * 8, k, v, mask))
    agrees(r, schedule)
    broken = q.clone()
    broken[1, 7, 3] = NAN
    (r,) = record(attention, (broken, k, v))
    agrees(r, schedule)
    far = v.clone()
    far[0, 5, 7], far[1, 76, 2] = INF, NAN
    (r,) = record(attention, (q, k, far))
    agrees(r, schedule)


def test_which_dots_take_pairs():
    """Those of bfloat16 numbers over many rows."""
    q, k, v = inputs(64, 256, 64, 64)

    def text(args, schedule=BY_ROWS):
        (r,) = record(attention, args)
        return launcher(r, schedule).source().text

    assert text((q, k, v)).count("take<tile_bf16>") == 4  # q, k, v and the weights
    assert "tile_bf16" not in text((q.float(), k.float(), v.float()))
    assert "tile_bf16" not in text((q.half(), k.half(), v.half()))
    assert "tile_bf16" not in text((q, k, v), FORMS[-1])


@x86
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_use_the_instruction_where_there_is_one(target):
    (r,) = record(attention, inputs(64, 256, 64, 64))
    assembly = said_by_compiler(target, "-S", text=launcher(r, BY_ROWS).source().text)
    assert ("vdpbf16ps" in assembly) is has_pairs(target)
    (r,) = record(attention, tuple(x.float() for x in inputs(64, 256, 64, 64)))
    assert "vdpbf16ps" not in said_by_compiler(target, "-S", text=launcher(r, BY_ROWS).source().text)


@x86
def test_machines_that_have_it():
    assert has_pairs("cpu:sapphirerapids") and not has_pairs("cpu:x86-64-v4") and not has_pairs("cpu:x86-64-v3")


@x86
@pytest.mark.parametrize("shape", [(64, 256, 64, 64), (37, 131, 15, 33)], ids=str)
def test_a_machine_without_it(shape):
    (r,) = record(attention, inputs(*shape))
    agrees(r, BY_ROWS, "cpu:x86-64-v3")
