"""The portfolio: methods in turn, the best verified plan first, until nothing is left to try.

It is anytime: the greedy and the sliced plan stand within milliseconds, everything after
only improves on them, and stopping keeps what was reached. The sequence of methods
depends on the request alone, so equal seeds and evaluation budgets give equal answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.agents import fixed_orders, random_orders
from go_opt.env import (
    CostTables,
    Target,
    cost_tables,
    evaluate_plan,
    greedy_fusion,
    loop_roles,
)
from go_opt.errors import InfeasibleError
from go_opt.graph import Graph
from go_opt.plan import Plan
from go_opt.result import OPTIMAL_GAP, OptimizeResult, Request, Status, Step
from go_opt.solver import (
    Bound,
    earliest_finish_placement,
    greedy_slicing,
    latency_bound,
    slice_order,
    slice_order_resident,
    throughput_bound,
    verify,
)
from go_opt.solver.memory import infeasible_reason
from go_opt.warm_up import warm_up

# Random orders stop after this many in a row without a better plan, budget or not.
PATIENCE: Final = 32

IntArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan a method proposes, not yet evaluated."""

    method: str
    placement: IntArray  # [N]
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]


def optimize_request(
    graph: Graph,
    target: Target,
    request: Request,
    *,
    on_step: Callable[[Step], None] = lambda step: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> OptimizeResult:
    """Answer ``request``; ``on_step`` sees every step, ``should_stop`` is asked before each.

    Raises:
      InfeasibleError: no valid plan was found; the message names op, demand and limit.
    """
    warm_up()
    search = _Search(graph, target, request, on_step)
    try:
        for proposal in _proposals(graph, target, request, search):
            if proposal is not None:
                search.consider(proposal)
            if search.is_done() or should_stop():
                break
    except KeyboardInterrupt:
        # Stopping keeps what was reached; with nothing reached there is nothing to keep.
        if search.best is None:
            raise
    return search.result()


def lower_bound(graph: Graph, target: Target, request: Request) -> Bound:
    """The lower bound of the objective, for every decision ``request`` leaves open."""
    tables, roles = cost_tables(graph, target), loop_roles(graph)
    is_open = request.decide == "all"
    if request.objective == "latency":
        return latency_bound(graph, tables, roles, fusion_is_open=is_open)
    return throughput_bound(
        graph, tables, roles, fusion_is_open=is_open, replication_is_open=is_open and request.replication
    )


class _Search:
    """Evaluates proposals, keeps the best valid plan and the history."""

    def __init__(
        self, graph: Graph, target: Target, request: Request, on_step: Callable[[Step], None]
    ) -> None:
        self.graph, self.target, self.request = graph, target, request
        self.best: OptimizeResult | None = None
        self.last_interval_s = 0.0  # of the proposal before
        self.misses = 0  # proposals in a row without a better plan
        self._on_step = on_step
        self._started_s = time.monotonic()
        self._bound = lower_bound(graph, target, request)
        self._history: list[Step] = []
        self._reference_s = math.inf
        self._rejection = ""  # the rule the first plan that is not valid breaks, memory apart

    def consider(self, proposal: Proposal) -> None:
        plan = Plan.create(
            self.graph,
            self.target.source,
            self.target.fingerprint,
            placement=proposal.placement,
            order=proposal.order,
            fusion_group=proposal.fusion_group,
            provenance=proposal.method,
        )
        metrics = evaluate_plan(self.graph, self.target, plan)
        reached_s = metrics.makespan_s if self.request.objective == "latency" else metrics.interval_s
        self.last_interval_s = metrics.interval_s
        best_s = self.best_s
        is_better = metrics.valid and reached_s < best_s
        violations = verify(self.graph, self.target, plan) if is_better else []
        if violations:
            is_better, reached_s = False, math.inf
            self._rejection = self._rejection or violations[0].message
        if not metrics.valid:
            reached_s = math.inf
        if proposal.method == "greedy":
            self._reference_s = reached_s
        self.misses = 0 if is_better else self.misses + 1
        self._record(proposal.method, reached_s)
        if is_better:
            gap = _gap(reached_s, self._bound.seconds)
            status: Status = "OPTIMAL" if gap <= OPTIMAL_GAP else "FEASIBLE"
            self.best = OptimizeResult(
                plan=plan,
                metrics=metrics,
                objective=self.request.objective,
                status=status,
                lower_bound_s=self._bound.seconds,
                bound_reason=self._bound.reason,
                gap=gap,
                method=proposal.method,
                history=(),
                evaluations=0,
                wall_s=self._history[-1].elapsed_s,
                reference_s=self._reference_s,
            )
        self._on_step(self._history[-1])

    def count_miss(self, method: str) -> None:
        """A method looked and found nothing better; it costs as much as an evaluation."""
        self.misses += 1
        self._record(method, math.inf)
        self._on_step(self._history[-1])

    def _record(self, method: str, reached_s: float) -> None:
        elapsed_s = time.monotonic() - self._started_s
        best_s = min(self.best_s, reached_s)
        self._history.append(Step(method, reached_s, best_s, len(self._history) + 1, elapsed_s))

    def is_done(self) -> bool:
        """Whether to stop: proven optimal, or out of evaluations or, with a plan in hand, of time."""
        limit = self.request.max_evaluations
        if limit is not None and len(self._history) >= limit:
            return True
        is_late = time.monotonic() - self._started_s >= self.request.time_limit_s
        return self.best is not None and (is_late or self.best.status == "OPTIMAL")

    def result(self) -> OptimizeResult:
        if self.best is None:
            raise InfeasibleError(infeasible_reason(self.graph, self.target, self._rejection))
        return replace(
            self.best,
            history=tuple(self._history),
            evaluations=len(self._history),
            wall_s=time.monotonic() - self._started_s,
            reference_s=self._reference_s,
        )

    @property
    def best_s(self) -> float:
        """Objective of the best valid plan so far; infinite before the first."""
        return self._history[-1].best_s if self._history else math.inf


def _gap(reached_s: float, bound_s: float) -> float:
    if bound_s > 0:
        return reached_s / bound_s - 1.0
    return 0.0 if reached_s == 0 else math.inf


def _proposals(graph: Graph, target: Target, request: Request, search: _Search) -> Iterator[Proposal | None]:
    """Proposals from the surest to the most speculative; ends when nothing is left to try.

    ``None`` stands for a method that looked and found nothing better, so that the caller
    can stop there too.
    """
    tables = cost_tables(graph, target)
    default_order = np.arange(graph.num_ops, dtype=np.int32)
    one_each = default_order
    fused = greedy_fusion(loop_roles(graph), default_order)
    decided = one_each if request.decide == "placement" else fused
    greedy = greedy_slicing(tables, default_order, decided, adjacent=_is_adjacent(target))
    yield Proposal("greedy", greedy.placement, default_order, decided)
    yield from _slices(search, "slice: default order", default_order, decided)
    if request.decide == "placement":
        return
    if not _has_static_constraints(target):
        yield from _earliest_finish(graph, tables, fused)
    for name, order in fixed_orders(graph, fused):
        yield from _slices(search, f"slice: {name}", order, fused)
    yield from _slices(search, "slice: default order, unfused", default_order, one_each)
    for order in random_orders(graph, tables, fused, request.seed):
        if request.max_evaluations is None and search.misses >= PATIENCE:
            return
        yield from _slices(search, "slice: random order", order, fused)


def _slices(search: _Search, method: str, order: IntArray, fused: IntArray) -> Iterator[Proposal | None]:
    """The cheapest slicing; for latency on 1, 2, 4 … chips; if it streams weights, one that does not."""
    target, tables = search.target, cost_tables(search.graph, search.target)
    counts = [target.num_chips]
    if search.request.objective == "latency":
        counts += [2**i for i in range(target.num_chips.bit_length()) if 2**i < target.num_chips]
    adjacent = _is_adjacent(target)
    at_most_s = search.best_s if search.request.objective == "throughput" else math.inf
    slicing = None
    for chips in counts:
        slicing = slice_order(tables, order, fused, adjacent=adjacent, max_chips=chips, at_most_s=at_most_s)
        if slicing is None:
            search.count_miss(method)
            yield None
        else:
            yield Proposal(method, slicing.placement, order, fused)
    if slicing is not None and search.last_interval_s > slicing.interval_s * (1.0 + OPTIMAL_GAP):
        # Streaming made the plan slower than its cuts: try cuts that keep the weights resident.
        slicing = slice_order_resident(
            tables,
            order,
            fused,
            adjacent=adjacent,
            at_least_s=slicing.interval_s,
            at_most_s=min(at_most_s, search.last_interval_s),
        )
        if slicing is not None:
            yield Proposal(f"{method}, weights resident", slicing.placement, order, fused)


def _is_adjacent(target: Target) -> bool:
    return target.constraints.triangle != "off"


def _has_static_constraints(target: Target) -> bool:
    rules = target.constraints
    return rules.acyclic or rules.no_skip != "off" or rules.triangle != "off"


def _earliest_finish(graph: Graph, tables: CostTables, fused: IntArray) -> Iterator[Proposal]:
    for name, order in fixed_orders(graph, fused):
        placement = earliest_finish_placement(tables, order, fused, tables.num_chips)
        yield Proposal(f"earliest finish: {name}", placement, order, fused)
