"""What the portfolio proposes, in order; :mod:`go_opt.optimizer` evaluates it and decides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from go_opt.agents import fixed_orders, random_orders
from go_opt.agents.instance import instance
from go_opt.agents.proposals import Advice, PolicyPlan, policy_plans
from go_opt.env import CostTables, Target, cost_tables, greedy_fusion, loop_roles
from go_opt.graph import Graph
from go_opt.policies import ask_policy
from go_opt.result import OPTIMAL_GAP, Request
from go_opt.solver import earliest_finish_placement, greedy_slicing, slice_order, slice_order_resident

# Random orders stop after this many in a row without a better plan, budget or not; a policy
# that takes turns with them gets as many turns.
PATIENCE: Final = 32
# What the policy needs to get a word in, and the largest graph that is worth waiting for it.
LEAST_EVALUATIONS: Final = 16
LEAST_BUDGET_S: Final = 2.0
MOST_OPS: Final = 60_000
_POLL_S: Final = 0.02

IntArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan a method proposes, not yet evaluated."""

    method: str
    placement: IntArray  # [N]
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]


class SearchState(Protocol):
    """What proposals depend on beside the request: how the ones before fared."""

    graph: Graph
    target: Target
    request: Request
    policy: Path | None  # the file of the policy that takes part
    last_interval_s: float  # of the proposal before, by the analytical model
    misses: int  # proposals in a row without a better plan

    @property
    def best_s(self) -> float:
        """Objective of the best valid plan so far; infinite before the first."""

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""

    def count_miss(self, method: str) -> None:
        """A method looked and found nothing better; it costs as much as an evaluation."""


def policy_takes_part(graph: Graph, target: Target, request: Request) -> bool:
    """Whether a policy has something to decide, and the budget leaves room for it.

    Latency has room for it only where placements are free: orders are then placed by earliest finish.
    """
    return (
        request.decide == "all"
        and (request.objective == "throughput" or not _has_static_constraints(target))
        and graph.num_ops <= MOST_OPS
        and (request.max_evaluations is None or request.max_evaluations >= LEAST_EVALUATIONS)
        and request.time_limit_s >= LEAST_BUDGET_S
    )


def proposals(search: SearchState) -> Iterator[Proposal | None]:
    """Proposals from the surest to the most speculative; ends when nothing is left to try.

    ``None`` stands for a method that looked and found nothing better, or that waits, so
    that the caller can stop there too.
    """
    graph, target, request = search.graph, search.target, search.request
    tables = cost_tables(graph, target)
    default_order = np.arange(graph.num_ops, dtype=np.int32)
    one_each = default_order
    fused = greedy_fusion(loop_roles(graph), default_order)
    decided = one_each if request.decide == "placement" else fused
    greedy = greedy_slicing(tables, default_order, decided, adjacent=_is_adjacent(target))
    yield Proposal("greedy", greedy.placement, default_order, decided)
    yield from _slices(search, "slice: default order", default_order, decided)
    # From here on the first plan cannot be delayed any more.
    asked = None if search.policy is None else ask_policy(search.policy, graph, target)
    if not _has_static_constraints(target):
        yield from _one_kind(target, default_order, decided)
        yield from _earliest_finish("default order", tables, default_order, decided)
    if request.decide == "placement":
        return
    if not _has_static_constraints(target):
        for name, order in fixed_orders(graph, fused):
            yield from _earliest_finish(name, tables, order, fused)
    for name, order in fixed_orders(graph, fused):
        yield from _slices(search, f"slice: {name}", order, fused)
    yield from _slices(search, "slice: default order, unfused", default_order, one_each)
    yield from _guesses(search, tables, fused, asked)


