"""Slicing through kernels, by hand and against every fusion of tiny graphs."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import go_opt
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Request
from go_opt.search.optimizer import optimize_request
from go_opt.solver import Passing, verify
from go_opt.solver.certify.problem.op_shares import loose_refinement_problem, op_share_s
from go_opt.solver.certify.refinement import Refinement
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.orders.cheapest import CheapestSlicing, Slicer
from go_opt.solver.orders.instance import Instance, instance
from go_opt.solver.orders.joint_orders import joint_orders
from go_opt.solver.orders.loose_orders import loose_orders
from go_opt.solver.orders.loose_slicing import loose_slicings
from go_opt.solver.orders.order_search import OrderPlan
from tests.solver.brute_force import all_fusions, all_slicings, evaluate_placements
from tests.strategies import examples, random_graph, small_mcm, toy_graph


@pytest.fixture(scope="module")
def one_kernel() -> Graph:
    """A matrix op of 8 us and two relus of 4 us: one kernel of 17 us, its overhead included.

    On two chips the matrix op takes 9 us and both relus, as one kernel, 9 us. As three kernels
    the relus take 10 us. 200 bytes cross a cut, 2 us.
    """
    b = GraphBuilder("one kernel")
    b.add_tensor("x", 100, "bfloat16", "input")
    for name, op_type, op_class, flops, read, write in (
        ("dense", "MatMul", "matrix", 8000, "x", "h"),
        ("relu", "Relu", "vector", 400, "h", "a"),
        ("again", "Relu", "vector", 400, "a", "y"),
    ):
        b.add_op(
            name, op_type, op_class, flops=flops, dtype="bfloat16",
            reads=[(read, None)], writes=[(write, 100, "bfloat16")],
        )  # fmt: skip
    b.mark_output("y")
    return b.build()


def loosened(slicer: Slicer, start: CheapestSlicing) -> OrderPlan:
    """The best plan along the default order."""
    case = slicer.instance
    best = OrderPlan(start.placement, case.order, case.fusion_group, start.interval_s)
    rng = np.random.default_rng(0)
    for plan in loose_slicings(slicer, case.order, case.fusion_group, start, rng=rng, draws=2):
        assert plan is None or plan.interval_s < best.interval_s
        best = best if plan is None else plan
    return best


def assert_costs_what_it_says(case: Instance, found: OrderPlan, passing: Passing) -> None:
    plan = Plan.create(
        case.graph,
        case.target.source,
        case.target.fingerprint,
        placement=found.placement,
        order=found.order,
        fusion_group=found.fusion_group,
        provenance="test",
    )
    if passing == "relayed":
        relays = needed_relays(case.tables, found.placement, case.target.constraints.triangle)
        plan = replace(plan, relays=relays_of_arrays(case.graph, *relays))
    assert verify(case.graph, case.target, plan) == []
    metrics = go_opt.evaluate(case.graph, case.target, plan)
    assert metrics.interval_s == pytest.approx(found.interval_s, rel=1e-9)


def test_shares_by_hand() -> None:
    """``toy_graph``: kernels embed 3.4, dense + relu 14, mix + add 8, logits 14 us.

    dense alone takes 9 us, relu alone 6 of the 14: 8.5 and 5.5. mix alone takes 5 us, add alone
    6 of the 8: 3.5 and 4.5.
    """
    case = instance(toy_graph(), small_mcm(2))
    seconds = op_share_s(case.tables, case.order, case.fusion_group) * 1e6
    assert seconds == pytest.approx([3.4, 8.5, 5.5, 3.5, 4.5, 14.0])


def test_shares_add_up_to_their_kernels() -> None:
    for seed in range(examples(50)):
        graph = random_graph(np.random.default_rng([seed, 23]), 12)
        case = instance(graph, small_mcm(3))
        shares = op_share_s(case.tables, case.order, case.fusion_group)
        assert (shares >= 0).all()
        on_one_chip = np.zeros((1, graph.num_ops), np.int32)
        whole = evaluate_placements(case.tables, on_one_chip, case.order, case.fusion_group)
        assert shares.sum() == pytest.approx(float(whole.compute_s[0, 0]), rel=1e-9)


def test_a_kernel_is_cut_where_it_stands_in_the_way(one_kernel: Graph) -> None:
    case = instance(one_kernel, small_mcm(2))
    slicer = Slicer(case, "adjacent")
    whole = slicer(case.order, case.fusion_group)
    assert whole is not None
    assert whole.interval_s == pytest.approx(17e-6)
    cut = loosened(slicer, whole)
    assert cut.interval_s == pytest.approx(9e-6)
    assert cut.placement.tolist() == [0, 1, 1]
    assert cut.fusion_group.tolist() == [0, 1, 1]
    assert_costs_what_it_says(case, cut, "adjacent")


def test_refinement_cuts_between_any_two_ops(one_kernel: Graph) -> None:
    """Shares: 8.5 us, (13 + 12) / 2 - 8.5 = 4 us and 17 - 12.5 = 4.5 us."""
    case = instance(one_kernel, small_mcm(2))
    problem = loose_refinement_problem(
        one_kernel, case.tables, case.order, case.fusion_group, passing="adjacent"
    )
    assert problem.unit_s * 1e6 == pytest.approx([8.5, 4.0, 4.5])
    refinement = Refinement(problem)
    refinement.run(100)
    assert refinement.placement is not None
    assert refinement.placement.tolist() == [0, 1, 1]


@pytest.mark.parametrize("relays", [False, True])
def test_the_portfolio_cuts_kernels(one_kernel: Graph, relays: bool) -> None:
    request = Request(max_evaluations=30, relays=relays, replication=False)
    result = optimize_request(one_kernel, small_mcm(2), request)
    assert result.metrics.interval_s == pytest.approx(9e-6)


@pytest.mark.parametrize("passing", ["adjacent", "relayed"])
def test_between_whole_kernels_and_the_best_fusion(passing: Passing) -> None:
    """No slicing along the order, with any legal kernels, takes less; few leave something to gain."""
    missed = 0
    for seed in range(examples(40)):
        rng = np.random.default_rng([seed, 29])
        graph = random_graph(rng, int(rng.integers(2, 7)), max_elements=int(rng.choice([50, 500])))
        case = instance(graph, small_mcm(3, sram_bytes=10**9, link_bytes_per_s=1e9))
        slicer = Slicer(case, passing)
        whole = slicer(case.order, case.fusion_group)
        assert whole is not None
        found = loosened(slicer, whole)
        assert_costs_what_it_says(case, found, passing)
        assert found.interval_s <= whole.interval_s
        if passing == "relayed":
            continue
        least_s = np.inf
        for group in all_fusions(graph, case.order):
            placements = all_slicings(graph, case.tables, case.order, group, adjacent=True, max_chips=3)
            terms = evaluate_placements(case.tables, placements, case.order, group)
            least_s = min(least_s, float(terms.interval_s.min()))
        assert found.interval_s >= least_s * (1 - 1e-9)
        missed += found.interval_s > least_s * (1 + 1e-9)
    assert missed <= examples(40) // 5


@pytest.mark.parametrize("search", ["kernels", "joint"])
def test_orders_are_searched_through_their_kernels(one_kernel: Graph, search: str) -> None:
    for graph in (one_kernel, toy_graph()):
        case = instance(graph, small_mcm(3))
        slicer = Slicer(case, "adjacent")
        found, again = (
            [
                *islice(
                    loose_orders(slicer, case.fusion_group, seed=3)
                    if search == "kernels"
                    else joint_orders(slicer, seed=3),
                    80,
                )
            ]
            for _ in range(2)
        )
        assert [plan and plan.interval_s for plan in found] == [plan and plan.interval_s for plan in again]
        for plan in filter(None, found):
            assert_costs_what_it_says(case, plan, "adjacent")
