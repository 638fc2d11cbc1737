"""GroupQueryAttention as exported for ONNX Runtime GenAI: its sizes on GPUs, its states, a plan of a step."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from go_opt.env import cost_tables, load_target
from go_opt.env.cost.gpu_ops import attention_sizes
from go_opt.frontends.onnx_frontend import from_onnx
from go_opt.solver.verify.verifier import verify
from tests.cli.conftest import Cli, cli
from tests.exports import info, model, saved, weight
from tests.strategies import make_plan

__all__ = ["cli"]  # the fixture
HEADS, GROUPS, WIDTH = 8, 2, 64


def block(
    rows: int | str, past: int | str, total: int | str, *, is_packed: bool = False, batch: int | str = 1
) -> onnx.ModelProto:
    """Norm, projections, attention with rotary embedding, the output's product, and the next norm."""
    hidden, keys = HEADS * WIDTH, GROUPS * WIDTH
    make = helper.make_node
    parts = {"qkv": hidden + 2 * keys} if is_packed else {"q": hidden, "k": keys, "v": keys}
    read = ["qkv", "", ""] if is_packed else [*"qkv"]
    cache = ["past_key_values.0.key", "past_key_values.0.value"]
    present = ["present.0.key", "present.0.value"]
    nodes = [
        make("SimplifiedLayerNormalization", ["x", "s"], ["n"], "norm", axis=-1, epsilon=1e-5),
        *(make("MatMul", ["n", f"w{part}"], [part], part) for part in parts),
        make(
            "GroupQueryAttention", [*read, *cache, "seqlens_k", "total_sequence_length", "cos", "sin"],
            ["a", *present], "attention", domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS,
            do_rotary=1,
        ),
        make("MatMul", ["a", "wo"], ["o"], "o"),
        make(
            "SkipSimplifiedLayerNormalization", ["o", "x", "s"], ["y", "", "", "sum"], "skip",
            domain="com.microsoft",
        ),
    ]  # fmt: skip
    inputs = [
        info("x", (batch, rows, hidden)),
        *(info(name, (batch, GROUPS, past, WIDTH)) for name in cache),
        info("seqlens_k", (batch,), TensorProto.INT32),
        info("total_sequence_length", (), TensorProto.INT32),
    ]
    outputs = [info("sum", (batch, rows, hidden)), *(info(k, (batch, GROUPS, total, WIDTH)) for k in present)]
    weights = [weight("s", hidden), *(weight(f"w{part}", hidden, size) for part, size in parts.items())]
    weights += [weight("wo", hidden, hidden), *(weight(name, 4096, WIDTH // 2) for name in ("cos", "sin"))]
    proto = model(nodes, inputs, outputs, weights)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("rows", [1, 16], ids=["decode", "prefill"])
def test_sizes_of_the_form(rows: int, is_packed: bool, tmp_path: Path) -> None:
    """100 cached tokens."""
    total = 100 + rows
    graph = from_onnx(saved(block(rows, 100, total, is_packed=is_packed, batch=3), tmp_path))
    ops, sizes = attention_sizes(graph)
    assert [graph.op_names[op] for op in ops] == ["attention"]
    assert sizes[:, 0].tolist() == [3, HEADS, GROUPS, rows, total, WIDTH, rows > 1]
    expected = {("sequence", f"past_key_values.0.{part}") for part in ("key", "value")}
    assert {(state.scope, graph.tensor_names[state.read]) for state in graph.states} == expected
    seconds = cost_tables(graph, load_target("h100-sxm-1")).kernel_floor_s()[0, ops[0]]
    figures = load_target("h100-sxm-1").kinds[0].kernels
    assert figures is not None
    assert seconds > (figures.decode_overhead_s if rows == 1 else figures.prefill_overhead_s)


def test_a_step_behind_one_token(tmp_path: Path) -> None:
    graph = from_onnx(saved(block(1, 1, 2), tmp_path))
    _, sizes = attention_sizes(graph)
    assert sizes[:, 0].tolist() == [1, HEADS, GROUPS, 1, 2, WIDTH, 0]


def test_a_step_on_one_gpu_is_valid(tmp_path: Path) -> None:
    graph, target = from_onnx(saved(block(1, 127, 128), tmp_path)), load_target("h100-sxm-1")
    plan = make_plan(graph, target, (0,) * graph.num_ops)
    assert list(verify(graph, target, plan)) == []


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize(("rows", "past"), [(1, 100), (16, 48)], ids=["decode", "prefill"])
def test_from_the_file_to_a_plan(cli: Cli, tmp_path: Path, rows: int, past: int, objective: str) -> None:
    """Symbolic dimensions, as exporters write them: found, saved, read again and checked."""
    saved(block("rows", "past", "total", batch="batch"), tmp_path, "step")
    dims = {"batch": 4, "rows": rows, "past": past, "total": past + rows}
    given = ["--max-evaluations", 6, "--policy", "none", "--objective", objective, "--target", "h100-sxm-2"]
    given += [part for name, size in dims.items() for part in ("--dim", f"{name}={size}")]
    found = cli("optimize", "step.onnx", *given, "--out", "plan.json", "--json").json
    assert found["status"] in ("OPTIMAL", "FEASIBLE")
    assert found["lower_bound_s"] <= found["makespan_s" if objective == "latency" else "interval_s"]
    assert [state["scope"] for state in found["states"]] == ["sequence"] * 2
    assert cli("verify", "step.onnx", "plan.json").code == 0
