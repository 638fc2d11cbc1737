"""What the methods of the portfolio yield, and what they see of the search.

A method is a generator of events. The search takes one after the other, and may stop at each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, Target
from go_opt.env.copies.relays import Relays
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.result import Request
from go_opt.search.shared.context import Context
from go_opt.solver import Bound
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.segment_rules import SegmentRules

EQUAL: Final = 1e-4  # relative difference up to which objectives are equal
POLL_S: Final = 0.005  # between two looks at what runs in the background


@dataclass(frozen=True, eq=False)
class Proposal(Candidate):
    """A candidate that the search is to evaluate."""

    relays: Relays | None = None  # None: those the rules ask for
    bound: Bound | None = None  # that the method has proven
    pending: int | None = None  # evaluations so far of an attempt that shows its result at its end


@dataclass(frozen=True)
class Miss:
    """A method looked and found nothing better; it costs as much as an evaluation."""

    method: str
    bound: Bound | None = None  # that the method has proven
    pending: int | None = None  # as of a proposal


@dataclass(frozen=True)
class Waiting:
    """A method has nothing to say yet; the search may stop, or go on with another one."""


@dataclass(frozen=True)
class NoPlan:
    """Why there is no plan, should none be found."""

    reason: str  # empty: what the search rejected says it
    is_proven: bool = False


Event = Proposal | Miss | Waiting | NoPlan


class SearchView(Protocol):
    """What methods see of a search: the problem, and how the events so far fared. They change nothing."""

    @property
    def graph(self) -> Graph: ...
    @property
    def target(self) -> Target: ...
    @property
    def request(self) -> Request: ...
    @property
    def context(self) -> Context: ...  # shared by all searches of the request
    @property
    def requested(self) -> OpConstraints: ...  # the user's constraints
    @property
    def roles(self) -> LoopRoles: ...
    @property
    def tables(self) -> CostTables: ...  # to place by: chips that may not hold an op cannot run it
    @property
    def rules(self) -> SegmentRules: ...  # what the constraints ask of slices
    @property
    def forwarding(self) -> ForwardingMode: ...  # what becomes of a tensor that passes a chip
    @property
    def replicates(self) -> bool: ...  # whether methods look for replicated stages
    @property
    def last_interval_s(self) -> float: ...  # of the proposal before, by the analytical model
    @property
    def last_latency_s(self) -> float: ...  # of the proposal before, by the analytical model
    @property
    def violating(self) -> Sequence[IntArray]: ...  # placements proposed that break a constraint, [N] each
    @property
    def best_s(self) -> float: ...  # objective of the best valid plan so far; infinite before the first
    @property
    def gap(self) -> float: ...  # share by which the best plan is above the bound
    @property
    def best_plan(self) -> Plan | None: ...
    @property
    def leanest_plan(self) -> Plan | None: ...  # as good as the best one, on fewest chips
    @property
    def left_s(self) -> float: ...  # seconds until the time is up
    @property
    def is_late(self) -> bool: ...  # whether the time is up


def waiting_until(is_over: Callable[[], bool]) -> Iterator[Waiting]:
    """Events until then: meanwhile the search may do something else, or ask whether to stop."""
    while not is_over():
        time.sleep(POLL_S)
        yield Waiting()


def forwarding_of(target: Target, request: Request) -> ForwardingMode:
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
