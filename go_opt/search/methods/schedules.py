"""Proposals for the makespan where placements are free: upward ranks, and annealing of schedules.

A few sequences in flight are annealed likewise: their interval is at least the latency over their number.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from go_opt.env import greedy_fusion, loop_roles
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.plan import Plan
from go_opt.search.compiling.kernel_cache import are_compiled
from go_opt.search.methods.events import Event, Miss, Proposal, SearchView, waiting_until
from go_opt.search.methods.first_plans import Start
from go_opt.search.methods.slices import joined_kernels
from go_opt.solver import Colocate, Forbid, Pin, ScheduleAnnealing, Stages, list_scheduling, upward_ranks
from go_opt.solver.scheduling.list_scheduling import linked_kernels, partition

SWEEPS: Final = 32  # moves for each kernel in the first partitions, then twice as many each turn
PARTITIONS_SHARE: Final = 0.1  # of the time left
PERIODS: Final = (1, 4, 16)  # in which the chips of a partition share the work
CUT_WEIGHTS: Final = (0.3, 1.0, 3.0)  # of transfers in partitions
TRANSFER_WEIGHTS: Final = (1.0, 0.0, 4.0)  # in upward ranks
LEAST_MOVES: Final = 16  # of a chain in a round
OPS_MOVED: Final = 1 << 20  # in a round: a move looks at all ops
MOST_MOVES: Final = 1 << 14
FIRST_ROUNDS: Final = 8  # of the first chains
BARREN_CHAINS: Final = 4  # in a row that gained nothing: the search ends
# Temperatures that chains start with: where the bound is far, plans can become much better.
HOT: Final = (0.001, 0.05)  # of the logarithm of makespan / bound, least and highest
HOTTEST: Final = 0.15
LONGER: Final = 4  # times as long is each next chain


def is_scheduled(search: SearchView) -> bool:
    """Whether annealing keeps the user's constraints: it knows of chips that may not hold an op, and of ops
    that share one.

    So it keeps to the stages' chips, and mostly uses them all.
    """
    return all(isinstance(one, Pin | Forbid | Stages | Colocate) for one in search.request.constraints)


def ranked(start: Start) -> Iterator[Event]:
    """List schedules by upward ranks, in which transfers weigh more or less; of ops apart as well.

    The last one has joins of branches in the kernels of the longest ones, which end last.
    """
    search, tables = start.search, start.search.tables
    given = [start.joined, (start.order, start.kernels), (start.order, start.order)]
    loops = loop_roles(search.graph)
    # The kernel of a whole pattern also waits for what only its end reads.
    if not np.array_equal(loops.loop_elements, search.roles.loop_elements):
        given.append(joined_kernels(search, loops, greedy_fusion(loops, start.order)))
    ways = [*itertools.product(given, TRANSFER_WEIGHTS), (start.short_branches_first, 1.0)]
    for (order, kernels), weight in ways:
        shared = search.requested.shared_chips(kernels)
        rank = upward_ranks(tables, order, number_kernels(order, kernels), weight)
        for queues in (True, False) if weight == 1.0 else (True,):
            schedule = list_scheduling(tables, order, kernels, rank, queues=queues, shared=shared)
            yield Proposal("earliest finish: upward rank", *schedule)


def partitioned(start: Start) -> Iterator[Event]:
    """List schedules of partitions with little traffic."""
    search, (order, kernels) = start.search, start.joined
    tables, kernel_of = search.tables, number_kernels(*start.joined)
    linked, rank = linked_kernels(tables, kernel_of), upward_ranks(tables, order, kernel_of, 1.0)
    seeds = np.random.default_rng((search.request.seed, 3))
    shared = search.requested.shared_chips(kernels)
    counts = dict.fromkeys((tables.num_chips, max(2, tables.num_chips // 2)))
    is_counted, until_s = search.request.max_evaluations is not None, (1 - PARTITIONS_SHARE) * search.left_s
    for turn in itertools.count():
        for count, periods, weight in itertools.product(counts, PERIODS, CUT_WEIGHTS):
            chips = partition(linked, count, periods, weight, SWEEPS << turn, int(seeds.integers(2**31)))
            schedule = list_scheduling(tables, order, kernels, rank, chips=chips, shared=shared)
            yield Proposal("partition: list schedule", *schedule)
            if search.left_s < until_s and not is_counted:
                return
        if is_counted:
            return


def annealed(search: SearchView) -> Iterator[Event]:
    """Chains from the best plan, two at a time, each time longer.

    A round is so many moves of both chains, on two threads that wait for each other; each counts
    as one evaluation.
    """
    yield from waiting_until(are_compiled)
    rounds, barren, round_s = FIRST_ROUNDS, 0, 0.0
    rng = np.random.default_rng((search.request.seed, 2))
    moves = min(max(OPS_MOVED // search.graph.num_ops, LEAST_MOVES), MOST_MOVES)
    is_counted = search.request.max_evaluations is not None
    with ThreadPoolExecutor(2) as threads:
        while barren < BARREN_CHAINS:
            start = search.best_plan
            if start is None:
                return
            if not is_counted and round_s > 0.0:  # the last chains cool down in time
                left = int(search.left_s / round_s)
                rounds = max(1, left) if left < 2 * rounds else rounds
            before_s = search.best_s
            chains = [_chain(search, start, rounds * moves, rng) for _ in range(2)]
            chains[0].run(0)  # what it runs loads on this thread, whose clock stands then
            began_s = time.monotonic()
            for number in range(1, rounds + 1):
                for ran in [threads.submit(chain.run, moves) for chain in chains]:
                    ran.result()
                pending = len(chains) * number if number < rounds else 0
                for chain in chains:
                    yield _event(search, chain, pending)
            round_s = (time.monotonic() - began_s) / rounds
            barren = 0 if search.best_s < before_s else barren + 1
            rounds *= LONGER


def _chain(search: SearchView, start: Plan, moves: int, rng: np.random.Generator) -> ScheduleAnnealing:
    return ScheduleAnnealing(
        search.graph,
        search.tables,
        search.roles,
        (start.placement, start.order, start.fusion_group),
        shared=search.requested.shared_chips(start.fusion_group),
        moves=moves,
        seed=int(rng.integers(2**31)),
        sequences=search.graph.sequences if search.request.objective == "throughput" else 0,
        hot=min(math.log1p(search.gap) * float(np.exp(rng.uniform(*np.log(HOT)))), HOTTEST),
    )


def _event(search: SearchView, chain: ScheduleAnnealing, pending: int) -> Event:
    if chain.best_s >= search.best_s:
        return Miss("annealing", pending=pending)
    return Proposal(**vars(chain.best), pending=pending)
