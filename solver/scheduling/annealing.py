"""Annealing of a schedule for its makespan: chips, sequence and kernels at once.

With sequences in flight, what counts is the larger of the makespan and their number times the busiest chip's
seconds: divided by the number, that is about their interval.

A move changes one kernel, most often one on the critical path (:mod:`go_opt.solver.scheduling.schedule`).
Makespans are computed kernel by kernel along the sequence, from the first changed place; an execution
in the environment confirms new best schedules. Simulated annealing (Kirkpatrick, Gelatt, Vecchi,
"Optimization by simulated annealing", Science 1983; for job shops van Laarhoven, Aarts, Lenstra,
Operations Research 1992) accepts a move that raises the logarithm of the makespan by x with
probability ``exp(-x / temperature)``.

If each link has one sender, as in an all-to-all package, tensors leave in the order of the sequence. The
makespan then equals that of :mod:`go_opt.env.model.makespan`, except for the order in which outputs cross
the host's link. Otherwise it is close if the sequence follows the ends of kernels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray, record
from go_opt.common.compiling import int64, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.env.model.makespan import NONE, Workspace, depart, execute, fetched_place
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.solver.scheduling.schedule import (
    Schedule,
    ScheduleProblem,
    copy_schedule,
    instance_of,
    plan_arrays,
    price,
    propose,
    restore_schedule,
    schedule_of,
    scheduling_workspace,
)

BLOCK: Final = 8  # places between two saved states
NEVER: Final = 1 << 40
ROUNDING: Final = 1 + 1e-9
# Of a kernel: the kernel it waited for last, or NONE; when it ends. Of an input on a chip: the place of the
# kernel that fetches it from the host; when it arrives.
TIMES: Final = record("cause", "end_s")
FETCHED: Final = record("place", "there_s")


class Progress(NamedTuple):
    """The times along a sequence. Axes: ``N`` ops, ``K`` tensors."""

    times: RecordArray  # [N] TIMES
    sent_s: FloatArray  # [K] when a tensor leaves its chip
    fetched: RecordArray  # FETCHED, as `fetched_s` of the workspace
    states: FloatArray  # [N / BLOCK, W] of chips, links and the host before each block of places


def progress_of(instance: ScheduleProblem, workspace: Workspace) -> Progress:
    """Progress before any kernel has run."""
    num_ops = instance.tables.num_ops
    width = 2 * len(workspace.chips) + len(workspace.links) + 3
    times, fetched = np.zeros(num_ops, TIMES), np.zeros(len(workspace.fetched_s), FETCHED)
    return Progress(times, np.zeros(len(workspace.sent)), fetched, np.zeros((num_ops // BLOCK + 1, width)))


@uncounted_inner
def keep_progress(workspace: Workspace, schedule: Schedule, source: Progress, to: Progress) -> None:
    """Copy the part that :func:`makespan_from` has filled in."""
    first = int64(schedule.changed[0]) // BLOCK
    for place in range(first * BLOCK, schedule.size[0]):
        kernel = schedule.sequence[place]
        to.times[kernel] = source.times[kernel]
        op = int64(schedule.kernels[kernel].first_op)
        while op != NONE:
            for i in range(workspace.op_lists[op].outputs, workspace.op_lists[op + 1].outputs):
                to.sent_s[workspace.outputs[i]] = source.sent_s[workspace.outputs[i]]
            op = int64(schedule.ops[op].following)
    for i in range(len(source.fetched)):
        to.fetched[i] = source.fetched[i]
    for block in range(first, (schedule.size[0] + BLOCK - 1) // BLOCK):
        for i in range(source.states.shape[1]):
            to.states[block, i] = source.states[block, i]


@uncounted_inner
def makespan_from(
    instance: ScheduleProblem,
    workspace: Workspace,
    schedule: Schedule,
    reached: Progress,
    progress: Progress,
    tail_s: FloatArray,
    at_most_s: float,
) -> float:
    """Returns the makespan; or infinity, as soon as a kernel shows that it is above ``at_most_s``.

    Args:
      reached: progress of the schedule before the change.
      progress: filled in from the block of the first change on.
      tail_s: [N] least time from a kernel's end to the end of all, for kernels after the last change.
    """
    kernels, ops, times, sent_s = schedule.kernels, schedule.ops, progress.times, progress.sent_s
    chips, tables = workspace.chips, instance.tables
    first, last = int64(schedule.changed[0]), int64(schedule.changed[1])
    begin = first // BLOCK * BLOCK
    place = begin
    host_in_s, host_out_s, finished_s = _resume(workspace, reached, progress, place)
    most_s = at_most_s * ROUNDING
    while place < schedule.size[0]:
        if place % BLOCK == 0:
            _keep(workspace, progress, place, host_in_s, host_out_s, finished_s)
        kernel = int64(schedule.sequence[place])
        chip = int64(kernels[kernel].chip)
        start_s, cause = chips[chip].end_s, chips[chip].running
        op = int64(kernels[kernel].first_op)
        while op != NONE:
            for i in range(workspace.op_lists[op].inputs, workspace.op_lists[op + 1].inputs):
                tensor = int64(workspace.inputs[i])
                at = fetched_place(workspace, tensor, chip)
                if progress.fetched[at].place == NEVER:
                    host_in_s += workspace.tensors[tensor].size_bytes * workspace.host_s_per_byte[0]
                    progress.fetched[at].place = place
                    progress.fetched[at].there_s = host_in_s
                start_s = max(start_s, progress.fetched[at].there_s)
            for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
                tensor = int64(tables.reader_tensor[tables.op_read[i]])
                producer = tables.tensor_producer[tensor]
                if producer < 0:
                    continue
                read = ops[producer].kernel
                if read == kernel:
                    continue
                is_as_before = kernels[read].place < begin
                if kernels[read].chip == chip:
                    there_s = reached.times[read].end_s if is_as_before else times[read].end_s
                else:
                    there_s = reached.sent_s[tensor] if is_as_before else sent_s[tensor]
                    there_s += _on_the_way_s(workspace, int64(kernels[read].chip), chip, tensor)
                if there_s >= start_s:
                    start_s = there_s
                    cause = read
            op = int64(ops[op].following)
        end_s = start_s + kernels[kernel].seconds
        if end_s + (tail_s[kernel] if place > last else 0.0) > most_s:
            return np.inf
        times[kernel].end_s = end_s
        times[kernel].cause = cause
        chips[chip].end_s = end_s
        chips[chip].running = kernel
        finished_s = max(finished_s, end_s)
        op = int64(kernels[kernel].first_op)
        while op != NONE:
            for i in range(workspace.op_lists[op].outputs, workspace.op_lists[op + 1].outputs):
                tensor = int64(workspace.outputs[i])
                if workspace.tensors[tensor].is_output:
                    size_bytes = workspace.tensors[tensor].size_bytes
                    host_out_s = max(end_s, host_out_s) + size_bytes * workspace.host_s_per_byte[1]
                    finished_s = max(finished_s, host_out_s)
                sent_s[tensor] = depart(workspace, kernels, ops, tensor, kernel, end_s)
            op = int64(ops[op].following)
        place += 1
    return finished_s


@uncounted_inner
def _on_the_way_s(workspace: Workspace, source: int, chip: int, tensor: int) -> float:
    """Seconds from one chip to another once the links are free; no bytes take none."""
    size_bytes = workspace.tensors[tensor].size_bytes
    if size_bytes == 0:
        return 0.0
    pair = workspace.pairs[source * len(workspace.chips) + chip]
    return pair.setup_s + size_bytes * pair.s_per_byte


@uncounted_inner
def _resume(
    workspace: Workspace, reached: Progress, progress: Progress, place: int
) -> tuple[float, float, float]:
    """Restore the state at the start of a block; returns when the host's links are free, and the last end."""
    chips, links, fetched = workspace.chips, workspace.links, progress.fetched
    state = reached.states[place // BLOCK]
    num_chips = len(chips)
    for chip in range(num_chips):
        chips[chip].end_s = 0.0 if place == 0 else state[2 * chip]
        chips[chip].running = NONE if place == 0 else int64(state[2 * chip + 1])
    at = 2 * num_chips
    for link in range(len(links)):
        links[link].free_s = 0.0 if place == 0 else state[at + link]
        links[link].seen = 0
    for i in range(len(fetched)):
        fetched[i] = reached.fetched[i]
        if place == 0 or fetched[i].place >= place:
            fetched[i].place = NEVER
    if place == 0:
        return 0.0, 0.0, 0.0
    at += len(links)
    return state[at], state[at + 1], state[at + 2]


@uncounted_inner
def _keep(
    workspace: Workspace,
    progress: Progress,
    place: int,
    host_in_s: float,
    host_out_s: float,
    finished_s: float,
) -> None:
    state = progress.states[place // BLOCK]
    for chip in range(len(workspace.chips)):
        state[2 * chip] = workspace.chips[chip].end_s
        state[2 * chip + 1] = workspace.chips[chip].running
    at = 2 * len(workspace.chips)
    for link in range(len(workspace.links)):
        state[at + link] = workspace.links[link].free_s
    at += len(workspace.links)
    state[at] = host_in_s
    state[at + 1] = host_out_s
    state[at + 2] = finished_s


@uncounted_inner
def fill_tails(
    instance: ScheduleProblem, workspace: Workspace, schedule: Schedule, tail_s: FloatArray
) -> None:
    """Fill in the longest path after each kernel, over its readers, transfers and the next on its chip."""
    kernels, ops, tables, num_chips = schedule.kernels, schedule.ops, instance.tables, len(workspace.chips)
    for kernel in range(len(tail_s)):
        tail_s[kernel] = 0.0
    for chip in range(num_chips):
        workspace.chips[chip].running = NONE
    for place in range(int64(schedule.size[0]) - 1, -1, -1):
        kernel = int64(schedule.sequence[place])
        chip = int64(kernels[kernel].chip)
        behind = workspace.chips[chip].running
        if behind != NONE:
            tail_s[kernel] = max(tail_s[kernel], tail_s[behind] + kernels[behind].seconds)
        workspace.chips[chip].running = kernel
        left_s = tail_s[kernel] + kernels[kernel].seconds
        op = int64(kernels[kernel].first_op)
        while op != NONE:
            for i in range(tables.op_read_ptr[op], tables.op_read_ptr[op + 1]):
                tensor = int64(tables.reader_tensor[tables.op_read[i]])
                producer = tables.tensor_producer[tensor]
                if producer < 0 or ops[producer].kernel == kernel:
                    continue
                read = ops[producer].kernel
                sent_s = 0.0
                if kernels[read].chip != chip:
                    sent_s = _on_the_way_s(workspace, int64(kernels[read].chip), chip, tensor)
                tail_s[read] = max(tail_s[read], left_s + sent_s)
            op = int64(ops[op].following)


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
