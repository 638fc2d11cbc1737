"""What the methods of the portfolio propose, and what they may ask of the search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from go_opt.env import CostTables, Target
from go_opt.env.copies.expanded_tables import Copies
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.result import Request
from go_opt.solver import Bound
from go_opt.solver.orders.order_search import OrderPlan
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.segment_rules import SegmentRules

IntArray = NDArray[np.int32]
Tried = tuple[str, OrderPlan | None]  # a method, and a plan unless it is of no use to the method


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan a method proposes, not yet evaluated."""

    method: str
    placement: IntArray  # [N] first chip of the stage
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]
    copies: Copies | None = None  # None: the relays the rules ask for, and no clones
    replication: IntArray | None = None  # [N] chips of each op's stage; None: one each


class SearchState(Protocol):
    """What proposals depend on beside the request: how the ones before fared."""

    graph: Graph
    target: Target
    request: Request
    policy: Path | None  # the file of the policy that takes part
    asked: OpConstraints  # the user's constraints
    tables: CostTables  # by which methods place: chips that may not hold an op cannot run it
    rules: SegmentRules  # what the constraints ask of slices
    passing: Passing  # what becomes of a tensor that passes a chip
    replicates: bool  # whether methods look for replicated stages
    last_interval_s: float  # of the proposal before, by the analytical model
    last_latency_s: float  # of the proposal before, by the analytical model
    wishes: list[IntArray]  # placements ([N] each) that were proposed and break a constraint

    @property
    def best_s(self) -> float:
        """Objective of the best valid plan so far; infinite before the first."""

    @property
    def best_plan(self) -> Plan | None:
        """The best valid plan so far."""

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""

    def count_miss(self, method: str) -> None:
        """A method looked and found nothing better; it costs as much as an evaluation."""

    def explain_failure(self, reason: str) -> None:
        """Why there is no plan, should none be found."""

    def raise_bound(self, bound: Bound) -> None:
        """A lower bound was proven; the larger one counts."""


def better_or_miss(search: SearchState, method: str, plan: OrderPlan | None) -> Proposal | None:
    """A sliced order as a proposal, where it is better than the best plan; else a miss."""
    if plan is None or plan.interval_s >= search.best_s:
        search.count_miss(method)
        return None
    return Proposal(method, plan.placement, plan.order, plan.fusion_group, replication=plan.replication)


def passing_of(target: Target, request: Request) -> Passing:
    """What becomes of a tensor that passes a chip, in plans for ``request``."""
    if target.constraints.triangle == "off":
        return "free"
    return "relayed" if request.relays else "adjacent"


def may_replicate(target: Target, request: Request) -> bool:
    """Whether stages may be replicated in plans for ``request``: for throughput."""
    return request.decide == "all" and request.replication and request.objective == "throughput"


def copies_are_open(target: Target, request: Request) -> bool:
    """Whether a whole plan may be replicated: on a one-directional ring that is a slicing like others."""
    return may_replicate(target, request) and not target.goes_forward


def has_static_constraints(target: Target) -> bool:
    """Whether not every placement is valid, memory apart."""
    rules = target.constraints
    return rules.acyclic or rules.no_skip != "off" or rules.triangle != "off"
