"""Parts that only the last ops join are found, and get chips of their own."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

import go_opt
from go_opt.env import cost_tables
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver import broken_rules, placement_problem, slice_order
from go_opt.solver.orders.orders import towers
from go_opt.solver.verify.rule_check import NONE
from tests.strategies import examples, seeds, small_mcm


def graph_of_towers(
    heights: list[int], rng: np.random.Generator, weight_elements: int = 0
) -> tuple[Graph, list[int]]:
    """Towers of residual blocks in a random order, then two ops that join them; the tower of each op."""
    b = GraphBuilder("towers")
    tops: list[list[str]] = [[] for _ in heights]
    tower_of = []

    def add(name: str, reads: list[str], flops: int) -> None:
        if weight_elements:
            b.add_tensor(f"{name}/weight", weight_elements, "float32", "weight")
            reads = [*reads, f"{name}/weight"]
        b.add_op(
            name, "Add", "vector", flops=flops, dtype="float32",
            reads=[(read, None) for read in reads], writes=[(name, 10, "float32")],
        )  # fmt: skip

    left = [tower for tower, height in enumerate(heights) for _ in range(height)]
    for tower in rng.permutation(left).tolist():
        name = f"{tower}.{len(tops[tower])}"
        add(name, tops[tower][-2:], 1000)
        tops[tower].append(name)
        tower_of.append(tower)
    add("joined", [top[-1] for top in tops], 10)
    add("last", ["joined"], 10)
    return b.build(), [*tower_of, len(heights), len(heights)]


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_each_tower_has_chips_of_its_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    heights = rng.integers(2, 7, int(rng.integers(2, 4))).tolist()
    graph, tower_of = graph_of_towers(heights, rng)
    target = small_mcm(12, triangle=("longest_path", "three_chip")[int(rng.integers(2))])
    tables = cost_tables(graph, target)
    apart = towers(graph, tables)
    assert apart is not None
    order, apart_tables, rising = apart
    found = np.array(tower_of)[order]
    assert np.count_nonzero(found[1:] != found[:-1]) == len(heights)  # one after the other
    one_each = np.arange(graph.num_ops, dtype=np.int32)
    slicing = slice_order(apart_tables, order, one_each, forwarding="adjacent", rising=rising)
    assert slicing is not None
    assert (broken_rules(placement_problem(graph, target), slicing.placement[None]) == NONE).all()
    chips = [set(slicing.placement[np.array(tower_of) == tower]) for tower in range(len(heights))]
    assert sum(map(len, chips)) == len(set().union(*chips))


def test_weights_of_towers_may_stream() -> None:
    graph, _ = graph_of_towers([9, 9], np.random.default_rng(0), weight_elements=20_000)
    # Four chips of 100 kB for 18 weights of 40 kB; so many placements are not enumerated.
    result = go_opt.optimize(graph, small_mcm(4), decide="placement", relays=False, max_evaluations=60)
    assert result.metrics.stream_bytes.any()
    assert any(step.method.startswith("slice: towers") for step in result.history)


@settings(max_examples=examples(30))
@given(seed=seeds)
def test_reads_that_are_left_out_are_left_out_everywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, _ = graph_of_towers([4, 3], rng, weight_elements=10)
    tables = cost_tables(graph, small_mcm(4))
    keeps = rng.random(len(tables.reader_op)) < 0.6
    left = tables.with_reads(keeps)
    kept = {
        (int(op), int(tensor))
        for op, tensor in zip(tables.reader_op[keeps], tables.reader_tensor[keeps], strict=True)
    }
    assert kept == set(zip(left.reader_op.tolist(), left.reader_tensor.tolist(), strict=True))
    for tensor in range(len(left.tensor_kind)):
        assert (left.reader_tensor[left.reader_ptr[tensor] : left.reader_ptr[tensor + 1]] == tensor).all()
    for op in range(graph.num_ops):
        reads = left.op_read[left.op_read_ptr[op] : left.op_read_ptr[op + 1]]
        assert sorted(left.reader_tensor[reads]) == sorted(tensor for reader, tensor in kept if reader == op)
    assert len(left.read_bytes) == np.count_nonzero(keeps)


def test_a_graph_whose_parts_join_early_has_no_towers() -> None:
    b = GraphBuilder("one")
    for op, reads in (("a", []), ("b", []), ("c", ["a", "b"]), ("d", ["c"]), ("e", ["d"])):
        b.add_op(
            op, "Add", "vector", flops=1000 if op in "cde" else 10, dtype="float32",
            reads=[(read, None) for read in reads], writes=[(op, 10, "float32")],
        )  # fmt: skip
    graph = b.build()
    assert towers(graph, cost_tables(graph, small_mcm(4))) is None
