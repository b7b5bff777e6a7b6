"""``explain(...).source``: a file that needs only torch and triton, runs alone and tells a wrong kernel from a right one."""

import ast
import importlib.util
import os
import py_compile
import re
import subprocess
import sys

import pytest
import torch
from catalogue import ONE_PASS, SEVERAL

import redfuser
from redfuser.errors import BackendError

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
CASES = {c.name: c for c in ONE_PASS + SEVERAL}


def causal(q, k, v):
    scores = q @ k.transpose(-1, -2) * 0.25
    late = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(late, float("-inf")), -1) @ v


def rounded_product(x, w):
    scale = 448.0 / x.abs().amax(-1, keepdim=True).clamp_min(1e-6)
    return (x * scale).to(torch.bfloat16).to(x.dtype) @ w / scale


def qkv(queries=48, keys=48, dtype=torch.bfloat16, device="meta"):
    return [torch.empty(2, n, 16, dtype=dtype, device=device) for n in (queries, keys, keys)]


def source(fn, args, **options):
    return redfuser.fuse(fn, backend="triton", target="cuda:90", **options).explain(*args).source


def run(text, tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(text)
    py_compile.compile(str(path), doraise=True)
    # elsewhere than this project: the file needs nothing of it
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


FILES = {
    "causal single": lambda: source(causal, qkv(), strategy="single", tile=16),
    "decode multi": lambda: source(causal, qkv(1, 200), strategy="multi", segments=3, tile=32),
    "softmax whole": lambda: source(CASES["safe_softmax"].fn, CASES["safe_softmax"].inputs(), strategy="whole"),
    "top-k": lambda: source(CASES["topk_of_softmax"].fn, CASES["topk_of_softmax"].inputs()),
    "variance multi": lambda: source(
        CASES["variance"].fn, CASES["variance"].inputs(), strategy="multi", segments=3, tile=32
    ),
    "variance": lambda: source(CASES["variance"].fn, CASES["variance"].inputs(), strategy="single"),
    "cast": lambda: source(rounded_product, CASES["amax_fp8_gemm"].inputs()),
    "float8": lambda: source(CASES["amax_fp8_gemm"].fn, CASES["amax_fp8_gemm"].inputs()),
    "indices": lambda: source(CASES["cross_entropy"].fn, CASES["cross_entropy"].inputs()),
    "a scalar": lambda: source(CASES["temperature_softmax"].fn, CASES["temperature_softmax"].inputs()),
    "several passes": lambda: source(CASES["softmax_of_zscores"].fn, CASES["softmax_of_zscores"].inputs()),
}


@needs_triton
@pytest.mark.parametrize("name", FILES)
def test_file_runs_alone(name, tmp_path):
    text = FILES[name]()
    assert not re.search(r"^\s*(import|from) redfuser", text, re.M)
    assert {a.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) for a in n.names} <= {
        "math", "os", "sys", "torch", "triton", "triton.language", "numpy",
    }  # fmt: skip
    code, out = run(text, tmp_path)
    assert code == 0, out
    assert "as close as PyTorch" in out


@needs_triton
@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("causal single", "tl.exp2(", "1.01 * tl.exp("),
        ("softmax whole", "tl.sum(", "0.99 * tl.sum("),
        ("variance", "tl.sum(", "1.001 * tl.sum("),
        ("top-k", "key_index(key):\n    return ", "key_index(key):\n    return 1 + "),
    ],
)
def test_file_tells_a_wrong_kernel(name, right, wrong, tmp_path):
    text = FILES[name]()
    assert right in text
    code, out = run(text.replace(right, wrong), tmp_path)
    assert code == 1 and "WRONG" in out, out


@needs_triton
def test_file_tells_a_kernel_that_gives_nan(tmp_path):
    text = FILES["softmax whole"]()
    broken = text.replace("tl.sum(", 'float("nan") * tl.sum(')
    assert broken != text
    code, out = run(broken, tmp_path)
    assert code == 1 and "WRONG" in out, out


def coarse(q, k, v):
    return torch.softmax(5.0 * torch.tanh(q @ k.transpose(-1, -2) / 5.0), -1) @ v


@needs_triton
def test_file_says_where_only_a_gpu_can_check(tmp_path):
    text = source(coarse, qkv(), strategy="single")
    assert "inline_asm" in text and "on a GPU" in text and "TRITON_INTERPRET=1 python" not in text
    code, out = run(text, tmp_path)
    assert code == 1 and "checked on a GPU only" in out


