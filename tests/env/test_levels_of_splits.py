"""Ops in parts that are divided again: layers that chips share, in replicas with shares of the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import load_target
from go_opt.env.copies.parts import Held, rule_of_move
from go_opt.env.copies.pieces import Cut, Piece
from go_opt.env.copies.splits import planned_graph, split_graph, split_graph_and_parts, split_levels
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Split
from go_opt.search.replicas.layers import LayerWays
from go_opt.search.replicas.ways import batch_factors, replicas_of_layers, replicated_way, updates_of
from go_opt.solver.verify.splits import broken_splits
from tests.env.split_mutants import mutants
from tests.env.split_oracle import whole_values
from tests.env.test_splits import checked
from tests.env.test_training_splits import reads, step
from tests.strategies import examples, seeds

COLUMNS_AND_ROWS = {"h0": "j", "h1": "k"}  # of the weights of two products, as in a feed-forward layer


def two_by_two() -> tuple[Graph, tuple[Split, ...]]:
    """A step of two products on two chips, each of which has a half of both weights; and two replicas."""
    graph = step(4, (2, 4, 2))
    way = shared(graph, 2)
    assert {one.op: one.factor for one in way if one.op in COLUMNS_AND_ROWS} == COLUMNS_AND_ROWS
    return graph, replicas_of_layers(graph, way, 2)


def shared(graph: Graph, parts: int, replicas: int = 2) -> tuple[Split, ...]:
    along = batch_factors(graph, 1)
    ways = LayerWays(graph, load_target("h100-sxm-8"), along, updates_of(graph, along))
    found = ways.best(parts, replicas)
    return found.way if found is not None else ()


def test_two_replicas_of_two_chips_by_hand() -> None:
    """h0 = x w0 by columns, h1 = h0 w1 by what it sums over; each gradient is summed over two replicas."""
    graph, way = two_by_two()
    (_, first), (_, second) = split_levels(graph, way)
    after = second.graph
    assert reads(first.graph, "h1") == {"h1/sent 1 of 2", "h1/sent 2 of 2"}  # all-reduce
    columns = [f"w0/elements {2 * i} to {2 * i + 2} of 4" for i in range(2)]
    rows = [f"x/replica elements {4 * i} to {4 * i + 4} of 8" for i in range(2)]
    for i, copy in enumerate(("", "/replica copy 2 of 2")):
        for j in range(2):
            part = f"h0/part {j + 1} of 2/replica part {i + 1} of 2"
            assert reads(after, part) == {rows[i], columns[j] + copy}
            assert after.op_flops[after.op_index[part]] == 2 * 2 * 2 * 2  # rows, inner, columns
    for j, bucket in enumerate((4, 7)):  # the sums of a chip's share of the weights are one collective
        summed = reads(after, f"AllReduce of bucket {bucket}")
        assert {f"g{i}/part {j + 1} of 2/replica sent {k} of 2" for i in (0, 1) for k in (1, 2)} <= summed
    states = {after.tensor_names[one.read] for one in after.states}
    assert {columns[0], columns[1], columns[0] + copy, columns[1] + copy} <= states
    assert len(states) == 8  # a half of two weights on each of four chips
    assert split_graph(graph, way) is after


def test_parts_have_the_rules_of_their_ops() -> None:
    graph, way = two_by_two()
    base = split_graph_and_parts(graph, tuple(one for one in way if not one.level), is_last=False).graph
    part = base.known_rule_of(base.op_index["h0/part 1 of 2"]).rule
    assert [one.size for one in part.factors] == [4, 2, 2]
    total = base.known_rule_of(base.op_index["h1"]).rule
    assert [(one.kind, one.size) for one in total.factors] == [("parallel", 4), ("parallel", 2)]
    assert total.operands == (total.results[0],) * 2
    plain = split_graph_and_parts(graph, tuple(one for one in way if not one.level)).graph
    assert plain.op_rules == ()  # of the last level nothing is divided again
    assert plain.fingerprint == base.fingerprint


@settings(max_examples=examples(10))
@given(seed=seeds)
def test_both_levels_compute_the_step(seed: int) -> None:
    """Each level by an oracle over a prime field, and both by the verifier."""
    rng = np.random.default_rng(seed)
    widths = (4 * rng.integers(1, 3, size=int(rng.integers(3, 5)))).tolist()
    graph = step(8, tuple(widths), momentum=bool(rng.random() < 0.5))
    way = shared(graph, 2, int(rng.integers(1, 3)))
    if not way:
        return
    checked(graph, *way)
    base = split_graph_and_parts(graph, way, is_last=False).graph
    both = replicas_of_layers(graph, way, 2)
    checked(base, *both[len(way) :])
    assert list(broken_splits(graph, split_graph(graph, both), both)) == []


def coordinates(graph: Graph, op: int, places: list[list[int]]) -> None:
    """Assert that a parallel factor of a move divides what is read and written into the same elements."""
    row = graph.known_rule_of(op)
    accesses = [*row.rule.operands, *row.rule.results]
    for factor, one in enumerate(row.rule.factors):
        if one.kind != "parallel":
            continue
        found: list[dict[int, int]] = []
        for access, elements in zip(accesses, places, strict=True):
            (dimension,) = access
            sizes = [row.rule.size(piece) for piece in dimension]
            step_of = np.indices(sizes).reshape(len(sizes), -1)[dimension.index(factor)]
            found.append(dict(zip(elements, step_of.tolist(), strict=True)))
        for other in found[1:]:
            assert all(other[k] == found[0][k] for k in other.keys() & found[0].keys())


@pytest.mark.parametrize("seed", range(4))
def test_what_moves_has_a_rule_that_is_true(seed: int) -> None:
    """Steps of a parallel factor hold the same elements in all that an op reads and writes."""
    rng = np.random.default_rng(seed)
    graph = step(4, (4, 8, 4))
    k = graph.tensor_index["h0"]  # 4 by 8
    whole: Piece = ()
    pieces: list[Piece] = [whole, (Cut(8, 0, 4),), (Cut(8, 4, 8),), (Cut(32, 8, 24),), (Cut(4, 0, 2),)]
    held = {f"p{i}": Held(k, piece) for i, piece in enumerate(pieces)}
    for _ in range(20):
        sources = [f"p{i}" for i in rng.integers(0, len(pieces), 2)]
        result = pieces[int(rng.integers(len(pieces)))]
        ruled = rule_of_move(graph, k, sources, held, result)
        assert ruled is not None
        elements = [inside(held[one].piece, 32) for one in sources] + [inside(result, 32)]
        for access, found in zip((*ruled.rule.operands, *ruled.rule.results), elements, strict=True):
            assert np.prod([ruled.rule.size(piece) for dim in access for piece in dim]) == len(found)
        made = replace(graph, op_rules=(replaced(graph, ruled.rule), *graph.op_rules[1:]))
        coordinates(made, 0, elements)
    assert rule_of_move(graph, k, ["p0"], held, (Cut(5, 0, 1),)) is None  # along no loop of the tensor


def replaced(graph: Graph, rule):  # type: ignore[no-untyped-def]
    return graph.known_rule_of(0)._replace(rule=rule)


def inside(piece: Piece, elements: int) -> list[int]:
    return [k for k in range(elements) if all(cut.start <= k % cut.period < cut.stop for cut in piece)]


@settings(max_examples=examples(6))
@given(seed=seeds)
def test_faults_of_the_second_level_are_found(seed: int) -> None:
    graph, way = two_by_two()
    levels = split_levels(graph, way)
    for name, mutant in mutants(np.random.default_rng(seed), levels[-1][1]):
        assert list(broken_splits(graph, mutant, way)), name


def test_levels_in_a_plan() -> None:
    graph, way = two_by_two()
    base = split_graph_and_parts(graph, tuple(one for one in way if not one.level), is_last=False).graph
    assert whole_values(base)  # it has all rules
    assert replicated_way(base, 2)
    lone = tuple(one for one in way if one.level)
    with pytest.raises(PlanError, match="the graph has no op"):
        split_graph(graph, lone)
    after = split_graph(graph, way)
    plan = Plan.create(
        after,
        "h100-sxm-4",
        "",
        placement=np.zeros(after.num_ops),
        order=np.arange(after.num_ops),
        fusion_group=np.arange(after.num_ops),
        provenance="test",
    )
    plan = replace(plan, splits=way)
    assert planned_graph(graph, plan).fingerprint == after.fingerprint
    assert planned_graph(after, plan) is after
