"""``explain(...).source`` on a CPU: a file that needs torch and a compiler, runs alone and tells a wrong kernel."""

import os
import subprocess
import sys

import pytest
import torch
from catalogue import ONE_PASS, SEVERAL

import redfuser

CASES = {c.name: c for c in ONE_PASS + SEVERAL}


def causal(q, k, v):
    scores = q @ k.transpose(-1, -2) * 0.25
    late = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(late, float("-inf")), -1) @ v


def both(x, w):
    """Two cascades in one file."""
    return x.softmax(-1), (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)) @ w


def source(fn, args, **options):
    return redfuser.fuse(fn, **options).explain(*args).source


def run(text, folder):
    path = folder / "kernel.py"
    path.write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


FILES = {
    "causal": lambda: source(causal, [torch.empty(2, 48, 16) for _ in range(3)]),
    "bfloat16 in segments": lambda: source(
        causal, [torch.empty(2, n, 16, dtype=torch.bfloat16) for n in (1, 200, 200)], strategy="multi", segments=3
    ),
    "two cascades": lambda: source(both, (torch.empty(20, 40), torch.empty(40, 24))),
    "top-k": lambda: source(CASES["topk_of_softmax"].fn, CASES["topk_of_softmax"].inputs()),
    "open length": lambda: source(lambda x: x.var(-1), (_open(torch.empty(4, 300)),)),
}


def _open(x):
    torch._dynamo.mark_dynamic(x, 1)
    return x


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_file_runs_alone(make, tmp_path):
    text = make()
    code, out = run(text, tmp_path)
    assert code == 0 and "as close as PyTorch" in out, out
    assert "redfuser" not in [line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))]


def test_the_check_tells_a_wrong_kernel(tmp_path):
    text = FILES["causal"]()
    wrong = text.replace(
        "softmax_sum_moved_ + softmax_sum_new_part_", "softmax_sum_moved_ + softmax_sum_new_part_ * 1.01f"
    )
    assert wrong != text
    code, out = run(wrong, tmp_path)
    assert code == 1 and "WRONG" in out


def test_it_says_how_it_is_compiled():
    text = FILES["causal"]()
    assert "-march=native" in text and "COMPILE = [" in text and "-o kernels.so kernels.cpp" in text
    other = source(causal, [torch.empty(2, 48, 16) for _ in range(3)], target="cpu:x86-64-v3")
    assert "-march=x86-64-v3" in other
