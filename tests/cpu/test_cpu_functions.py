"""The runtime header alone: functions within 2 units in the last place, conversions bit by bit, dots of any strides."""

import ctypes

import numpy as np
import pytest
import torch

from redfuser.backends.cpu.compile import compile_text, find_compiler, open_library

INF, NAN = float("inf"), float("nan")
SOURCE = """
#define LANE_BYTES {lane}
#include "redfuser.h"
#define EACH(name, T, f) \\
  extern "C" void name(const T *x, T *y, i64 n) {{ for (i64 i = 0; i < n; i += W) st(y + i, f(ld(x + i))); }}
EACH(exp_f, float, x_exp) EACH(log_f, float, x_log) EACH(tanh_f, float, x_tanh)
EACH(exp_d, double, x_exp) EACH(log_d, double, x_log) EACH(tanh_d, double, x_tanh)
#define TO(name, T) \\
  extern "C" void name(const float *x, T *y, i64 n) {{ for (i64 i = 0; i < n; i += W) st(y + i, ld(x + i)); }} \\
  extern "C" void one_##name(const float *x, T *y, i64 n) {{ for (i64 i = 0; i < n; i++) put(y + i, x[i]); }} \\
  extern "C" void from_##name(const T *x, float *y, i64 n) {{ for (i64 i = 0; i < n; i++) y[i] = get(x + i); }}
TO(bfloat16, bf16) TO(float16, f16) TO(float8_e4m3fn, e4m3) TO(float8_e5m2, e5m2)
extern "C" void product(const i64 *a) {{
  dot(a[0], a[1], a[2], (const float *)a[3], a[4], a[5], (const float *)a[6], a[7], a[8], (float *)a[9], a[10], a[11] != 0);
}}
"""


@pytest.fixture(scope="module", params=[4, 8], ids=["lanes of 4 bytes", "lanes of 8 bytes"])
def library(request):
    return open_library(compile_text(SOURCE.format(lane=request.param), find_compiler(), "native"))


def call(library, name, x, dtype=None):
    y = torch.empty(x.shape, dtype=dtype or x.dtype)
    library[name](ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(x.numel()))
    return y


SPECIAL = [
    0.0,
    -0.0,
    INF,
    -INF,
    NAN,
    1e-40,
    -1e-40,
    1.0,
    88.7,
    88.73,
    -87.0,
    -100.0,
    -103.0,
    -104.0,
    -110.0,
    3e38,
    -3e38,
    0.62,
    0.63,
    20.0,
]
RANGES = {"exp": (-104.0, 89.0), "log": (0.5, 2.0), "tanh": (-10.0, 10.0)}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("kind", ["f", "d"])
def test_units_in_the_last_place(library, name, kind):
    low, high = (-745.0, 709.0) if (name, kind) == ("exp", "d") else RANGES[name]
    drawn = torch.randn(2**14).double() * (30 if name == "exp" else 3)
    wide = torch.exp(torch.randn(2**14).double() * 20) if name == "log" else drawn
    x = torch.cat(
        [
            torch.tensor(SPECIAL).double(),
            torch.zeros(12).double(),
            torch.linspace(low, high, 2**16).double(),
            drawn,
            wide,
        ]
    )
    x = x.float() if kind == "f" else x
    got = call(library, f"{name}_{kind}", x).numpy()
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.numpy().astype(np.longdouble))
        rounded = exact.astype(got.dtype)
        units = np.abs(got.astype(np.longdouble) - exact) / np.spacing(np.abs(rounded))
    finite = np.isfinite(rounded)
    assert np.array_equal(np.isnan(got), np.isnan(rounded)) and np.array_equal(
        got[np.isinf(rounded)], rounded[np.isinf(rounded)]
    )
    assert float(units[finite].max()) <= 2.0


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_conversions(library, name):
    dtype = getattr(torch, name)
    ends = 2.0 ** torch.arange(-30, 20).float()
    x = torch.cat(
        [
            torch.tensor(SPECIAL),
            ends,
            -1.0625 * ends,
            torch.randn(2**14),
            torch.randn(2**14) * 500,
            torch.randn(2**12) * 1e-5,
        ]
    )
    x = torch.cat([x, torch.zeros(-len(x) % 16)])
    want = x.to(dtype)
    for entry in (name, f"one_{name}"):
        got = call(library, entry, x, dtype)
        same = (got.float() == want.float()) | (got.float().isnan() & want.float().isnan())
        assert bool(same.all()), x[~same][:5]
    bits = torch.arange(0, 2 ** (8 * dtype.itemsize), dtype=torch.int32)
    every = bits.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)
    got, want = call(library, f"from_{name}", every, torch.float32), every.float()
    assert bool(((got == want) | (got.isnan() & want.isnan())).all())


@pytest.mark.parametrize(
    "m, n, k",
    [(1, 64, 37), (5, 16, 64), (64, 64, 64), (7, 23, 19), (13, 40, 300), (2, 8, 1), (33, 100, 70), (40, 1100, 20)],
)
def test_dots(library, m, n, k):
    a, b = torch.randn(m, k), torch.randn(k, n)
    for left in (a, a.t().contiguous().t()):
        for right in (b, b.t().contiguous().t(), torch.cat([b, b], 1)[:, : 2 * n : 2] if n > 1 else b):
            for add in (0, 1):
                step = -(-n // 16) * 16
                c = torch.randn(m, step)
                want = c[:, :n].double() * add + left.double() @ right.double()
                numbers = [
                    m,
                    n,
                    k,
                    left.data_ptr(),
                    *left.stride(),
                    right.data_ptr(),
                    *right.stride(),
                    c.data_ptr(),
                    step,
                    add,
                ]
                library.product((ctypes.c_int64 * 12)(*numbers))
                torch.testing.assert_close(c[:, :n].double(), want, rtol=1e-5, atol=1e-4)
