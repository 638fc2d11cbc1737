"""The genetic search over orders and kernels."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import go_opt
from go_opt.model.builder import GraphBuilder
from go_opt.model.plan import Candidate
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.genetic import decoded, joint_keys
from go_opt.solver.orders.instance import OrderProblem, instance
from go_opt.solver.orders.joint_orders import joint_orders
from go_opt.solver.verify.verifier import verify
from tests.strategies import small_mcm, toy_graph

EVALUATIONS = 150


@pytest.fixture(scope="module")
def branchy() -> OrderProblem:
    """Two chains side by side, stored in turn: a cut crosses both, 20 us of link.

    One after the other they take 12 us, their 24 ops of 3 us on six chips.
    """
    b = GraphBuilder("two chains")
    for i in range(12):
        for chain in "ab":
            reads = [(f"{chain}{i - 1}", None)] if i else []
            b.add_op(
                f"op {chain}{i}", "Relu", "vector", flops=0, dtype="int8", reads=reads,
                writes=[(f"{chain}{i}", 1000, "int8")], measured_s={"chip": 3e-6},
            )  # fmt: skip
    return instance(b.build(), small_mcm(6))


def test_plans_are_valid_and_cost_what_they_say(branchy: OrderProblem) -> None:
    searches = (
        joint_orders(Slicer(branchy, "adjacent"), seed=0),
        joint_orders(Slicer(branchy, "relayed"), seed=0),
    )
    triangle = branchy.target.constraints.triangle
    for plans in searches:
        for found in filter(None, islice(plans, EVALUATIONS)):
            plan = Candidate("test", found.placement, found.order, found.fusion_group).plan(
                branchy.graph, branchy.target
            )
            relays = needed_relays(branchy.tables, found.placement, triangle)
            plan = replace(plan, relays=relays_of_arrays(branchy.graph, *relays))
            assert verify(branchy.graph, branchy.target, plan) == []
            metrics = go_opt.evaluate(branchy.graph, branchy.target, plan)
            assert metrics.interval_s == pytest.approx(found.expected_s, rel=1e-9)


def test_nothing_that_fits_is_no_plan() -> None:
    case = instance(toy_graph(), small_mcm(2, sram_bytes=1999))
    slicer = Slicer(case, "relayed")
    assert list(islice(joint_orders(slicer, seed=0), 70)) == [None] * 70


def test_joint_search_repeats_itself(branchy: OrderProblem) -> None:
    slicer = Slicer(branchy, "adjacent")
    one, two = ([*islice(joint_orders(slicer, seed=3), EVALUATIONS)] for _ in range(2))
    assert [plan and plan.expected_s for plan in one] == [plan and plan.expected_s for plan in two]


def test_joint_search_goes_on_from_what_others_know(branchy: OrderProblem) -> None:
    slicer = Slicer(branchy, "adjacent")
    one_chain_first = np.array([*range(0, 24, 2), *range(1, 24, 2)], dtype=np.int32)
    sliced = slicer(one_chain_first, branchy.fusion_group)
    assert sliced is not None
    assert sliced.order is one_chain_first
    plans = filter(None, islice(joint_orders(slicer, seed=0, known=lambda: sliced), EVALUATIONS))
    same = [plan for plan in plans if plan.order.tolist() == one_chain_first.tolist()]
    assert same[0].fusion_group.tolist() == branchy.fusion_group.tolist()
    assert same[0].expected_s == pytest.approx(12e-6)


def test_keys_of_a_plan_give_its_kernels() -> None:
    """In ``toy_graph`` dense + relu and mix + add share kernels by default; none do, then all again."""
    case = instance(toy_graph(), small_mcm(2))
    for group in (case.order, case.fusion_group):
        kernels, order = decoded(case, joint_keys(case, case.order, group))
        assert kernels.tolist() == group.tolist()
        assert order.tolist() == case.order.tolist()
