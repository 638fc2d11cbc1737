"""Rounds that improve the best plan: annealing on its placement, and the search for a proof.

A round is so many moves of one or two chains of annealing and so many expansions of the
refinement, on two threads that wait for each other: what comes out follows from the seed and
the number of rounds, not from which thread was faster. Each part of a round counts as one
evaluation. Chains start again from the best plan, twice as long each time; clones are tried
at the end of a chain. Where time is what is short the proof does not wait for rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import numpy as np

from go_opt.env import cost_tables, loop_roles
from go_opt.env.copies.clonable import clonable_ops
from go_opt.model.plan import Plan
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.background import has_core_to_spare
from go_opt.search.methods.events import (
    Event,
    Miss,
    Proposal,
    SearchView,
    Waiting,
    may_replicate,
    waiting_until,
)
from go_opt.search.methods.refining import BackgroundRefining, Refining
from go_opt.search.methods.stage_search import StageSearch
from go_opt.solver import Annealing, AnnealingProblem, improve_with_clones
from go_opt.solver.annealing.anneal import HOT
from go_opt.solver.certify.problem.build import refinement_problem
from go_opt.solver.certify.problem.joint_floors import joint_refinement_problem

MOVES: Final = 16_384  # of a chain in a round
EXACT_ROUNDS: Final = 8  # of the refinement alone, before the first chain
FIRST_ROUNDS: Final = 8  # of the first chain
# Chains stop after this many in a row that gained nothing, and so many rounds at least.
BARREN_CHAINS: Final = 2
LEAST_ROUNDS: Final = 56
SECOND_HOT: Final = 0.03  # temperature of the second chain, which stays near the best plan


def improvements(search: SearchView, after_chain: Callable[[], Iterator[Event]]) -> Iterator[Event]:
    """Events of every round, and of ``after_chain`` for the best plan at the end of each chain.

    Ends when chains gain nothing any more and a proof in the background is over.
    """
    yield from waiting_until(are_compiled)
    refinings: list[Refining] = []
    with ExitStack() as closing:
        for refining in _refinings(search):
            closing.callback(refining.close)
            refinings.append(refining)
            yield Waiting()  # of 50,000 ops each takes a good part of a second to begin with
        background = [refining for refining in refinings if isinstance(refining, BackgroundRefining)]
        for _ in range(EXACT_ROUNDS):
            # Most graphs are solved in the first rounds: no chain is needed then.
            for refining in refinings:
                if refining in background or not refining.is_over:
                    refining.run()
                    yield from refining.events(search)
        yield from _chains(search, refinings, background, after_chain)
        for refining in background:
            is_over = False
            while not is_over:
                is_over = refining.is_over  # before it says its last
                refining.run()
                yield from refining.events(search)


def _chains(
    search: SearchView,
    refinings: list[Refining],
    background: list[BackgroundRefining],
    after_chain: Callable[[], Iterator[Event]],
) -> Iterator[Event]:
    """Two chains of annealing; refinements take the second's place in turn, as long as they have work."""
    rounds, barren, made = FIRST_ROUNDS, 0, 0
    with ThreadPoolExecutor(2) as threads:
        for restart in itertools.count():
            start = search.best_plan
            if start is not None and start.forwards and restart % 2 == 0:
                # Large stages that forward weights leave chains little to move.
                start = search.best_unforwarded or start
            if start is None or (barren >= BARREN_CHAINS and made >= LEAST_ROUNDS):
                return
            before_s = search.best_s
            on_ring = _ring(search, start, restart)
            chains = [_Chain(on_ring, rounds, (restart, number)) for number in range(2)]
            for _ in range(rounds):
                made += 1
                for published in background:
                    yield from published.events(search)
                exact = [one for one in refinings if one not in background and not one.is_over]
                other = exact[made % len(exact)] if exact else chains[1]
                for part, ran in [(part, threads.submit(part.run)) for part in (chains[0], other)]:
                    ran.result()
                    yield from part.events(search)
            if search.replicates:
                yield chains[0].allotted()
            yield from after_chain()
            barren = 0 if search.best_s < before_s else barren + 1
            rounds *= 2


def with_clones(search: SearchView) -> Iterator[Event]:
    """The best plan with clones; every placement that was looked at counts."""
    if (plan := search.best_plan) is None:
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
    yield from [Miss("clones")] * (cloned.evaluations - 1)
    yield on_ring.proposal("clones", on_ring.placement, plan.order, plan.fusion_group, cloned.copies)


def _refinings(search: SearchView) -> Iterator[Refining]:
    """The proof; and where the placement alone is open the best one, without what the proof leaves out.

    The proof leaves out the triangle rule, so relays cost nothing there.
    """
    graph, request, roles = search.graph, search.request, loop_roles(search.graph)
    tables = cost_tables(graph, search.target)
    may_clone = clonable_ops(graph) if search.passing == "relayed" else None
    default = np.arange(graph.num_ops, dtype=np.int32)
    if request.decide == "placement":
        relaxed = refinement_problem(graph, tables, passing="free", may_clone=may_clone, tight=True)
        yield Refining(relaxed, proves=True)
        yield Refining(refinement_problem(graph, search.tables, default, passing=search.passing))
        return
    replicates = may_replicate(search.target, request)
    relaxed = joint_refinement_problem(graph, tables, roles, may_clone=may_clone, replicates=replicates)
    yield (BackgroundRefining if has_core_to_spare(search) else Refining)(relaxed, proves=True)


def _ring(search: SearchView, plan: Plan, restart: int) -> StageSearch:
    """The stages to place on: those of the plan and, where they are open, in turn others like them."""
    on_ring = StageSearch(search, plan)
    if not search.replicates:
        return on_ring
    if restart % 2:
        on_ring = on_ring.varied(np.random.default_rng((search.request.seed, restart)))
    return on_ring.allotted()


class _Chain:
    """Annealing from a plan; its stages, its kernels and their order stay."""

    def __init__(self, on_ring: StageSearch, rounds: int, number: tuple[int, int]) -> None:
        search, start = on_ring.search, on_ring.plan
        self._on_ring = on_ring
        self._reached_s = np.inf
        problem = AnnealingProblem(
            on_ring.tables, on_ring.units(), start.order, start.fusion_group, search.passing
        )
        self._annealing = Annealing(
            problem,
            on_ring.placement,
            moves=rounds * MOVES,
            seed=int(np.random.default_rng((search.request.seed, *number)).integers(2**31)),
            hot=SECOND_HOT if number[1] else HOT,
        )

    def run(self) -> None:
        self._annealing.run(MOVES)

    def allotted(self) -> Proposal:
        """The best placement met, its stages of as many chips as they need."""
        reached = self._on_ring.placed(self._annealing.best.placement)
        return reached.allotted().as_it_stands("annealing")

    def events(self, search: SearchView) -> Iterator[Event]:
        best, start = self._annealing.best, self._on_ring.plan
        if best.objective_s < min(self._reached_s, search.best_s):
            self._reached_s = best.objective_s
            yield self._on_ring.proposal("annealing", best.placement, start.order, start.fusion_group)
        else:
            yield Miss("annealing")
