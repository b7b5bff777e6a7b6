"""The peaks of a CPU: multiply-adds that wait for nothing, and reads of more memory than any cache holds."""

from __future__ import annotations

import ctypes

import torch

from benchmarks.ceilings import Ceilings
from benchmarks.timing import Runner, race
from redfuser.backends.cpu.compile import compile_text, find_compiler, open_library
from redfuser.backends.cpu.launch import openmp

_SOURCE = """
#include "redfuser.h"
// every point: a[5] rounds of 12 vectors that are multiplied and added to
static void multiply(const i64 *a, i64 first, i64 last, char *) {
  float *out = (float *)a[4];
  for (i64 point = first; point < last; point++) {
    vf x[12], y = bc(0.999f), z = bc(0.001f);
    for (int i = 0; i < 12; i++) x[i] = bc((float)i);
    for (i64 n = 0; n < a[5]; n++) {
#pragma GCC unroll 16
      for (int i = 0; i < 12; i++) x[i] = x[i] * y + z;
    }
    for (int i = 1; i < 12; i++) x[0] += x[i];
    st(out + point * W, x[0]);
  }
}
// every point: the sum of 65536 numbers
static void read(const i64 *a, i64 first, i64 last, char *) {
  const float *in = (const float *)a[5]; float *out = (float *)a[4];
  for (i64 point = first; point < last; point++) {
    vf s[8] = {};
    for (i64 n = 0; n < 65536; n += 8 * W) for (int i = 0; i < 8; i++) s[i] += ld(in + point * 65536 + n + i * W);
    for (int i = 1; i < 8; i++) s[0] += s[i];
    st(out + point * W, s[0]);
  }
}
extern "C" int lanes() { return W; }
extern "C" void peak(const i64 *a) { run(multiply, a, a[6], 0); }
extern "C" void scan(const i64 *a) { run(read, a, a[6], 0); }
"""


def measure(quick: bool) -> Ceilings | None:
    """On as many threads as PyTorch uses; None where there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        return None
    library = open_library(compile_text(_SOURCE, compiler, "native"))
    points, rounds, size = 64, 2000 if quick else 400_000, 2**22 if quick else 2**28
    source, out = torch.ones(size), torch.empty(max(points, size // 65536) * 16)
    head = [*openmp(), 0, 0, out.data_ptr()]

    def call(name: str, *numbers: int) -> Runner:
        given = (ctypes.c_int64 * (len(head) + len(numbers)))(*head, *numbers)
        return Runner(name, [lambda: library[name](given)])

    runners = [call("peak", rounds, points), call("scan", source.data_ptr(), size // 65536)]
    times = race(runners, 3 if quick else 9, 0.002 if quick else 0.05, False, 0.0 if quick else 1.0)
    flops = 2.0 * 12 * library.lanes() * rounds * points
    return Ceilings(flops / times["peak"].median * 1e6, 4.0 * size / times["scan"].median * 1e6)