def _guesses(
    search: SearchState, tables: CostTables, fused: IntArray, asked: Future[Advice | None] | None
) -> Iterator[Proposal | None]:
    """Random orders, and the policy's plans in turn with them as soon as it has been heard.

    Counted in evaluations, its turns begin at once, however long that takes: the same
    seed gives the same answer. In time, random orders go first, while they have patience.
    """
    graph, request = search.graph, search.request
    is_counted = request.max_evaluations is not None
    patience, plans = PATIENCE, None
    for order in random_orders(graph, tables, fused, request.seed):
        if asked is not None and (is_counted or asked.done() or search.misses >= patience):
            yield from _until_heard(search, asked)
            advised = asked.result() if asked.done() else None
            if advised is not None:
                plans = policy_plans(advised, instance(graph, search.target), request.seed)
                patience, search.misses = 2 * PATIENCE, 0
            asked = None
        if not is_counted and search.misses >= patience:
            return
        if plans is not None:
            yield from _policy_plan(search, tables, next(plans))
        yield from _slices(search, "slice: random order", order, fused)


def _until_heard(search: SearchState, asked: Future[Advice | None]) -> Iterator[None]:
    """Wait for the policy while there is time."""
    while not asked.done() and not search.is_late:
        wait([asked], timeout=_POLL_S)
        yield None


def _policy_plan(search: SearchState, tables: CostTables, plan: PolicyPlan) -> Iterator[Proposal | None]:
    """A policy's plan as it is; where only order and kernels are given, placed for the objective."""
    if plan.placement is not None:
        yield Proposal(plan.method, plan.placement, plan.order, plan.fusion_group)
    elif search.request.objective == "latency":
        placement = earliest_finish_placement(tables, plan.order, plan.fusion_group, tables.num_chips)
        yield Proposal(plan.method, placement, plan.order, plan.fusion_group)
    else:
        yield from _slices(search, plan.method, plan.order, plan.fusion_group)


def _slices(search: SearchState, method: str, order: IntArray, fused: IntArray) -> Iterator[Proposal | None]:
    """The cheapest slicing; for latency on 1, 2, 4 … chips; if it streams weights, one that does not."""
    target, tables = search.target, cost_tables(search.graph, search.target)
    counts = [target.num_chips]
    if search.request.objective == "latency" and target.constraints.no_skip != "all":
        counts += [2**i for i in range(target.num_chips.bit_length()) if 2**i < target.num_chips]
    adjacent = _is_adjacent(target)
    at_most_s = search.best_s if search.request.objective == "throughput" else math.inf
    slicing = None
    for chips in counts:
        slicing = slice_order(
            tables,
            order,
            fused,
            adjacent=adjacent,
            min_chips=target.num_chips if target.constraints.no_skip == "all" else 1,
            max_chips=chips,
            at_most_s=at_most_s,
        )
        if slicing is None:
            search.count_miss(method)
            yield None
        else:
            yield Proposal(method, slicing.placement, order, fused)
    if slicing is None or target.constraints.no_skip == "all":
        return
    if search.last_interval_s > slicing.interval_s * (1.0 + OPTIMAL_GAP):
        # Streaming made the plan slower than its cuts: try cuts that keep the weights resident.
        slicing = slice_order_resident(
            tables,
            order,
            fused,
            adjacent=adjacent,
            at_least_s=slicing.interval_s,
            at_most_s=min(search.best_s, search.last_interval_s),
        )
        if slicing is not None:
            yield Proposal(f"{method}, weights resident", slicing.placement, order, fused)


def _is_adjacent(target: Target) -> bool:
    return target.constraints.triangle != "off"


def _has_static_constraints(target: Target) -> bool:
    rules = target.constraints
    return rules.acyclic or rules.no_skip != "off" or rules.triangle != "off"


def _one_kind(target: Target, order: IntArray, fused: IntArray) -> Iterator[Proposal]:
    """Everything on one chip, of each kind in turn: no transfers at all."""
    for kind, description in enumerate(target.kinds):
        chip = int(np.argmax(target.chip_kind == kind))
        placement = np.full(len(order), chip, dtype=np.int32)
        yield Proposal(f"one {description.name}", placement, order, fused)


def _earliest_finish(name: str, tables: CostTables, order: IntArray, fused: IntArray) -> Iterator[Proposal]:
    placement = earliest_finish_placement(tables, order, fused, tables.num_chips)
    yield Proposal(f"earliest finish: {name}", placement, order, fused)
