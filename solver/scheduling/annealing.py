"""Annealing of a schedule for its makespan: chips, sequence and kernels at once.

With sequences in flight, what counts is the larger of the makespan and their number times the busiest chip's
seconds: divided by the number, that is about their interval.

A move changes one kernel, most often one on the critical path (:mod:`go_opt.solver.scheduling.moves`).
Makespans are computed along the sequence (:mod:`go_opt.solver.scheduling.in_sequence`); an execution
in the environment confirms new best schedules. Simulated annealing (Kirkpatrick, Gelatt, Vecchi,
"Optimization by simulated annealing", Science 1983; for job shops van Laarhoven, Aarts, Lenstra,
Operations Research 1992) accepts a move that raises the logarithm of the makespan by x with
probability ``exp(-x / temperature)``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.env.model.makespan import NONE, Workspace, execute
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.solver.scheduling.in_sequence import (
    Progress,
    fill_tails,
    keep_progress,
    makespan_from,
    progress_of,
)
from go_opt.solver.scheduling.moves import propose
from go_opt.solver.scheduling.schedule import (
    Schedule,
    ScheduleProblem,
    copy_schedule,
    instance_of,
    plan_arrays,
    price,
    restore_schedule,
    schedule_of,
    scheduling_workspace,
)

HOT: Final = 0.01  # initial temperature, for the logarithm of the makespan
COLD: Final = 0.01  # final temperature, as a share of the initial one
RESEQUENCED: Final = 128  # moves between reorderings by end, which keep makespans accurate
ON_PATH: Final = 0.75  # share of moves that pick a kernel on the critical path


class _Chain(NamedTuple):
    """The state of a chain."""

    present: Schedule
    proposed: Schedule
    best: Schedule
    reached: Progress  # of the present schedule
    progress: Progress  # of the proposed one
    tail_s: FloatArray  # [N] of the present schedule, see `makespan_from`
    path: IntArray  # [N + 1] the number of kernels on the critical path, then the kernels
    stream_bytes: LongArray  # [D] zeros: nothing streams
    load_s: FloatArray  # [D + 1] seconds of kernels on each chip, and the number of sequences
    made: FloatArray  # [3] moves so far, makespan of the present and of the best schedule


class ScheduleAnnealing:
    """One annealing chain; calls of :meth:`run` may have any size, with the same result."""

    def __init__(
        self,
        graph: Graph,
        tables: CostTables,
        roles: LoopRoles,
        plan: tuple[IntArray, IntArray, IntArray],
        *,
        moves: int,
        seed: int,
        hot: float = HOT,
        shared: IntArray | None = None,
        sequences: int = 0,
    ) -> None:
        """Start from ``plan``: placement, order and kernels, [N] each.

        Args:
          shared: [N] ops with the same number keep sharing a chip; None: all are free.
          sequences: in flight; 0 if the makespan alone counts.
          moves: number until the temperature reaches its final value, where it stays.
        """
        self._package = scheduling_workspace(tables)
        shared = np.arange(graph.num_ops, dtype=np.int32) if shared is None else shared
        self._instance = instance_of(graph, tables, roles, self._package, shared)
        present, proposed, best = (schedule_of(self._instance, *plan) for _ in range(3))
        path, made = np.zeros(tables.num_ops + 1, np.int32), np.zeros(3)
        reached, progress = (progress_of(self._instance, self._package) for _ in range(2))
        tail_s = np.zeros(tables.num_ops)
        self._chain = _Chain(
            present,
            proposed,
            best,
            reached,
            progress,
            tail_s,
            path,
            np.zeros(tables.num_chips, np.int64),
            np.append(np.zeros(tables.num_chips), float(sequences)),
            made,
        )
        self._rng = np.random.default_rng(seed)
        self._hot, self._moves = float(hot), float(max(1, moves))
        _start(self._instance, self._package, self._chain)

    def run(self, moves: int) -> None:
        """Make ``moves`` more moves; other threads can run meanwhile."""
        cooling = self._hot, self._moves
        _run(self._instance, self._package, self._chain, cooling, moves, self._rng)

    @property
    def best_s(self) -> float:
        """Makespan of the best schedule so far; with sequences in flight, about their interval."""
        return float(self._chain.made[2] / max(1.0, self._chain.load_s[-1]))

    @property
    def best(self) -> Candidate:
        """The best schedule so far."""
        return Candidate("annealing", *plan_arrays(self._chain.best), expected_s=self.best_s)


@uncounted
def _start(instance: ScheduleProblem, workspace: Workspace, chain: _Chain) -> None:
    present = chain.present
    for i in range(present.size[0]):
        price(instance, present, int64(present.sequence[i]))
    copy_schedule(present, chain.proposed)
    copy_schedule(present, chain.best)
    chain.made[2] = _seconds(workspace, present, chain, np.inf)
    seconds = makespan_from(
        instance, workspace, chain.proposed, chain.reached, chain.progress, chain.tail_s, np.inf
    )
    _accept(instance, workspace, chain, max(seconds, _loads_s(present, chain)))


@uncounted_inner
def _accept(instance: ScheduleProblem, workspace: Workspace, chain: _Chain, seconds: float) -> None:
    """Make the proposed schedule the present one."""
    restore_schedule(chain.proposed, chain.present, chain.proposed.changed)
    keep_progress(workspace, chain.proposed, chain.progress, chain.reached)
    chain.made[1] = seconds
    fill_tails(instance, workspace, chain.present, chain.tail_s)
    _trace(chain)


@uncounted
def _run(
    instance: ScheduleProblem,
    workspace: Workspace,
    chain: _Chain,
    cooling: tuple[float, float],
    moves: int,
    rng: np.random.Generator,
) -> None:
    present, proposed, path, made = chain.present, chain.proposed, chain.path, chain.made
    hot, all_moves = cooling
    for _ in range(moves):
        temperature = hot * COLD ** min(1.0, made[0] / all_moves)
        made[0] += 1.0
        if made[0] % RESEQUENCED == 0:
            _resequence(instance, workspace, chain)
        if rng.random() < ON_PATH and path[0] > 0:
            kernel = int64(path[1 + int64(rng.random() * path[0])])
        else:
            kernel = int64(present.sequence[int64(rng.random() * present.size[0])])
        if not propose(instance, proposed, kernel, rng):
            continue
        at_most_s = made[1] * np.exp(-temperature * np.log(1.0 - rng.random()))
        seconds = _loads_s(proposed, chain)
        if seconds <= at_most_s:
            makespan_s = makespan_from(
                instance, workspace, proposed, chain.reached, chain.progress, chain.tail_s, at_most_s
            )
            seconds = max(seconds, makespan_s)
        if seconds > at_most_s:
            restore_schedule(present, proposed, proposed.changed)
            continue
        _accept(instance, workspace, chain, seconds)
        if seconds < made[2]:
            seconds = _seconds(workspace, present, chain, made[2])
            if seconds < made[2]:
                made[2] = seconds
                copy_schedule(present, chain.best)


@uncounted_inner
def _resequence(instance: ScheduleProblem, workspace: Workspace, chain: _Chain) -> None:
    """Order the sequence by the ends of kernels, unless that raises the makespan."""
    proposed, run = chain.proposed, workspace.run
    _seconds(workspace, chain.present, chain, np.inf)
    for i in range(proposed.size[0]):
        kernel = int64(chain.present.sequence[i])
        proposed.sequence[run[kernel].rank] = kernel
        proposed.kernels[kernel].place = run[kernel].rank
    proposed.changed[0] = 0
    proposed.changed[1] = proposed.size[0]
    seconds = makespan_from(
        instance, workspace, proposed, chain.reached, chain.progress, chain.tail_s, chain.made[1]
    )
    seconds = max(seconds, _loads_s(proposed, chain))
    if seconds > chain.made[1]:
        restore_schedule(chain.present, proposed, proposed.changed)
    else:
        _accept(instance, workspace, chain, seconds)


@uncounted_inner
def _seconds(workspace: Workspace, schedule: Schedule, chain: _Chain, at_most_s: float) -> float:
    """What counts of a schedule."""
    makespan_s = execute(
        workspace,
        schedule.kernels,
        schedule.ops,
        schedule.sequence,
        schedule.size[0],
        chain.stream_bytes,
        at_most_s,
    )
    return max(makespan_s, _loads_s(schedule, chain))


@uncounted_inner
def _loads_s(schedule: Schedule, chain: _Chain) -> float:
    """The number of sequences times the busiest chip's seconds."""
    load_s, last = chain.load_s, len(chain.load_s) - 1
    most_s = 0.0
    if load_s[last] > 0.0:
        for chip in range(last):
            load_s[chip] = 0.0
        for place in range(schedule.size[0]):
            kernel = schedule.sequence[place]
            load_s[schedule.kernels[kernel].chip] += schedule.kernels[kernel].seconds
        for chip in range(last):
            most_s = max(most_s, load_s[chip])
    return most_s * load_s[last]


@uncounted_inner
def _trace(chain: _Chain) -> None:
    """Fill in the critical path, from its end: each kernel waited for the next."""
    present, path, times = chain.present, chain.path, chain.reached.times
    kernel = int64(present.sequence[0])
    for i in range(present.size[0]):
        if times[present.sequence[i]].end_s >= times[kernel].end_s:
            kernel = int64(present.sequence[i])
    length = 0
    while kernel != NONE:
        length += 1
        path[length] = kernel
        kernel = times[kernel].cause
    path[0] = length
