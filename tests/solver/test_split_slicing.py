"""Segments split by branches: heavy ones side by side, by hand; what is split is valid."""

from __future__ import annotations

import numpy as np
import pytest

import go_opt
from go_opt.env import cost_tables
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Decide, Request
from go_opt.search.optimizer import optimize_request
from go_opt.solver import slice_order, verify
from go_opt.solver.slicing.split import slice_order_split
from tests.strategies import examples, random_graph, random_order, small_mcm

BRANCHES, LAYERS = 4, 2


@pytest.fixture(scope="module")
def stack() -> Graph:
    """Twice four branches of 6 us between joins of 1 us, 51 us in all.

    Adjacent: the branches of a layer, what they read and their join share two chips, and the join in
    the middle is in both layers: 13 + 19 + 19 us.
    """
    b = GraphBuilder("stack")

    def op(name: str, seconds: float, reads: list[str]) -> str:
        b.add_op(
            name, "Relu", "vector", flops=0, dtype="int8", reads=[(read, None) for read in reads],
            writes=[(f"{name} out", 10, "int8")], measured_s={"chip": seconds},
        )  # fmt: skip
        return f"{name} out"

    last = op("first", 1e-6, [])
    for layer in range(LAYERS):
        branches = [op(f"branch {layer} {i}", 6e-6, [last]) for i in range(BRANCHES)]
        last = op(f"join {layer}", 1e-6, branches)
    return b.build()


def plan_of(graph: Graph, target, placement, order) -> Plan:
    return Plan.create(
        graph,
        target.source,
        target.fingerprint,
        placement=placement,
        order=order,
        fusion_group=np.arange(graph.num_ops),
        provenance="test",
    )


@pytest.mark.parametrize(("num_chips", "interval_s"), [(11, 6e-6), (12, 6e-6), (7, 12e-6), (6, 13e-6)])
def test_branches_get_chips_of_their_own(stack: Graph, num_chips: int, interval_s: float) -> None:
    """first | 4 branches | join | 4 branches | join: 11 chips of 6 us, or 7 of 12 us, 2 for 4 branches."""
    target = small_mcm(num_chips)
    tables, each = cost_tables(stack, target), np.arange(stack.num_ops, dtype=np.int32)
    adjacent = slice_order(tables, each, each, passing="adjacent")
    assert adjacent is not None
    assert adjacent.interval_s == pytest.approx(19e-6)
    placement = slice_order_split(stack, tables, each, each, at_most_s=adjacent.interval_s)
    assert placement is not None
    plan = plan_of(stack, target, placement, each)
    assert verify(stack, target, plan) == []
    assert go_opt.evaluate(stack, target, plan).interval_s == pytest.approx(interval_s)
    assert slice_order_split(stack, tables, each, each, at_most_s=0.99 * interval_s) is None


@pytest.mark.parametrize("decide", ["all", "placement"])
def test_the_portfolio_splits_under_the_strict_rule(stack: Graph, decide: Decide) -> None:
    request = Request(max_evaluations=30, relays=False, replication=False, decide=decide)
    result = optimize_request(stack, small_mcm(12), request)
    assert result.metrics.interval_s == pytest.approx(6e-6)
    assert result.plan.relays == ()


def test_splits_are_valid() -> None:
    found = 0
    for seed in range(examples(80)):
        rng = np.random.default_rng([seed, 31])
        graph = random_graph(rng, int(rng.integers(3, 14)))
        target = small_mcm(int(rng.integers(2, 9)), sram_bytes=10**9, link_bytes_per_s=1e12)
        tables, order = cost_tables(graph, target), random_order(rng, graph)
        each = np.arange(graph.num_ops, dtype=np.int32)
        adjacent = slice_order(tables, order, each, passing="adjacent")
        assert adjacent is not None
        placement = slice_order_split(graph, tables, order, each, at_most_s=adjacent.interval_s * (1 + 1e-9))
        assert placement is not None  # a slicing is one without a split
        plan = plan_of(graph, target, placement, order)
        assert verify(graph, target, plan) == []
        reached_s = float(go_opt.evaluate(graph, target, plan).compute_s.max())
        assert reached_s <= adjacent.interval_s * (1 + 1e-9)
        found += reached_s < adjacent.interval_s * (1 - 1e-3)
    assert found > 0 or examples(80) < 80
