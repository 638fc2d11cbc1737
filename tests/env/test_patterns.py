"""Patterns that are one kernel: what matches, which kernels are legal, what they cost, that bounds hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from go_opt.env import (
    cost_tables,
    evaluate_plan,
    is_one_loop,
    load_zoo,
    loop_roles,
    parse_target,
    target_text,
)
from go_opt.env.kernels.fusion import ELEMENTWISE, MATRIX_LOOP
from go_opt.env.target.toml import target_to_toml
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.kernel_patterns import pattern_kernels
from go_opt.model.states import with_host_states
from go_opt.solver import throughput_bound
from go_opt.solver.certify.joint_floors import joint_floor_s
from go_opt.solver.scheduling.bounds import latency_bound
from go_opt.solver.verify.verifier import verify
from tests.solver.brute_force import (
    all_fusions,
    all_orders,
    all_placements,
    evaluate_placements,
    on_one_chip_each,
)
from tests.solver.test_bounds import tiny_case
from tests.strategies import examples, make_plan, seeds, small_mcm

PATTERNS = ("attention", "normalization")
ROWS = {"scale": "Mul", "mask": "Add", "softmax": "Softmax"}
DECOMPOSED = {"most": "ReduceMax", "exp": "Exp", "sum": "ReduceSum", "div": "Div"}


def attention(
    between: dict[str, str] | None = None, *, read_again: str = "", key: str = "k", output: str = "mix"
) -> Graph:
    """``q`` and ``k`` of 4 by 8, ``v``; each op in between reads all those before it in its row."""
    b = GraphBuilder("attention")
    b.add_tensor("x", 32, "bfloat16", "input")
    b.add_tensor("w", 32, "bfloat16", "weight")

    def add(name: str, op_type: str, op_class: str, reads: list[str], elements: int, flops: int) -> None:
        b.add_op(
            name, op_type, op_class, flops=flops, dtype="bfloat16",
            reads=[(read, None) for read in reads], writes=[(name, elements, "bfloat16")],
        )  # fmt: skip

    for name in "qkv":
        add(name, "Relu", "vector", ["x"], 32, 32)
    add("scores", "MatMul", "matrix", ["q", key], 16, 256)
    last = ["scores"]
    for name, op_type in (ROWS if between is None else between).items():
        add(name, op_type, "vector", last[-2:], 16, 16)
        last.append(name)
    add("mix", "MatMul", "matrix", [last[-1], "v"], 32, 256)
    if read_again:
        add("again", "Neg", "vector", [read_again], 16, 16)
    b.mark_output(output)
    b.mark_output("mix")
    return b.build()


def matches(graph: Graph) -> list[list[str]]:
    return [[graph.op_names[op] for op in ops] for ops in pattern_kernels(graph, PATTERNS)]


@pytest.mark.parametrize("between", [ROWS, DECOMPOSED, {"softmax": "Softmax"}])
def test_attention_is_found(between: dict[str, str]) -> None:
    assert matches(attention(between)) == [["scores", *between, "mix"]]
    assert list(pattern_kernels(attention(between), ())) == []


@pytest.mark.parametrize(
    "graph",
    [
        attention({"relu": "Relu"}),  # no softmax
        attention({"exp": "Exp"}),
        attention({"softmax": "Softmax", "sort": "CumSum"}),  # no loop
        attention(read_again="softmax"),  # needed outside
        attention(output="scale"),
        attention(key="w"),  # a product with a weight
    ],
)
def test_no_attention(graph: Graph) -> None:
    assert matches(graph) == []


LAYER_NORM = {
    "mean": ("ReduceMean", "x"), "centre": ("Sub", "x mean"), "square": ("Pow", "centre"),
    "variance": ("ReduceMean", "square"), "more": ("Add", "variance"), "root": ("Sqrt", "more"),
    "ratio": ("Div", "centre root"), "scale": ("Mul", "ratio w"), "shift": ("Add", "scale w"),
}  # fmt: skip
RMS_NORM = {
    "square": ("Mul", "x"), "mean": ("ReduceSum", "square"), "root": ("Rsqrt", "mean"),
    "ratio": ("Mul", "x root"), "scale": ("Mul", "ratio w"),
}  # fmt: skip


def normalization(rows: dict[str, tuple[str, str]], last: str = "Relu", also: str = "") -> Graph:
    """``rows`` on the product ``x``, a sum of the result and ``x``, and a last op that reads ``also``."""
    b = GraphBuilder("normalization")
    b.add_tensor("in", 32, "bfloat16", "input")
    b.add_tensor("w", 32, "bfloat16", "weight")
    end = next(reversed(rows))
    for name, (op_type, reads) in (
        {"x": ("MatMul", "in w")} | rows | {"add": ("Add", f"x {end}"), "last": (last, f"add {also}")}
    ).items():
        b.add_op(
            name, op_type, "matrix" if op_type == "MatMul" else "vector", flops=32, dtype="bfloat16",
            reads=[(read, None) for read in reads.split()], writes=[(name, 32, "bfloat16")],
        )  # fmt: skip
    b.mark_output("last")
    return b.build()


@pytest.mark.parametrize("rows", [LAYER_NORM, RMS_NORM])
def test_a_normalization_in_parts_is_found(rows: dict[str, tuple[str, str]]) -> None:
    # The sum with what was normalised is element-wise as well, and follows from nothing else.
    assert matches(normalization(rows)) == [[*rows, "add", "last"]]
    assert matches(normalization(rows, last="MatMul")) == [[*rows, "add"]]
    assert matches(normalization(rows, last="MatMul", also="root")) == []
    assert matches(normalization(rows | {"root": ("Exp", rows["root"][1])})) == []


@pytest.mark.parametrize(("name", "number"), [("bert_base", 12), ("transformer_xl_2", 48), ("t5_small", 50)])
def test_each_softmax_and_norm_of_a_transformer_is_part_of_a_match(name: str, number: int) -> None:
    graph = load_zoo(name)
    kernels = list(pattern_kernels(graph, PATTERNS))
    ops = [op for kernel in kernels for op in kernel]
    found = [op for op in range(graph.num_ops) if graph.op_types[op] in ("Softmax", "Exp", "Rsqrt", "Sqrt")]
    assert len(kernels) == number
    assert set(found) <= set(ops)
    assert len(set(ops)) == len(ops)


def test_a_match_or_a_part_of_it_is_a_kernel_with_no_other_op() -> None:
    graph = attention()
    roles, loops = loop_roles(graph, PATTERNS), loop_roles(graph)

    def ops(*names: str) -> np.ndarray:
        return np.array([graph.op_index[name] for name in names], np.int32)

    whole = ops("scores", "scale", "mask", "softmax", "mix")
    assert is_one_loop(roles, whole)
    assert not is_one_loop(loops, whole)
    assert is_one_loop(roles, whole[:4])
    assert is_one_loop(roles, whole[3:])
    assert not is_one_loop(roles, ops("q", "k", "scores"))
    assert is_one_loop(roles, ops("q", "k")) == is_one_loop(loops, ops("q", "k"))


def test_an_attention_over_a_cache_is_one_wherever_the_cache_lies() -> None:
    """Products touch a cache on the chips, which keeps them there, but read none of its elements."""
    graph = load_zoo("gpt2_step")
    on_host = with_host_states(graph, tuple(graph.tensor_names[state.read] for state in graph.states))
    assert len(matches(graph)) == 12
    assert matches(on_host) == matches(graph)


def test_measured_ops_are_in_no_match() -> None:
    graph = attention()
    measured = replace(graph, measured_s={"chip": np.where(np.arange(graph.num_ops) == 4, 1e-6, np.nan)})
    assert (loop_roles(measured, PATTERNS).loop_elements == loop_roles(measured).loop_elements).all()


def test_the_kernel_moves_what_crosses_it_and_the_verifier_knows_it() -> None:
    graph = attention()
    plain = small_mcm(2, topology="all_to_all")
    target = replace(plain, kernel_patterns=PATTERNS)
    group = [0, 1, 2, *[3] * (graph.num_ops - 3)]
    plan = make_plan(graph, target, [0] * graph.num_ops, fusion_group=group)
    assert verify(graph, target, plan) == []
    assert [broken.constraint for broken in verify(graph, plain, plan)] == ["fusion"]
    # 0.512 us of products and 0.48 us of the rest; q, k, v and the result are 0.256 us; 1 us a kernel.
    of_inputs = make_plan(graph, target, [1] * 3 + [0] * (graph.num_ops - 3), fusion_group=group)
    assert evaluate_plan(graph, target, of_inputs).compute_s[0] == pytest.approx(1.992e-6)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_no_plan_beats_the_bounds(seed: int) -> None:
    """Whatever is between two ops as a pattern."""
    graph, target = tiny_case(seed, 4, 2)
    tables, loops = cost_tables(graph, target), loop_roles(graph)
    reaches = np.eye(graph.num_ops, dtype=np.bool_)
    for source, reader in zip(graph.edge_src, graph.edge_dst, strict=True):
        reaches[:, reader] |= reaches[:, source]
    pairs = np.argwhere(np.triu(reaches, 1))
    assume(len(pairs))
    first, last = pairs[seed % len(pairs)]
    match = np.flatnonzero(reaches[first] & reaches[:, last])
    assume(not tables.is_measured()[match].any())
    role, elements = loops.role.copy(), loops.loop_elements.copy()
    role[match], elements[match] = ELEMENTWISE, 1 << 61
    role[match[-1]] = MATRIX_LOOP
    roles = loops._replace(role=role, loop_elements=elements)
    interval_s, latency_s, work_s = np.inf, np.inf, np.inf
    for order in all_orders(graph):
        for group in all_fusions(graph, order, roles):
            placements = on_one_chip_each(all_placements(graph, tables), group)
            terms = evaluate_placements(tables, placements, order, group)
            interval_s = min(interval_s, float(terms.interval_s.min()))
            latency_s = min(latency_s, float(terms.latency_s.min()))
            work_s = min(work_s, float(terms.compute_s.sum(axis=1).min()))
    interval = throughput_bound(graph, tables, roles, fusion_is_open=True, replication_is_open=False)
    sample = latency_bound(graph, tables, roles, is_alone=False, fusion_is_open=True)
    assert interval.seconds <= interval_s * (1 + 1e-9)
    assert sample.seconds <= latency_s * (1 + 1e-9)
    assert joint_floor_s(tables, roles).sum() <= work_s * (1 + 1e-9)


def test_a_target_says_which_patterns_its_runtime_has() -> None:
    target = parse_target(target_text("gpu-4"), "gpu-4")
    assert target.kernel_patterns == PATTERNS
    assert parse_target(target_to_toml(target), "again").kernel_patterns == PATTERNS
    assert parse_target(target_text("mcm-2x2"), "a").kernel_patterns == ()
