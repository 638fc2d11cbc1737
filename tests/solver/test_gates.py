"""The bound of a sample's latency on chips in a row, against drawn plans of decoders with split ops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt import from_onnx
from go_opt.env import cost_tables, evaluate_batch, greedy_fusion, loop_roles
from go_opt.env.copies.splits import split_graph
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Split
from go_opt.result import Request
from go_opt.search.bounds import path_bound
from go_opt.search.splits.block_ways import blocks_of, is_open, splits_of_blocks
from go_opt.search.splits.ways import divisible_ops
from tests.decoders import decoder, lstm_cell
from tests.strategies import examples, random_order, seeds, small_mcm

PLANS = 60


def least_s(graph: Graph, chips: int) -> float:
    target = small_mcm(chips)
    return path_bound(graph, target, Request(), divisible_ops(graph, target, Request())).seconds


def test_more_chips_share_less_than_the_chips_of_one_pair_of_gates() -> None:
    """A layer has its heads and its feed-forward layer between norms: two chips halve one of the two."""
    graph = from_onnx(decoder(layers=1, width=64))
    one_s, two_s, three_s, many_s = (least_s(graph, chips) for chips in (1, 2, 3, 300))
    total_s = cost_tables(graph, small_mcm(1)).kernel_floor_s().min(axis=0).sum()
    assert one_s <= total_s
    assert one_s == pytest.approx(total_s, rel=0.35)
    assert one_s > two_s > three_s > many_s
    assert one_s - two_s > two_s - three_s
    assert two_s > one_s / 2


def test_two_chips_that_share_a_block_come_close_to_the_bound() -> None:
    graph, target = from_onnx(decoder(layers=1, width=64)), small_mcm(2, link_bytes_per_s=1e12)
    bound_s = path_bound(graph, target, Request(), divisible_ops(graph, target, Request())).seconds
    latencies_s = []
    for block in blocks_of(graph):
        split = with_sequences(split_graph(graph, tuple(splits_of_blocks(graph, [block], 2))), 1)
        last = split.op_index[graph.op_names[block[-1][0]]]  # it adds or joins
        is_late = np.array(["part 2 of 2" in name or "sum 2 of 2" in name for name in split.op_names])
        chip = (is_late | (np.arange(split.num_ops) >= last)).astype(np.int32)
        order = np.lexsort((np.arange(split.num_ops), chip)).astype(np.int32)
        kernels = greedy_fusion(loop_roles(split), order) * 2 + chip
        row = (one[None].astype(np.int32) for one in (chip, order, kernels))
        latencies_s.append(float(evaluate_batch(cost_tables(split, target), *row).latency_s[0]))
    assert bound_s <= min(latencies_s) < 1.3 * bound_s


@settings(max_examples=examples(40), deadline=None)
@given(seed=seeds)
def test_no_plan_is_faster_than_the_bound(seed: int) -> None:
    """Of any split, placement that only rises, order and greedy kernels."""
    rng = np.random.default_rng(seed)
    group = int(rng.integers(1, 3))
    graph = from_onnx(decoder(int(rng.integers(1, 3)), 4, int(rng.choice((8, 64))), group=group))
    graph = from_onnx(lstm_cell()) if rng.random() < 0.2 else graph
    target = small_mcm(int(rng.integers(1, 6)))
    divisible = divisible_ops(graph, target, Request())
    bound_s = path_bound(graph, target, Request(), divisible).seconds
    split = with_sequences(split_graph(graph, _drawn_way(rng, graph)), int(rng.integers(1, 4)))
    tables, roles = cost_tables(split, target), loop_roles(split, target.kernel_patterns)
    for _ in range(PLANS):
        order, rises = random_order(rng, split), rng.random() * 0.5
        chip = np.zeros(split.num_ops, np.int32)
        ptr, source = split.predecessors
        for op in order:
            least = chip[source[ptr[op] : ptr[op + 1]]].max(initial=0)
            chip[op] = min(least + int(rng.random() < rises), target.num_chips - 1)
        order = order[np.argsort(chip[order], kind="stable")]
        group_of = greedy_fusion(roles, order) * target.num_chips + chip
        terms = evaluate_batch(tables, chip[None], order[None], group_of[None].astype(np.int32))
        assert terms.latency_s[0] >= bound_s * (1 - 1e-9)


def _drawn_way(rng: np.random.Generator, graph: Graph) -> tuple[Split, ...]:
    way: list[Split] = []
    for block in blocks_of(graph):
        parts = int(rng.integers(1, 5))
        if parts > 1 and is_open(graph, block, parts):
            way += splits_of_blocks(graph, [block], parts)
    return tuple(way)
