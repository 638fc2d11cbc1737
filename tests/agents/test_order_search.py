"""Searches over orders: genetic, and seeded by slicing without the triangle rule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import go_opt
import go_opt.solver.orders.joint_orders as joint_order_search
from go_opt.env import list_schedule
from go_opt.model.builder import GraphBuilder
from go_opt.model.plan import Plan
from go_opt.solver import Passing, verify
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.orders.cheapest import Slicer
from go_opt.solver.orders.genetic import decoded, genetic_search, joint_keys, order_keys
from go_opt.solver.orders.instance import Instance, instance
from go_opt.solver.orders.joint_orders import joint_orders
from go_opt.solver.orders.order_search import (
    HOPELESS,
    OrderPlan,
    genetic_orders,
)
from go_opt.solver.orders.orders import fixed_orders
from go_opt.solver.orders.seeded import order_along, seeded_orders
from go_opt.solver.orders.tied_keys import TiedKeys
from tests.strategies import small_mcm, toy_graph

EVALUATIONS = 150


@pytest.fixture(scope="module")
def branchy() -> Instance:
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


@pytest.fixture(scope="module")
def recurrent() -> Instance:
    """The same two chains, all ops of each reading its weight of 1,500 bytes; chips hold 2,500.

    Stored in turn, every chip of several ops holds one weight and streams the other.
    """
    b = GraphBuilder("two recurrent chains")
    for chain in "ab":
        b.add_tensor(f"w{chain}", 1500, "int8", "weight")
    for i in range(12):
        for chain in "ab":
            reads = [(f"w{chain}", None)] + ([(f"{chain}{i - 1}", None)] if i else [])
            b.add_op(
                f"op {chain}{i}", "Relu", "vector", flops=0, dtype="int8", reads=reads,
                writes=[(f"{chain}{i}", 100, "int8")], measured_s={"chip": 3e-6},
            )  # fmt: skip
    return instance(b.build(), small_mcm(6, sram_bytes=2500))


def best_s(plans: Iterator[OrderPlan | None]) -> float:
    return min(plan.interval_s for plan in islice(plans, EVALUATIONS) if plan is not None)


@pytest.mark.parametrize("passing", ["adjacent", "relayed"])
def test_genetic_search_starts_with_the_default_order_and_repeats_itself(
    branchy: Instance, passing: Passing
) -> None:
    slicer, group = Slicer(branchy, passing), branchy.fusion_group
    plans = list(islice(genetic_orders(slicer, group, seed=1), EVALUATIONS))
    default = slicer(branchy.order, group)
    assert default is not None
    assert plans[0] is not None
    assert plans[0].interval_s == pytest.approx(default.interval_s)
    assert plans[0].order.tolist() == branchy.order.tolist()
    again = list(islice(genetic_orders(slicer, group, seed=1), EVALUATIONS))
    reached = [None if plan is None else plan.interval_s for plan in plans]
    assert reached == [None if plan is None else plan.interval_s for plan in again]
    assert default.interval_s == pytest.approx(20e-6)
    assert min(s for s in reached if s is not None) < 20e-6


def test_plans_are_valid_and_cost_what_they_say(branchy: Instance) -> None:
    strict, relayed, group = Slicer(branchy, "adjacent"), Slicer(branchy, "relayed"), branchy.fusion_group
    orders = [branchy.order, *(order for _, order in fixed_orders(branchy.graph, group))]
    searches = (
        genetic_orders(strict, group, seed=0),
        seeded_orders(strict, group, orders, seed=0),
        genetic_orders(relayed, group, seed=0),
        joint_orders(strict, seed=0),
        joint_orders(relayed, seed=0),
    )
    triangle = branchy.target.constraints.triangle
    for plans in searches:
        for found in filter(None, islice(plans, EVALUATIONS)):
            plan = Plan.create(
                branchy.graph,
                branchy.target.source,
                branchy.target.fingerprint,
                placement=found.placement,
                order=found.order,
                fusion_group=found.fusion_group,
                provenance="test",
            )
            relays = needed_relays(branchy.tables, found.placement, triangle)
            plan = replace(plan, relays=relays_of_arrays(branchy.graph, *relays))
            assert verify(branchy.graph, branchy.target, plan) == []
            metrics = go_opt.evaluate(branchy.graph, branchy.target, plan)
            assert metrics.interval_s == pytest.approx(found.interval_s, rel=1e-9)


def test_refusing_who_cannot_be_an_elite_costs_nothing(branchy: Instance) -> None:
    # Without structured orders both start with the default order and the same random keys.
    slicer, group = Slicer(branchy, "adjacent"), branchy.fusion_group

    def interval_s(keys):
        sliced = slicer(list_schedule(branchy.graph, group, keys), group)
        return math.inf if sliced is None else sliced.interval_s

    first = order_keys(branchy.order, group)
    plain = [
        genetic_search(interval_s, len(first), evaluations=EVALUATIONS, seed=seed, first=first)[0]
        for seed in range(3)
    ]
    quick = [best_s(genetic_orders(slicer, group, seed=seed)) for seed in range(3)]
    assert np.median(quick) <= np.median(plain) * 1.01


def test_where_weights_stream(recurrent: Instance) -> None:
    group = recurrent.fusion_group
    plain = Slicer(recurrent, "relayed")
    default = plain(recurrent.order, group)
    assert default is not None
    # 72 us of work on six chips; in turn, the second weight streams to each chip of both chains.
    assert default.interval_s > 13e-6
    capped = Slicer(recurrent, "relayed", cap_s=HOPELESS * default.interval_s)
    assert best_s(genetic_orders(capped, group, seed=0)) == pytest.approx(12e-6)


def test_seeds_are_among_the_first(branchy: Instance) -> None:
    slicer, group = Slicer(branchy, "adjacent"), branchy.fusion_group
    orders = [order for _, order in fixed_orders(branchy.graph, group)]
    seeded = [plan for plan in islice(seeded_orders(slicer, group, orders, seed=0), 40) if plan is not None]
    best = min(seeded, key=lambda plan: plan.interval_s)
    second = next(islice(genetic_orders(slicer, group, seed=0, seeds=[best.order]), 1, None))
    assert second is not None
    assert second.interval_s == pytest.approx(best.interval_s, rel=1e-9)


def test_seeded_orders_repeat_themselves(branchy: Instance) -> None:
    slicer, group = Slicer(branchy, "adjacent"), branchy.fusion_group
    one, two = ([*islice(seeded_orders(slicer, group, [branchy.order], seed=7), 20)] for _ in range(2))
    assert [plan and plan.placement.tolist() for plan in one] == [
        plan and plan.placement.tolist() for plan in two
    ]


def test_order_along_keeps_kernels_together() -> None:
    order, group = np.arange(6, dtype=np.int32), np.array([0, 1, 1, 2, 3, 4], dtype=np.int32)
    placement = np.array([0, 1, 1, 0, 1, 2], dtype=np.int32)
    assert order_along(placement, order, group).tolist() == [0, 3, 1, 2, 4, 5]


def test_nothing_that_fits_is_no_plan() -> None:
    case = instance(toy_graph(), small_mcm(2, sram_bytes=1999))
    slicer = Slicer(case, "relayed")
    assert list(islice(genetic_orders(slicer, case.fusion_group, seed=0), 70)) == [None] * 70


def test_where_weights_stream_joint_keys_are_ranked_by_bounds(
    recurrent: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint_order_search, "LONG", 0)
    slicer = Slicer(recurrent, "relayed")
    plans = [*islice(joint_orders(slicer, seed=0), EVALUATIONS)]
    reached = [plan.interval_s for plan in plans if plan is not None]
    # While slices stream, only what is better than all before is sliced for good.
    assert min(reached) == pytest.approx(12e-6)
    assert len(reached) < EVALUATIONS // 10


def test_joint_search_repeats_itself(branchy: Instance) -> None:
    slicer = Slicer(branchy, "adjacent")
    one, two = ([*islice(joint_orders(slicer, seed=3), EVALUATIONS)] for _ in range(2))
    assert [plan and plan.interval_s for plan in one] == [plan and plan.interval_s for plan in two]


def test_joint_search_goes_on_from_what_others_know(branchy: Instance) -> None:
    slicer = Slicer(branchy, "adjacent")
    one_chain_first = np.array([*range(0, 24, 2), *range(1, 24, 2)], dtype=np.int32)
    sliced = slicer(one_chain_first, branchy.fusion_group)
    assert sliced is not None
    known = OrderPlan(sliced.placement, one_chain_first, branchy.fusion_group, sliced.interval_s)
    # Behind a generation of tied keys.
    plans = filter(None, islice(joint_orders(slicer, seed=0, known=lambda: known), EVALUATIONS))
    same = [plan for plan in plans if plan.order.tolist() == one_chain_first.tolist()]
    assert same[0].fusion_group.tolist() == branchy.fusion_group.tolist()
    assert same[0].interval_s == pytest.approx(12e-6)


def test_keys_of_a_plan_give_its_kernels() -> None:
    """In ``toy_graph`` dense + relu and mix + add share kernels by default; none do, then all again."""
    case = instance(toy_graph(), small_mcm(2))
    for group in (case.order, case.fusion_group):
        kernels, order = decoded(case, joint_keys(case, case.order, group))
        assert kernels.tolist() == group.tolist()
        assert order.tolist() == case.order.tolist()


def test_tied_keys_of_joint_search_are_those_of_their_classes() -> None:
    """Three classes; the second block begins behind the first, strictly: its places come later."""
    tie = TiedKeys(np.array([0, 1, 0, 1, 2]), np.array([0.0, 0.0, 1.0, 1.0, 0.0]))
    genome = np.array([0.7, 0.2, 0.5, 1.0, 0.1, 0.9, 0.4])
    keys = joint_order_search._untied(tie, genome)
    assert keys.tolist() == pytest.approx([0.7, 0.2, -0.3, -0.8, 0.5, 0.1, 0.9, 0.1, 0.9, 0.4])
