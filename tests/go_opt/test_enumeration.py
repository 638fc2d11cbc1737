"""Tiny instances are solved: the best plan of all, proven, or the proof that there is none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, example, given, settings

import go_opt
from go_opt.env import Target, cost_tables, evaluate_plan, loop_roles
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.errors import InfeasibleError
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan, Relay
from go_opt.result import Request
from go_opt.search.methods.first_plans import Start, greedy
from go_opt.search.placements import local_search
from go_opt.search.state import Search
from go_opt.solver import broken_rules, placement_problem
from go_opt.solver.enumeration import plans as enumeration
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.user_constraints import ChipLimit, Forbid
from go_opt.solver.verify.rule_check import NONE
from tests.solver.brute_force import all_fusions, all_orders
from tests.solver.user_constraints import draw_constraint
from tests.strategies import examples, kind_names, random_graph, random_plan, random_target, seeds, small_mcm


def every_plan(graph: Graph, target: Target, decide: str) -> Iterator[Plan]:
    default = np.arange(graph.num_ops, dtype=np.int32)
    sequences = [(default, default)]
    if decide == "all":
        roles = loop_roles(graph, target.kernel_patterns)
        sequences = [
            (order, group) for order in all_orders(graph) for group in all_fusions(graph, order, roles)
        ]
    for order, group in sequences:
        for placement in itertools.product(range(target.num_chips), repeat=graph.num_ops):
            yield Candidate("test", np.array(placement), order, group).plan(graph, target)


def every_relayed_plan(graph: Graph, target: Target, decide: str) -> Iterator[Plan]:
    """Each plan with each choice of relays, needed or not."""
    for plan in every_plan(graph, target, decide):
        placement = plan.placement.tolist()
        places = []
        for k in np.flatnonzero(graph.tensor_producer >= 0).tolist():
            home = placement[graph.tensor_producer[k]]
            last = max((placement[op] for op in graph.readers_of(k)), default=home)
            places += [Relay(graph.tensor_names[k], (chip,)) for chip in range(home + 1, last)]
        for number in range(len(places) + 1):
            for relays in itertools.combinations(places, number):
                yield replace(plan, relays=relays)


def every_replicated_plan(graph: Graph, target: Target, decide: str) -> Iterator[Plan]:
    """Each plan with each number of chips for each of its stages."""
    for plan in every_plan(graph, target, decide):
        first, stage = np.unique(plan.placement, return_inverse=True)
        room = np.diff([*first, target.num_chips])
        for sizes in itertools.product(*(range(1, most + 1) for most in room)):
            yield replace(plan, replication=np.array(sizes, np.int32)[stage])


def least_s(graph: Graph, target: Target, request: Request) -> float:
    """The least objective of all plans that the verifier accepts; infinite if there is none.

    Plans that may have relays have no replicas.
    """
    found_s = np.inf
    plans = every_replicated_plan if request.replication else every_plan
    plans = every_relayed_plan if request.relays else plans
    for plan in plans(graph, target, request.decide):
        if not go_opt.verify(graph, target, plan, request.constraints):
            metrics = evaluate_plan(graph, target, plan)
            found_s = min(
                found_s, metrics.makespan_s if request.objective == "latency" else metrics.interval_s
            )
    return found_s


def of_single_stages(objective, decide, constraints, **options: Any) -> Request:
    """A request for plans that split and replicate nothing."""
    return Request(
        objective=objective, decide=decide, constraints=constraints,
        replication=False, splits=False, simulate=False, **options,
    )  # fmt: skip


def drawn(rng: np.random.Generator, most_ops: int) -> tuple[Graph, Target]:
    topology = ("ring", "chain", "all_to_all", "mesh2d")[int(rng.integers(4))]
    rules = {"no_skip": ("off", "prefix", "all")[int(rng.integers(3))]}
    if topology in ("ring", "chain"):
        rules["triangle"] = ("off", "longest_path", "three_chip", "adjacent")[int(rng.integers(4))]
    target = random_target(rng, topology=topology, num_chips=int(rng.integers(1, 4)), **rules)
    return random_graph(rng, int(rng.integers(1, most_ops + 1)), kinds=kind_names(target)), target


@pytest.mark.parametrize("decide", ["placement", "all"])
@pytest.mark.parametrize("objective", ["throughput", "latency"])
@settings(max_examples=examples(40))
@given(seed=seeds)
def test_the_best_of_all_plans_is_found_and_proven(objective, decide, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, target = drawn(rng, 4 if decide == "placement" else 3)
    constraints = tuple(draw_constraint(rng, graph, target) for _ in range(int(rng.integers(3))))
    request = of_single_stages(objective, decide, constraints, max_evaluations=300, relays=False)
    expected_s = least_s(graph, target, request)
    if np.isinf(expected_s):
        with pytest.raises(InfeasibleError) as error:
            go_opt.optimize(graph, target, request=request)
        assert error.value.is_proven
        return
    result = go_opt.optimize(graph, target, request=request)
    assert result.objective_s == pytest.approx(expected_s, rel=1e-6)
    assert result.status == "OPTIMAL"


@pytest.mark.parametrize("decide", ["placement", "all"])
@pytest.mark.parametrize("objective", ["throughput", "latency"])
@settings(max_examples=examples(20))
@given(seed=seeds)
def test_no_plan_with_relays_beats_the_proof(objective, decide, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rules = {"no_skip": ("off", "prefix", "all")[int(rng.integers(3))]}
    rules["triangle"] = ("longest_path", "three_chip", "adjacent")[int(rng.integers(3))]
    target = random_target(rng, topology=("ring", "chain")[int(rng.integers(2))], num_chips=3, **rules)
    graph = random_graph(rng, 4 if decide == "placement" else 3, kinds=kind_names(target))
    constraints = tuple(draw_constraint(rng, graph, target) for _ in range(int(rng.integers(3))))
    request = of_single_stages(objective, decide, constraints, max_evaluations=100)
    assert proven_s(graph, target, request) <= least_s(graph, target, request) * (1 + 1e-9)


@settings(max_examples=examples(20))
@given(seed=seeds)
@example(seed=36)  # a limit in seconds that only two replicas keep
def test_no_replicated_plan_beats_the_proof(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rules = {"no_skip": ("off", "prefix", "all")[int(rng.integers(3))]}
    if (topology := ("ring", "chain", "all_to_all")[int(rng.integers(3))]) != "all_to_all":
        rules["triangle"] = ("off", "longest_path", "three_chip", "adjacent")[int(rng.integers(4))]
    target = random_target(
        rng, topology=topology, num_chips=int(rng.integers(2, 5)), sram_bytes=10**7, **rules
    )
    graph = random_graph(rng, int(rng.integers(1, 4)), kinds=kind_names(target))
    default = np.arange(graph.num_ops, dtype=np.int32)
    all_s = float(kernel_seconds(cost_tables(graph, target), default).sum(axis=1).max())
    chips = np.arange(target.num_chips)
    constraints = [draw_constraint(rng, graph, target) for _ in range(int(rng.integers(2)))]
    constraints += [ChipLimit(c, at_most_s=all_s * rng.uniform(0.2, 1)) for c in chips.tolist()]
    for op in graph.op_names:
        if 0 < (some := rng.random(len(chips)) < 0.3).sum() < len(chips):
            constraints.append(Forbid(op, tuple(chips[some].tolist())))
    request = Request(
        max_evaluations=60, relays=False, splits=False, simulate=False, constraints=tuple(constraints)
    )
    assert proven_s(graph, target, request) <= least_s(graph, target, request) * (1 + 1e-9)


def proven_s(graph: Graph, target: Target, request: Request) -> float:
    """The proven lower bound; infinite if it is proven that there is no plan."""
    try:
        return go_opt.optimize(graph, target, request=request).lower_bound_s
    except InfeasibleError as error:
        return np.inf if error.is_proven else 0.0


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_no_execution_is_shorter_than_the_path_of_a_sample(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 12)), kinds=kind_names(target))
    metrics = evaluate_plan(graph, target, random_plan(rng, graph, target, monotone=target.goes_forward))
    assert metrics.makespan_s >= metrics.latency_s * (1 - 1e-9)


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_two_readers_on_chips_of_their_own(objective) -> None:
    # All three chips must be used. Chips 1 and 2 both read from chip 0: no slicing of an order does that.
    b = GraphBuilder("fork")
    for op, reads in (("source", []), ("left", ["s"]), ("right", ["s"])):
        writes = [(op[0], 100, "float32")]
        b.add_op(
            op, "Relu", "vector", flops=1000, dtype="float32", reads=[(r, None) for r in reads], writes=writes
        )
    b.mark_output("l")
    b.mark_output("r")
    result = go_opt.optimize(
        b.build(), small_mcm(3, no_skip="all"), objective=objective, decide="placement", relays=False,
        max_evaluations=300,
    )  # fmt: skip
    assert (result.status, sorted(result.plan.placement)) == ("OPTIMAL", [0, 1, 2])


@pytest.mark.parametrize("options", [{"objective": "latency"}, {"relays": False}])
@settings(max_examples=examples(6))
@given(seed=seeds)
@example(seed=17585125)  # two branches in each other's place
@example(seed=133)
@example(seed=147)
def test_the_local_search_finds_the_best_placement_of_small_graphs(options, seed: int) -> None:
    """Without the enumeration, from the greedy plan."""
    rng = np.random.default_rng(seed)
    target = random_target(
        rng, topology=("ring", "all_to_all")[int(rng.integers(2))], num_chips=3, overlap=True
    )
    graph = random_graph(rng, 4, kinds=kind_names(target))
    options = {"relays": False, "replication": False} | options
    request = Request(max_evaluations=2000, decide="placement", **options)
    expected_s = least_s(graph, target, request)
    search = Search(graph, target, request)
    for event in greedy(Start(search)):
        search.take(event)
    assume(search.best is not None)
    for event in itertools.islice(local_search(search), 150):
        search.take(event)
    assert search.best_s <= expected_s * (1 + 1e-9) * (1.0 if target.constraints.triangle == "off" else 1.02)


def exists_on_all_chips(graph: Graph, target: Target) -> bool:
    """Whether any placement keeps the rules, of all those whose results go to no lower chip."""
    rows = np.zeros((1, 0), np.int32)
    for op in range(graph.num_ops):
        chips = np.arange(target.num_chips, dtype=np.int32)
        rows = np.column_stack([np.repeat(rows, len(chips), axis=0), np.tile(chips, len(rows))])
        for source in graph.edge_src[graph.edge_dst == op]:
            rows = rows[rows[:, source] <= rows[:, op]]
    return bool((broken_rules(placement_problem(graph, target), rows) == NONE).any())


@pytest.mark.parametrize("decide", ["placement", "all"])
@pytest.mark.parametrize("options", [{"relays": True}, {"relays": False}, {"objective": "latency"}])
@settings(max_examples=examples(8))
@given(seed=seeds)
def test_a_plan_on_all_chips_is_found_without_the_enumeration(options, decide, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_chips = int(rng.integers(3, 6))
    num_ops = int(rng.integers(6, {3: 13, 4: 11, 5: 9}[num_chips]))
    rule = ("longest_path", "three_chip", "adjacent")[int(rng.integers(3))]
    target = small_mcm(num_chips, no_skip="all", triangle=rule, sram_bytes=10**9)
    # Wide graphs, whose ops side by side need chips of their own: slices of an order seldom use them all.
    b, depth = GraphBuilder("wide"), [0]
    for op in range(num_ops):
        reads: list[int] = []
        if op > 0:
            shallow = [i for i in range(op) if depth[i] < num_chips - 1]
            reads = sorted({int(rng.choice(shallow)) for _ in range(int(rng.integers(1, 3)))})
            depth.append(1 + max(depth[i] for i in reads))
        b.add_op(
            str(op), "Relu", "vector", flops=100, dtype="float32",
            reads=[(str(i), None) for i in reads], writes=[(str(op), 10, "float32")],
        )  # fmt: skip
    graph = b.build()
    exists = exists_on_all_chips(graph, target)
    with patch("go_opt.search.placements.every_plan", return_value=None):
        try:
            result = go_opt.optimize(
                graph, target, max_evaluations=30, decide=decide, replication=False, splits=False, **options
            )
        except InfeasibleError:
            assert not exists
            return
    assert not go_opt.verify(graph, target, result.plan)


def test_long_graphs_are_not_enumerated() -> None:
    def plans_of_chain(length: int) -> int | None:
        b = GraphBuilder("chain")
        for i in range(length):
            b.add_op(
                f"op{i}", "Add", "vector", flops=100, dtype="float32",
                reads=[(f"x{i - 1}", None)] if i else [], writes=[(f"x{i}", 10, "float32")],
            )  # fmt: skip
        requested = op_constraints(b.build(), small_mcm(2), ())
        plans = enumeration.every_plan(requested, forwarding="free", decides_all=False)
        return None if plans is None else len(plans[0])

    assert plans_of_chain(20) == 20  # one for each cut, and all ops on the first chip
    assert plans_of_chain(1_000) is None  # as many rows of as many ops, step by step
