"""Rounds that improve the best plan: annealing on its placement, and the search for a proof beside it.

A round is so many moves of one or two chains of annealing and so many expansions of the
refinement, on two threads that wait for each other: what comes out follows from the seed and
the number of rounds, not from which thread was faster. Each part of a round counts as one
evaluation. Chains start again from the best plan, twice as long each time; their end is
polished and gets clones. Where time is what is short the proof does not wait for rounds
(:mod:`go_opt.search.methods.proof_beside`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final, Protocol

import numpy as np

from go_opt.env import cost_tables, greedy_fusion, loop_roles
from go_opt.env.copies.clonable import clonable_ops
from go_opt.model.plan import Plan
from go_opt.search.compiling.kernel_cache import until_compiled
from go_opt.search.methods.beside import has_core_to_spare
from go_opt.search.methods.proof_beside import RefinementBeside
from go_opt.search.methods.proposal import IntArray, Proposal, SearchState, may_replicate
from go_opt.search.methods.slices import slices
from go_opt.search.methods.stage_search import StageSearch
from go_opt.solver import (
    Annealing,
    Bound,
    Refinement,
    improve_with_clones,
)
from go_opt.solver.annealing.anneal import HOT
from go_opt.solver.annealing.gathered_kernels import gathered_kernels
from go_opt.solver.annealing.polish import fused_within_chips, polish
from go_opt.solver.certify.problem.joint_floors import joint_refinement_problem, replicated_plan_problem
from go_opt.solver.certify.problem.op_shares import loose_refinement_problem
from go_opt.solver.certify.problem.problem import RefinementProblem, refinement_problem

MOVES: Final = 16_384  # of a chain in a round
EXPANSIONS: Final = 64  # of the refinement in a round
EXACT_ROUNDS: Final = 8  # of the refinement alone, before the first chain
FIRST_ROUNDS: Final = 8  # of the first chain
# Chains stop after this many in a row that gained nothing, and so many rounds at least.
BARREN_CHAINS: Final = 2
LEAST_ROUNDS: Final = 56
SECOND_HOT: Final = 0.03  # temperature of the second chain, which stays near the best plan


def improvements(search: SearchState) -> Iterator[Proposal | None]:
    """Proposals of every round, ``None`` for a part that found nothing better.

    Ends when chains gain nothing any more and a proof on its own thread is over; at once where the
    rounds do not serve the problem.
    """
    if not _serves(search):
        return
    yield from until_compiled()
    with ExitStack() as closing:
        yield from _rounds(search, closing)


def _rounds(search: SearchState, closing: ExitStack) -> Iterator[Proposal | None]:
    """The rounds; ``closing`` ends what they leave running."""
    exact: list[_Refining] = []
    for refining in _exact_searches(search):
        closing.callback(refining.close)
        exact.append(refining)
        yield None  # of 50,000 ops each takes a good part of a second to begin with
    for _ in range(EXACT_ROUNDS):
        # Most graphs are solved in the first rounds: no chain is needed then.
        for solving in exact:
            if not solving.is_over or solving.is_beside:
                solving.run()
                yield from solving.proposals(search)
    with ThreadPoolExecutor(2) as threads:
        rounds, barren, made = FIRST_ROUNDS, 0, 0
        for restart in itertools.count():
            start = search.best_plan
            if start is None or (barren >= BARREN_CHAINS and made >= LEAST_ROUNDS):
                break
            before_s = search.best_s
            on_ring = _ring(search, start, restart)
            chains = [_Chain(on_ring, rounds, (restart, number)) for number in range(2)]
            for _ in range(rounds):
                made += 1
                for proof in exact:
                    if proof.is_beside:
                        yield from proof.proposals(search)
                open_parts = [part for part in exact if not (part.is_over or part.is_beside)]
                beside = open_parts[made % len(open_parts)] if open_parts else chains[1]
                pair: tuple[_Part, ...] = (chains[0], beside)
                for part, ran in [(part, threads.submit(part.run)) for part in pair]:
                    ran.result()
                    yield from part.proposals(search)
            if search.replicates:
                yield chains[0].allotted()
            yield from _polished(search)
            yield from _with_clones(search)
            barren = 0 if search.best_s < before_s else barren + 1
            rounds *= 2
    for proof in exact:
        is_told = not proof.is_beside
        while not is_told:
            is_told = proof.is_over
            proof.run()
            yield from proof.proposals(search)


def _exact_searches(search: SearchState) -> Iterator[_Refining]:
    """The proof, where the problem as asked has one; and the best placement of the default kernels.

    The proof leaves out the triangle rule, so relays cost nothing there.
    """
    graph, request, roles = search.graph, search.request, loop_roles(search.graph)
    tables = cost_tables(graph, search.target)
    may_clone = clonable_ops(graph) if search.passing == "relayed" else None
    default = np.arange(graph.num_ops, dtype=np.int32)
    if request.decide == "placement":
        relaxed = refinement_problem(graph, tables, passing="free", may_clone=may_clone, tight=True)
        yield _Refining(relaxed, proves=True)
        best = refinement_problem(graph, search.tables, default, passing=search.passing)
        yield _Refining(best, proves=False)
        return
    replicates = may_replicate(search.target, request)
    relaxed = joint_refinement_problem(graph, tables, roles, may_clone=may_clone, replicates=replicates)
    yield _Refining(relaxed, proves=True, is_beside=has_core_to_spare(search))
    if search.replicates:
        best = replicated_plan_problem(
            graph, search.tables, roles, passing=search.passing, planned_s=search.best_s
        )
    else:
        kernels = greedy_fusion(roles, default)
        best = refinement_problem(graph, search.tables, kernels, passing=search.passing)
    yield _Refining(best, proves=False)
    if not search.replicates:
        yield _Refining(_loose_problem(search), proves=False)


def _loose_problem(search: SearchState) -> RefinementProblem:
    """Where to cut between any two ops: kernels along the order of the best plan, shared out."""
    graph, plan = search.graph, search.best_plan
    order = np.arange(graph.num_ops, dtype=np.int32)
    kernels = greedy_fusion(loop_roles(graph), order)
    if plan is not None:
        order, kernels = plan.order, fused_within_chips(graph, plan.order, plan.placement)
    return loose_refinement_problem(graph, search.tables, order, kernels, passing=search.passing)


def _ring(search: SearchState, plan: Plan, restart: int) -> StageSearch:
    """The stages to place on: those of the plan and, where they are open, in turn others like them."""
    on_ring = StageSearch(search, plan)
    if not search.replicates:
        return on_ring
    if restart % 2:
        on_ring = on_ring.varied(np.random.default_rng((search.request.seed, restart)))
    return on_ring.allotted()


class _Part(Protocol):
    """One half of a round."""

    def run(self) -> None:
        """A round's share, in a thread of its own."""

    def proposals(self, search: SearchState) -> Iterator[Proposal | None]:
        """What came of it."""


