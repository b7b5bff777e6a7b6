"""Small transformers models, lowered whole and evaluated, and trained through the backend."""

from typing import Any

import numpy as np
import pytest
import torch
from fusing import Fuser
from torch._subclasses.fake_tensor import FakeTensor

from redfuser.frontend.capture import capture
from redfuser.frontend.lower import lower
from redfuser.index.eval import evaluate

transformers = pytest.importorskip("transformers")
SMALL = {
    "vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64,
    "attn_implementation": "eager",
}  # fmt: skip


def llama() -> Any:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=64)
    inputs = {"input_ids": torch.randint(0, 97, (2, 12)), "use_cache": False}
    return transformers.LlamaForCausalLM(config).eval(), inputs


def bert() -> Any:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    inputs = {"input_ids": torch.randint(0, 97, (2, 12)), "attention_mask": mask}
    return transformers.BertModel(transformers.BertConfig(**SMALL)).eval(), inputs


@pytest.mark.parametrize("make", [llama, bert])
def test_whole_model(make: Any) -> None:
    model, inputs = make()
    with torch.no_grad():
        (graph,) = capture(model, (), inputs).graphs
        want = [x for x in model(**inputs).to_tuple() if isinstance(x, torch.Tensor)]
    lowered = lower(graph.graph)
    assert not lowered.refusals
    places = [n for n in graph.graph.graph.nodes if n.op == "placeholder"]
    data = {}
    for name, node in lowered.input_nodes.items():
        x = graph.inputs[places.index(node)]
        x = inputs[name] if isinstance(x, FakeTensor) else x
        data[name] = x.detach().double().numpy() if x.is_floating_point() else x.numpy()
    for got, expected in zip(evaluate(lowered.program, data, {}), want, strict=True):
        np.testing.assert_allclose(got, expected.double().numpy(), rtol=1e-5, atol=1e-5)


def attention_cascades(lowered: Any) -> list[list[str]]:
    """The names of the softmax statistics and of the product that follows them, layer by layer."""
    names = [d.name for d in lowered.program.reductions]
    starts = [n for n, name in enumerate(names) if name.endswith("_max") or "_max_" in name]
    return [names[n : n + 3] for n in starts]


@pytest.mark.parametrize("make", [llama, bert])
def test_attention_of_every_layer_fuses(make: Any) -> None:
    model, inputs = make()
    fuser = Fuser()
    fuser.choose = lambda lowered: [  # type: ignore[method-assign]
        (frozenset(names), frozenset(), fuser.kernel) for names in attention_cascades(lowered)
    ]
    from redfuser.frontend.backend import make_backend

    fuser.backend = make_backend(fuser.choose, "eager")
    compiled = fuser.compile(model)
    losses = []
    for f in (compiled, model):
        model.zero_grad()
        out = f(**inputs).to_tuple()[0]
        out.square().sum().backward()
        losses.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    if not fuser.cuts and torch.__version__ < "2.13":
        pytest.skip("this PyTorch leaves switches of gradients in the graph, which is then not fused in training")
    assert len(fuser.cuts) == 2
