"""Searches that divide states: which ops go together, orders by arrival, and plans of a decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import go_opt
from go_opt import from_onnx
from go_opt.env import cost_tables, evaluate_plan
from go_opt.env.copies.splits import planned_graph, split_graph, state_names
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Split
from go_opt.model.start import Start
from go_opt.result import Request
from go_opt.search import split_race
from go_opt.search.optimizer import optimize_request
from go_opt.search.splits.block_ways import PARTS, fine_ways, is_open, splits_of_blocks, state_blocks
from go_opt.solver.orders.orders import by_arrival
from go_opt.solver.verify.verifier import verify
from tests.decoders import decoder, lstm_cell
from tests.strategies import examples, make_plan, random_graph, seeds, small_mcm


def divided(graph: Graph) -> list[dict[str, str]]:
    """For each block around states, the factor of each op."""
    return [
        {graph.op_names[op]: graph.known_rule_of(op).rule.factors[factor].name for op, factor in block}
        for block in state_blocks(graph)
    ]


def test_heads_go_from_the_products_before_a_cache_to_the_one_behind() -> None:
    (block,) = divided(from_onnx(decoder(layers=1)))
    assert block == {
        "0.q_product": "j", "0.k_product": "j", "0.v_product": "j", "0.keys": "d1", "0.values": "d1",
        "0.turn": "d1", "0.scores": "b1", "0.scaled": "d1", "0.shares": "d1", "0.mixed": "b1",
        "0.projected": "k",
    }  # fmt: skip


def test_heads_that_share_keys_are_divided_by_groups() -> None:
    graph = from_onnx(decoder(layers=1, heads=6, group=3))
    (block,) = state_blocks(graph)
    assert [parts for parts in PARTS if is_open(graph, block, parts)] == [2]
    split = split_graph(graph, tuple(splits_of_blocks(graph, [block], 2)))
    assert [int(split.tensor_elements[state.read]) for state in split.states] == [10 * 8] * 4


def test_units_of_a_cell_are_divided_where_they_are_read_and_written() -> None:
    """The product that reads the hidden state is divided along its sums; its result is added up."""
    (block,) = divided(from_onnx(lstm_cell()))
    assert (block["kept"], block["hidden"], block["cell"], block["y"]) == ("k", "d1", "d1", "k")
    assert not {"given", "gates", "gate"} & block.keys(), "gates lie one behind another"


@given(seeds)
@settings(max_examples=examples(40), deadline=None)
def test_orders_by_arrival_keep_the_loads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = random_graph(rng, int(rng.integers(2, 20))), small_mcm(4)
    placement = np.sort(rng.integers(0, 4, graph.num_ops)).astype(np.int32)
    placement = np.unique(placement, return_inverse=True)[1].astype(np.int32)
    each = np.arange(graph.num_ops, dtype=np.int32)
    before = make_plan(graph, target, placement, order=each, fusion_group=each)
    order = by_arrival(cost_tables(graph, target), placement, each, each)
    after = Candidate("test", placement, order, each).plan(graph, target)
    one, other = (evaluate_plan(graph, target, plan) for plan in (before, after))
    np.testing.assert_allclose(one.compute_s, other.compute_s)
    place = np.argsort(order)
    assert (place[graph.edge_src] < place[graph.edge_dst]).all()


def test_a_chip_runs_what_arrives_first() -> None:
    """Part 2 has all it needs before the last op of part 1, which waits for another chip."""
    graph = from_onnx(decoder(layers=1, heads=8))
    target = small_mcm(2)
    way = tuple(splits_of_blocks(graph, state_blocks(graph), 2))
    split = split_graph(graph, way)
    each = np.arange(split.num_ops, dtype=np.int32)
    is_late = np.array(["part 2 of 2" in name or "projected" in name for name in split.op_names])
    is_late |= np.array([split.op_index["0.projected"] < op for op in range(split.num_ops)])
    placement = is_late.astype(np.int32)
    order = by_arrival(cost_tables(split, target), placement, each, each)
    plans = [Candidate("test", placement, one, each).plan(split, target) for one in (each, order)]
    before_s, after_s = (evaluate_plan(split, target, plan).latency_s for plan in plans)
    assert after_s <= before_s
    assert not [one for one in verify(split, target, plans[1]) if one.constraint not in ("memory", "splits")]


def test_ways_divide_long_ops_until_they_are_short() -> None:
    graph, target = from_onnx(decoder(heads=8, width=64)), go_opt.target("mcm-2x2")
    for way in fine_ways(graph, target, list(state_blocks(graph))):
        assert {split.parts for split in way} <= {2, 3, 4}
        split_graph(graph, way)


def test_a_search_divides_states() -> None:
    """Each state of two sequences takes 8.2 MB, and no chip has as much."""
    graph = from_onnx(decoder(layers=1, heads=8, width=64, past=4000))
    target = small_mcm(4, sram_bytes=6_500_000)
    result = go_opt.optimize(graph, target, max_evaluations=40, sequences=2, policy=None)
    assert len(split_graph(graph, result.plan.splits).states) > len(graph.states)
    assert go_opt.verify(graph, target, result.plan) == []
    assert result.lower_bound_s <= result.metrics.interval_s


@pytest.mark.parametrize("continues", [True, False])
def test_a_search_that_continues_tries_no_whole_ops_again(
    monkeypatch: pytest.MonkeyPatch, *, continues: bool
) -> None:
    graph, target = from_onnx(decoder(layers=1)), small_mcm(4)
    way = tuple(splits_of_blocks(graph, state_blocks(graph), 2))
    found = go_opt.optimize(split_graph(graph, way), target, max_evaluations=5, sequences=2, splits=False)
    plan = replace(found.plan, splits=way)
    start = replace(Start.of_plan(plan, planned_graph(graph, plan).op_names), continues=continues)
    tried, run = list[tuple[Any, tuple[Split, ...]]](), split_race.SplitSearch._run

    def recorded(search: Any, way: tuple[Split, ...], *args: Any, **options: Any) -> Any:
        tried.append((search, way))
        return run(search, way, *args, **options)

    monkeypatch.setattr(split_race.SplitSearch, "_run", recorded)
    optimize_request(graph, target, Request(start=start, sequences=2, max_evaluations=12, policy=None))
    ways = [way for search, way in tried if search is tried[0][0]]  # with all states on the chips
    assert ways[0] == way
    assert (() in ways) != continues


def test_parts_of_states_leave_for_the_host_together() -> None:
    graph = from_onnx(decoder(layers=1))
    plan = make_plan(graph, small_mcm(), np.zeros(graph.num_ops, np.int32))
    way = tuple(splits_of_blocks(graph, state_blocks(graph), 2))
    plan = replace(plan, splits=way, graph_fingerprint=split_graph(graph, way).fingerprint)
    names = state_names(graph, plan)
    assert len(names) == 4
    assert set(names.values()) == {"past_key_values.0.key", "past_key_values.0.value"}