class _Chain:
    """Annealing from a plan; its stages, its kernels and their order stay."""

    def __init__(self, on_ring: StageSearch, rounds: int, number: tuple[int, int]) -> None:
        search, start = on_ring.search, on_ring.plan
        self._on_ring = on_ring
        self._reached_s = np.inf
        self._annealing = Annealing(
            on_ring.tables,
            on_ring.units(),
            start.order,
            start.fusion_group,
            on_ring.placement,
            passing=search.passing,
            moves=rounds * MOVES,
            seed=int(np.random.default_rng((search.request.seed, *number)).integers(2**31)),
            hot=SECOND_HOT if number[1] else HOT,
        )

    def run(self) -> None:
        self._annealing.run(MOVES)

    def allotted(self) -> Proposal:
        """The best placement met, its stages of as many chips as they need."""
        at = self._on_ring
        reached = StageSearch(at.search, at.plan, at.stages, self._annealing.best.placement)
        return reached.allotted().as_it_stands("annealing")

    def proposals(self, search: SearchState) -> Iterator[Proposal | None]:
        best, start = self._annealing.best, self._on_ring.plan
        if best.objective_s < min(self._reached_s, search.best_s):
            self._reached_s = best.objective_s
            yield self._on_ring.proposal("annealing", best.placement, start.order, start.fusion_group)
        else:
            search.count_miss("annealing")
            yield None


