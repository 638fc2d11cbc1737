"""Interval-state refinement as a part of the rounds of improvement, on their time or in the background."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.common.processes import num_cores
from go_opt.env import cost_tables, fused_within_chips
from go_opt.model.plan import Candidate, Plan
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.events import (
    POLL_S,
    Event,
    Miss,
    Proposal,
    SearchView,
    Waiting,
    may_replicate,
    waiting_until,
)
from go_opt.search.methods.slices import slices
from go_opt.solver import Bound, Refinement
from go_opt.solver.certify.build import refinement_problem
from go_opt.solver.certify.joint_floors import joint_refinement_problem
from go_opt.solver.certify.problem import RefinementProblem

EXPANSIONS: Final = 64  # in a round
STRETCH: Final = 16  # expansions in the background, between two looks at what others found
NICER: Final = 2  # in the background: beside two busy threads on two cores it gets half of one
# Explaining a bound takes as long as a step of the proof: in the background not for every small rise.
RISE: Final = 1.002
CLOSING_S: Final = 0.5  # for the thread to end; what it is at may take long on large graphs
Reached = tuple[Bound, Candidate | None]  # what a refinement knows; the plan is one of units


class Refining:
    """A refinement: exact but for memory, and a proof where its problem is a relaxation."""

    def __init__(self, problem: RefinementProblem, *, proves: bool = False) -> None:
        self.proves = proves
        self._problem = problem
        self._method = "proof" if proves else "refinement"
        self._refinement = Refinement(problem)
        self._bound = Bound(0.0, "")
        self._proposed: IntArray | None = None  # [U]
        self._known: Plan | None = None

    @property
    def is_over(self) -> bool:
        """Whether it knows all that it will."""
        return self._refinement.is_over

    def close(self) -> None:
        """Nothing of it goes on by itself."""

    def run(self) -> None:
        """The share of a round."""
        self._refinement.run(EXPANSIONS)

    def reached(self, rise: float = 1.0) -> Reached:
        """What it knows now; the bound as it was, unless it rose by the factor ``rise``."""
        refinement, placement = self._refinement, self._refinement.placement
        least_s = self._bound.seconds * (1.0 if refinement.is_over else rise)
        if self.proves and refinement.lower_bound_s > least_s:
            self._bound = Bound(refinement.lower_bound_s, refinement.reason)
        if placement is None:
            return self._bound, None
        units = np.arange(len(placement), dtype=np.int32)
        plan = placement, units, units, refinement.replication
        return self._bound, Candidate(self._method, *plan, expected_s=refinement.upper_s)

    def consider(self, placement: IntArray) -> None:
        """A placement [U] of other methods: what it reaches bounds the search from above."""
        if self._refinement.consider(placement):
            self._proposed = self._refinement.placement

    def events(self, search: SearchView) -> Iterator[Event]:
        """What came of its last run."""
        self._consider_plan(search.best_plan)
        bound, found = self.reached()
        if found is None or found.placement is self._proposed:
            yield Miss(self._method, bound)
            return
        self._proposed = found.placement
        fused = self._fused(search, found, bound)
        yield fused
        if search.request.decide == "all" and fused.replication is None and found.expected_s < search.best_s:
            # It fits in no memory, or cuts through kernels cost too much: the slicer sees both.
            yield from slices(search, f"{self._method}, sliced", fused.order, fused.fusion_group)

    def _consider_plan(self, plan: Plan | None) -> None:
        """The best plan, where units are whole on their chips there."""
        if plan is None or plan is self._known:
            return
        self._known, unit_of_op = plan, self._problem.unit_of_op
        units = np.zeros(self._problem.units.num_units, dtype=np.int32)
        units[unit_of_op] = plan.placement
        if np.array_equal(units[unit_of_op], plan.placement):
            self.consider(units)

    def _fused(self, search: SearchView, found: Candidate, bound: Bound) -> Proposal:
        """A plan of units, its order chip by chip and, where they are open, its kernels fused on each."""
        unit_of_op, chips = self._problem.unit_of_op, found.replication
        placement = found.placement[unit_of_op]
        order = group = np.arange(search.graph.num_ops, dtype=np.int32)
        if search.request.decide == "all":
            order = np.argsort(placement, kind="stable").astype(np.int32)
            group = fused_within_chips(search.roles, order, placement)
        chips = None if chips is None else chips[unit_of_op]
        return Proposal(self._method, placement, order, group, replication=chips, bound=bound)


def has_core_to_spare(search: SearchView) -> bool:
    """Whether a core is left for work in the background, and the time is what is short.

    What is counted in evaluations may not depend on which thread is faster.
    """
    return search.request.max_evaluations is None and num_cores() > 1


class BackgroundRefining(Refining):
    """The same on a thread of its own: what it knows is published after each stretch of work.

    It is nicer than the others: where all cores are busy plans come first.
    """

    def __init__(self, problem: RefinementProblem, *, proves: bool = False) -> None:
        super().__init__(problem, proves=proves)
        self._others: deque[IntArray] = deque()
        self._latest = super().reached()
        self._error: BaseException | None = None
        self._is_closed = threading.Event()
        # A search that is abandoned while it waits for the thread does not keep the process.
        self._thread = threading.Thread(target=self._work, name="go-opt proof", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """End the thread after its stretch; do not wait long for it."""
        self._is_closed.set()
        self._thread.join(CLOSING_S)

    def run(self) -> None:
        """A moment of waiting; it runs anyway."""
        self._thread.join(POLL_S)

    def reached(self, rise: float = 1.0) -> Reached:
        """What it knew after its last stretch; raises what the thread raised."""
        if self._error is not None:
            raise self._error
        return self._latest

    def consider(self, placement: IntArray) -> None:
        """Before the next stretch."""
        self._others.append(placement)

    def _work(self) -> None:
        if sys.platform == "linux":  # where threads have a niceness of their own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICER)
        try:
            while not self._refinement.is_over:
                while self._others:
                    self._refinement.consider(self._others.popleft())
                self._refinement.run(STRETCH)
                self._latest = super().reached(RISE)
                if self._is_closed.is_set():
                    return
        except BaseException as error:  # for the search to raise: a thread has nobody to report to
            self._error = error


# Where evaluations are counted, a round is so many expansions of each refinement, each part counts as
# one evaluation, and what comes out follows from the number of rounds. Where time is what is short the
# proof runs on a thread of its own.


def improvements(search: SearchView) -> Iterator[Event]:
    """Events of every round, until the proof is over."""
    yield from waiting_until(are_compiled)
    refinings: list[Refining] = []
    with ExitStack() as closing:
        for refining in _refinings(search):
            closing.callback(refining.close)
            refinings.append(refining)
            yield Waiting()  # of 50,000 ops each takes a good part of a second to begin with
        while refinings:
            left = [one for one in refinings if not one.is_over]
            for refining in refinings:  # those that are over by now say their last
                refining.run()
                yield from refining.events(search)
            refinings = left


def _refinings(search: SearchView) -> Iterator[Refining]:
    """The proof; and where the placement alone is open the best one, without what the proof leaves out.

    With relays, the proof leaves out the triangle rule, so relays cost nothing there. Without them it keeps
    what the rule implies for neighbours on the ring.
    """
    graph, request, roles = search.graph, search.request, search.roles
    tables = cost_tables(graph, search.target)
    default = np.arange(graph.num_ops, dtype=np.int32)
    if request.decide == "placement":
        triangle = search.target.constraints.triangle
        is_strict = search.forwarding == "adjacent" and triangle in ("longest_path", "adjacent")
        relaxed = refinement_problem(
            graph, tables, forwarding="adjacent" if is_strict else "free", tight=True,
            sure_only=triangle == "longest_path",
        )  # fmt: skip
        yield Refining(relaxed, proves=True)
        yield Refining(refinement_problem(graph, search.tables, default, forwarding=search.forwarding))
        return
    replicates = may_replicate(search.target, request)
    relaxed = joint_refinement_problem(graph, tables, roles, replicates=replicates)
    yield (BackgroundRefining if has_core_to_spare(search) else Refining)(relaxed, proves=True)
