"""A larger batch of a transformer has no shorter interval, and no lower bound."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
from onnx import ModelProto, TensorProto, helper

from go_opt.env import load_target
from go_opt.frontends.onnx_frontend import from_onnx
from go_opt.result import Request
from go_opt.search.optimizer import optimize_request

LAYERS, TOKENS, WIDTH, HEADS = 2, 197, 192, 3


def transformer(batch: int) -> ModelProto:
    """Layers of attention and a product each, as a ViT has them."""
    nodes, weights = [], []

    def product(read: str, written: str) -> str:
        raw = bytes(4 * prod((WIDTH, WIDTH)))
        shape = (WIDTH, WIDTH)
        weights.append(helper.make_tensor(f"w_{written}", TensorProto.FLOAT, shape, raw, raw=True))
        nodes.append(helper.make_node("MatMul", [read, f"w_{written}"], [written], name=written))
        return written

    x = "x"
    for i in range(LAYERS):
        heads = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
        qkv = [product(x, f"{name}{i}") for name in "qkv"]
        nodes.append(helper.make_node("Attention", qkv, [f"a{i}"], name=f"a{i}", **heads))
        nodes.append(helper.make_node("Add", [x, product(f"a{i}", f"o{i}")], [f"r{i}"], name=f"r{i}"))
        x = f"r{i}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, TOKENS, WIDTH])]
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "transformer", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


@pytest.mark.parametrize("name", ["rtx4090-2", "h100-sxm-1", "mcm-2x2"])
def test_interval_and_bound_grow_with_the_batch(name: str) -> None:
    request = Request(max_evaluations=20, splits=False)
    target = load_target(name)
    results = [optimize_request(from_onnx(transformer(batch)), target, request) for batch in (1, 2, 4, 8)]
    for less, more in pairwise(results):
        assert less.objective_s <= more.objective_s * (1 + 1e-9)
        assert less.lower_bound_s <= more.lower_bound_s * (1 + 1e-9)
        assert less.lower_bound_s <= more.objective_s * (1 + 1e-9)