class _Refining:
    """Interval-state refinement: exact but for memory; a proof where its problem is a relaxation."""

    def __init__(self, problem: RefinementProblem, *, proves: bool, is_beside: bool = False) -> None:
        """With ``is_beside`` it runs on a thread of its own all the time."""
        self._refinement = RefinementBeside(problem) if is_beside else Refinement(problem)
        self._proves = proves
        self._method = "proof" if proves else "refinement"
        self._told_s = 0.0
        self._proposed: IntArray | None = None
        self._known: Plan | None = None

    @property
    def is_beside(self) -> bool:
        return isinstance(self._refinement, RefinementBeside)

    @property
    def is_over(self) -> bool:
        return self._refinement.is_over

    def close(self) -> None:
        if isinstance(self._refinement, RefinementBeside):
            self._refinement.close()

    def run(self) -> None:
        self._refinement.run(EXPANSIONS)

    def proposals(self, search: SearchState) -> Iterator[Proposal | None]:
        self._hear_of(search.best_plan)
        bound_s = self._refinement.lower_bound_s
        if self._proves and bound_s > self._told_s:
            self._told_s = bound_s
            search.raise_bound(Bound(bound_s, self._refinement.reason))
        placement = self._refinement.placement
        if placement is None or placement is self._proposed:
            search.count_miss(self._method)
            yield None
            return
        self._proposed = placement
        unit_of_op, replication = self._refinement.problem.unit_of_op, self._refinement.replication
        chips = None if replication is None else replication[unit_of_op]
        fused = _fused(search, self._method, placement[unit_of_op], chips)
        yield fused
        if search.request.decide == "all":
            order, group = gathered_kernels(loop_roles(search.graph), fused.order, fused.placement)
            yield Proposal(self._method, fused.placement, order, group, replication=chips)
        if search.request.decide == "all" and chips is None and self._refinement.upper_s < search.best_s:
            # It fits in no memory, or cuts through kernels cost too much: the slicer sees both.
            yield from slices(search, f"{self._method}, sliced", fused.order, fused.fusion_group)

    def _hear_of(self, plan: Plan | None) -> None:
        """What others found bounds the search from above, where its units are whole on their chips."""
        if plan is None or plan is self._known:
            return
        self._known = plan
        problem = self._refinement.problem
        units = np.zeros(problem.units.num_units, dtype=np.int32)
        units[problem.unit_of_op] = plan.placement
        if np.array_equal(units[problem.unit_of_op], plan.placement) and self._refinement.consider(units):
            self._proposed = self._refinement.placement


def _with_clones(search: SearchState) -> Iterator[Proposal | None]:
    """The best plan with clones; every placement that was looked at counts."""
    plan = search.best_plan
    if plan is None or search.passing != "relayed":
        return
    on_ring, triangle = StageSearch(search, plan), search.target.constraints.triangle
    cloned = improve_with_clones(
        on_ring.tables,
        clonable_ops(search.graph),
        triangle,
        on_ring.placement,
        plan.order,
        plan.fusion_group,
    )
    for _ in range(cloned.evaluations - 1):
        search.count_miss("clones")
        yield None
    yield on_ring.proposal("clones", on_ring.placement, plan.order, plan.fusion_group, cloned.copies)


def _polished(search: SearchState) -> Iterator[Proposal | None]:
    """The best plan with other orders and kernels on its chips."""
    plan = search.best_plan
    if plan is None or search.request.decide == "placement":
        return
    on_ring = StageSearch(search, plan)
    better = polish(
        search.graph, search.target, on_ring.tables, on_ring.placement, plan.order, plan.fusion_group
    )
    for _ in range(better.evaluations - 1):
        search.count_miss("polish")
        yield None
    yield on_ring.proposal("polish", on_ring.placement, better.order, better.fusion_group)


def _fused(search: SearchState, method: str, placement: IntArray, replication: IntArray | None) -> Proposal:
    """A placement with an order chip by chip and, where they are open, its kernels fused on each chip."""
    default = np.arange(search.graph.num_ops, dtype=np.int32)
    if search.request.decide == "placement":
        return Proposal(method, placement, default, default)
    order = np.argsort(placement, kind="stable").astype(np.int32)
    group = fused_within_chips(search.graph, order, placement)
    return Proposal(method, placement, order, group, replication=replication)


def _serves(search: SearchState) -> bool:
    """Whether placements are chains of down-sets along a ring, the interval is asked for, and ops can run."""
    return (
        search.request.objective == "throughput"
        and search.target.goes_forward
        and bool(search.tables.can_run.any(axis=0).all())
    )
