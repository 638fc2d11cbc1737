"""A policy's plans: reproducible, half of them the prior's, in antithetic pairs, all valid."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from go_opt.agents.decoding import proposals
from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.decoding.proposals import Advice, advice, policy_plans
from go_opt.agents.inputs.features import NUM_EXPLORED, GraphFeatures, graph_features
from go_opt.env import Target, load_target
from go_opt.model.builder import GraphBuilder
from go_opt.model.plan import Candidate
from go_opt.solver.orders.instance import OrderProblem, instance
from go_opt.solver.orders.orders import schedule
from go_opt.solver.verify.verifier import verify
from go_opt.solver.walk.walk import NUM_FEATURES
from tests.strategies import chip_kind, random_graph, small_mcm, toy_graph

ROUND = ("policy: order and kernels", "structured keys: order and kernels") * 2 + ("policy: placement",)
CHIPS = 3


@pytest.fixture(scope="module")
def branchy() -> OrderProblem:
    graph = random_graph(np.random.default_rng(3), 40, precision="native")
    return instance(graph, small_mcm(CHIPS, sram_bytes=10**9))


def outputs(num_ops: int, seed: int | None) -> Outputs:
    """Of a policy that nothing was learned for (None), or of one that has its own opinion."""
    shapes = ((NUM_FEATURES,), (num_ops,), (num_ops,), (num_ops,), (2, NUM_EXPLORED))
    if seed is None:
        return Outputs(*(np.zeros(shape) for shape in shapes))
    rng = np.random.default_rng(seed)
    return Outputs(*(rng.standard_normal(shape) for shape in shapes))


def advised(on: OrderProblem, seed: int | None = 5) -> Advice:
    said = outputs(on.graph.num_ops, seed)
    return advice(lambda features: said, on.graph, on.target)


def drawn(on: OrderProblem, seed: int, count: int = 20) -> list[Candidate]:
    return list(islice(policy_plans(advised(on), on, seed), count))


def assert_same(plan: Candidate, other: Candidate) -> None:
    assert plan.method == other.method
    for part in ("placement", "order", "fusion_group"):
        np.testing.assert_array_equal(getattr(plan, part), getattr(other, part))


def test_methods_take_turns(branchy: OrderProblem) -> None:
    methods = [plan.method for plan in drawn(branchy, seed=0, count=11)]
    assert tuple(methods) == ("policy", *ROUND, *ROUND)


def test_same_seed_same_plans(branchy: OrderProblem) -> None:
    first = drawn(branchy, seed=7)
    for plan, again in zip(first, drawn(branchy, seed=7), strict=True):
        assert_same(plan, again)
    others = drawn(branchy, seed=8)
    assert any((plan.order != other.order).any() for plan, other in zip(first, others, strict=True))


def test_first_come_the_means(branchy: OrderProblem) -> None:
    said = advised(branchy).outputs
    mean = drawn(branchy, seed=0, count=1)[0]
    group, order = schedule(branchy, said.schedule_key, said.fusion_key)
    np.testing.assert_array_equal(mean.order, order)
    np.testing.assert_array_equal(mean.fusion_group, group)
    assert not len(mean.placement)


def test_walks_are_of_the_default_order_and_differ(branchy: OrderProblem) -> None:
    walks = [plan for plan in drawn(branchy, seed=0, count=60) if len(plan.placement)]
    assert len({plan.placement.tobytes() for plan in walks}) > 2
    for plan in walks:
        np.testing.assert_array_equal(plan.order, branchy.order)
        np.testing.assert_array_equal(plan.fusion_group, branchy.fusion_group)


def test_untrained_means_are_the_defaults(branchy: OrderProblem) -> None:
    mean = next(policy_plans(advised(branchy, None), branchy, 0))
    np.testing.assert_array_equal(mean.order, branchy.order)
    np.testing.assert_array_equal(mean.fusion_group, branchy.fusion_group)


def test_draws_are_antithetic_around_the_mean_and_around_zero(
    branchy: OrderProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[np.ndarray, np.ndarray]] = []

    def recorded(on: OrderProblem, schedule_key: np.ndarray, fusion_key: np.ndarray) -> tuple:
        keys.append((schedule_key, fusion_key))
        return schedule(on, schedule_key, fusion_key)

    monkeypatch.setattr(proposals, "schedule", recorded)
    drawn(branchy, seed=0, count=11)
    said = advised(branchy).outputs
    mean, own, prior = np.array(keys[0]), np.array(keys[1::2]), np.array(keys[2::2])
    np.testing.assert_array_equal(mean, [said.schedule_key, said.fusion_key])
    for first, second in (own[:2], own[2:]):
        np.testing.assert_allclose(first + second, 2 * mean)
    for first, second in (prior[:2], prior[2:]):
        np.testing.assert_allclose(first + second, 0.0, atol=1e-12)
    # Schedule and fusion keys have noise of their own.
    assert abs(np.corrcoef(prior[0])[0, 1]) < 0.99


@pytest.mark.parametrize(
    "target", [small_mcm(CHIPS, sram_bytes=10**9), load_target("mcm-6x6")], ids=["small", "6x6"]
)
def test_every_placement_is_valid(target: Target) -> None:
    graph = random_graph(np.random.default_rng(4), 30, precision="native")
    on = instance(graph, target)
    said = outputs(graph.num_ops, 1)
    plans = policy_plans(advice(lambda features: said, graph, target), on, seed=0)
    placed = [plan for plan in islice(plans, 60) if len(plan.placement)]
    assert len(placed) > 10
    for plan in placed:
        full = plan.plan(graph, target)
        assert [v.message for v in verify(graph, target, full) if v.constraint != "memory"] == []


def test_advice_is_one_pass_and_directions_by_op() -> None:
    graph, target = toy_graph(), small_mcm(2)
    asked: list[GraphFeatures] = []

    def policy(features: GraphFeatures) -> Outputs:
        asked.append(features)
        return outputs(features.num_ops, None)

    directions = advice(policy, graph, target).directions
    features = graph_features(graph, target)
    assert len(asked) == 1
    for row, op in enumerate(features.row_op):
        np.testing.assert_array_equal(directions[op], features.exploration[row])


def test_without_a_slicing_of_the_default_order_there_are_orders_only() -> None:
    target = small_mcm(kinds=[chip_kind("a"), chip_kind("b")])
    b = GraphBuilder("one op")
    b.add_op(
        "only", "Relu", "vector", flops=1, dtype="int8", reads=[], writes=[("out", 1, "int8")],
        excluded_kinds=["a", "b"],
    )  # fmt: skip
    on = instance(b.build(), target)
    said = outputs(1, 0)
    plans = policy_plans(advice(lambda features: said, on.graph, on.target), on, seed=0)
    assert [plan.method for plan in islice(plans, 9)] == ["policy", *ROUND[:4], *ROUND[:4]]