@needs_triton
def test_names_are_the_users_and_in_their_order():
    text = source(causal, qkv(), strategy="single")
    assert "def fused(q, k, v):" in text and "def reference(q, k, v, precision=None):" in text
    assert "# scores = q @ k.transpose(-1, -2) * 0.25" in text
    assert "test_source.py:" in text and "Printed by redfuser for cuda:90" in text


@needs_triton
def test_lengths_are_taken_from_the_tensors(tmp_path):
    x = torch.randn(6, 70)
    torch._dynamo.mark_dynamic(x, 1)
    text = source(CASES["variance"].fn, [x])
    assert re.search(r"^    \w+ = x\.shape\[1\]$", text, re.M)
    code, out = run(text, tmp_path)
    assert code == 0, out
    longer = re.sub(r"\(6, 70\)", "(6, 133)", text)
    assert longer != text
    code, out = run(longer, tmp_path)
    assert code == 0, out


@needs_triton
def test_strided_arguments_stay_strided(tmp_path):
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv(dtype=torch.float32, device="cpu"))
    text = source(causal, [q, k, v], strategy="single")
    assert "torch.empty_strided((2, 48, 16), (768, 1, 48)" in text
    code, out = run(text, tmp_path)
    assert code == 0, out


@needs_triton
def test_two_cascades_are_one_file(tmp_path):
    def both(x, w):
        a = torch.softmax(x, -1) @ w
        return torch.softmax(a, -1).square().sum(-1)

    analysis = redfuser.fuse(both, backend="triton", target="cuda:90").analyze(torch.randn(5, 40), torch.randn(40, 24))
    assert len(analysis.cascades) > 1
    text = analysis.source
    assert "def fused_1(" in text and "def fused_2(" in text
    assert all(c.source and c.source != text for c in analysis.cascades)
    code, out = run(text, tmp_path)
    assert code == 0, out


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
def test_prints_for_machines_that_are_not_present(target):
    explanation = redfuser.fuse(causal, backend="triton", target=target).explain(*qkv(2048, 2048))
    assert f"Printed by redfuser for {target};" in explanation.source
    assert f"kernels for {target}" in str(explanation)
    assert explanation.to_dict()["cascades"][0]["source"] == explanation.source


@needs_triton
@pytest.mark.parametrize("case", ONE_PASS + SEVERAL, ids=lambda c: c.name)
def test_lines_fit_and_the_layout_changes_no_statement(case, monkeypatch):
    from redfuser.backends import script, tidy
    from redfuser.backends.triton import kernel

    with redfuser.options(**case.options):
        text = source(case.fn, case.inputs(), strategy="single", tile=32)

    def as_it_comes(line):
        return [line]

    monkeypatch.setattr(kernel, "tidy", as_it_comes)
    monkeypatch.setattr(script, "tidy", as_it_comes)
    with redfuser.options(**case.options):
        plain = source(case.fn, case.inputs(), strategy="single", tile=32)
    assert plain != text and ast.dump(ast.parse(plain)) == ast.dump(ast.parse(text))
    assert max(map(len, text.splitlines())) <= tidy.WIDTH + 10
    assert not re.search(r"[ \t]$", text, re.M) and text.endswith("\n") and not text.endswith("\n\n")


def test_the_reference_backend_prints_none():
    explanation = redfuser.fuse(causal, backend="reference").explain(*qkv())
    assert explanation.source == ""
    assert "source   none: the reference backend" in str(explanation)


def test_without_triton_the_error_says_what_to_install(monkeypatch):
    from redfuser.runtime import engines

    monkeypatch.setattr(engines, "_has_triton", lambda: False)
    with pytest.raises(BackendError, match="pip install"):
        redfuser.fuse(causal, backend="triton").explain(*qkv())


@needs_triton
def test_command_line(tmp_path):
    (tmp_path / "mine.py").write_text("def weights(x):\n    return x.softmax(-1)\n")
    command = [sys.executable, "-m", "redfuser", "explain", f"{tmp_path / 'mine.py'}:weights", "--arg", "x=f32[4,L]"]
    kernels = ["--option", "backend=triton", "--option", "target=cuda:90", "--source"]
    done = subprocess.run([*command, *kernels], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    code, out = run(done.stdout, tmp_path)
    assert code == 0, out
    reference = ["--option", "backend=reference", "--source"]
    done = subprocess.run([*command, *reference], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "reference backend" in done.stderr and not done.stdout
