"""The slicing problem: a kernel sequence on a target's chips, and the costs of its segments.

Terms as in :mod:`go_opt.solver.slicing.cuts`. Relays add to the work of a segment (design section 8): a
tensor produced before segment ``[i, j)`` and read at or after ``j`` passes the segment. Its chip copies the
tensor in a separate kernel: ``2 * bytes * sram_s_per_byte + kernel_overhead_s``. Tensors are sorted by last
reader, so that passing bytes can be updated while segments grow. A tensor is ``alive`` if it is read at or
after the current end.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Unpack

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, csr
from go_opt.common.compiling import compiled, compiled_inline, uncounted, uncounted_inner
from go_opt.env.cost.tables import CostTables, hop_seconds_per_byte
from go_opt.model.plan import Candidate
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.segment_rules import SegmentRules, latest_ends, may_be_cut
from go_opt.solver.problem.sequence import KernelSequence, kernel_sequence

ROUNDING: Final = 1e-12


class SliceProblem(NamedTuple):
    """A sequence on a target's chips in their order.

    Axes: ``M`` kernels, ``D`` chips, ``Q`` kinds, ``C`` tensors that cross cuts and are relayed, none where
    they pass at no cost or never pass.
    """

    prefix_s: FloatArray  # [Q, M + 1] seconds of kernels (summed: and host traffic) before a cut
    crossing_bytes: LongArray  # [M + 1]
    blocked: LongArray  # [D, M + 1] kernels before a cut that the chip cannot or may not run
    reach: LongArray  # [M + 1]
    latest: LongArray  # [M + 1] the last cut where a segment that starts here may end
    may_cut: BoolArray  # [M + 1] whether the user allows the cut and crossing tensors fit in memory
    hop_s_per_byte: FloatArray  # [D] from chip d to chip d + 1
    chip_kind: IntArray  # [D]
    pays_transfers: BoolArray  # [Q]
    again_kernel: LongArray  # [A] repeated reads of inputs, see KernelSequence
    again_before: LongArray  # [A]
    again_s: FloatArray  # [A] seconds a segment with both reads saves
    relay_ptr: LongArray  # [M + 1] relayed tensors by their last reader
    relay_home: LongArray  # [C] kernel that produces the tensor
    relay_bytes: LongArray  # [C]
    copy_s_per_byte: FloatArray  # [Q] to read and write a relayed tensor
    copy_s: FloatArray  # [Q] fixed cost of a relay
    floor_s: float  # lower bound on any slicing: the host's links where they overlap, else 0
    overlap: bool

    @property
    def num_kernels(self) -> int:
        return self.prefix_s.shape[1] - 1

    @property
    def without_relays(self) -> SliceProblem:
        ptr = np.zeros_like(self.relay_ptr)
        return self._replace(relay_ptr=ptr, relay_home=self.relay_home[:0], relay_bytes=self.relay_bytes[:0])

    @property
    def kinds_are_alike(self) -> bool:
        hops = self.hop_s_per_byte[:-1]
        one_rate = len(hops) == 0 or bool((hops == hops[0]).all())
        return one_rate and bool((self.chip_kind == self.chip_kind[0]).all())

    @property
    def chips_are_alike(self) -> bool:
        return self.kinds_are_alike and not self.blocked[:, -1].any()


class Alive(NamedTuple):
    """Tensors produced before the current end and read at or after it."""

    size_bytes: LongArray  # [M] by producer; kernels from the end on count all they produce
    number: LongArray  # [M]
    total: LongArray  # [2] bytes and number over all kernels before the end


def problem_along(
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    forwarding: ForwardingMode,
    **rules: Unpack[SegmentRules],
) -> tuple[KernelSequence, SliceProblem]:
    """Returns the kernel sequence of ``order`` and the problem of cutting it into segments.

    Args:
      order: [N] a topological order; the ops of each group are adjacent in it.
      fusion_group: [N]; cuts fall between groups only.
      forwarding: how tensors that pass a chip are treated.
      rules: the user's rules for segments (``allowed``, ``colocated``, ``rising``); an op must be
        allowed on every chip of its stage.
    """
    sequence = kernel_sequence(tables, order, fusion_group, adjacent=forwarding == "adjacent")
    return sequence, slice_problem(tables, sequence, relayed=forwarding == "relayed", **rules)


def slicing_of(
    sequence: KernelSequence,
    cuts: LongArray,
    interval_s: float,
    sizes: LongArray | None = None,
    forwards: BoolArray | None = None,
) -> Candidate:
    """Returns the plan whose kernels between two ``cuts`` [S + 1] share a chip, or the chips of a stage.

    Args:
      interval_s: includes streamed weights only where the slicing method counts them.
      sizes: [S] chips of each stage; by default one chip each, without replicated stages.
      forwards: [S] whether the stage forwards streamed weights.
    """
    chips = np.ones(len(cuts) - 1, np.int64) if sizes is None else sizes
    lengths, first_chip = np.diff(cuts), np.cumsum(chips) - chips
    return Candidate(
        "slice",
        np.repeat(first_chip, lengths)[sequence.kernel_of].astype(np.int32),
        sequence.order,
        sequence.fusion_group,
        None if sizes is None else np.repeat(sizes, lengths)[sequence.kernel_of].astype(np.int32),
        () if forwards is None else tuple(first_chip[forwards].tolist()),
        interval_s,
    )


def slice_problem(
    tables: CostTables,
    sequence: KernelSequence,
    *,
    relayed: bool = False,
    **rules: Unpack[SegmentRules],
) -> SliceProblem:
    """Returns the slicing problem of ``sequence`` on the target of ``tables``.

    Args:
      relayed: every tensor that passes a chip is relayed there.
      rules: the user's rules for segments.
    """
    seconds = sequence.kernel_s
    host_s = (
        sequence.host_in_bytes * tables.host_in_s_per_byte
        + sequence.host_out_bytes * tables.host_out_s_per_byte
    )
    if not tables.overlap:
        seconds = seconds + host_s * tables.pays_transfers[:, None]
    zero = np.zeros((len(seconds), 1))
    # If nothing overlaps and no kind pays, transfers are free.
    transfers_cost = tables.overlap or bool(tables.pays_transfers.any())
    host_floor_s = max(
        sequence.input_bytes * tables.host_in_s_per_byte,
        float(sequence.host_out_bytes.sum()) * tables.host_out_s_per_byte,
    )
    saves = transfers_cost and not tables.overlap
    may_cut = may_be_cut(sequence.kernel_of, sequence.num_kernels, rules.get("colocated", ()))
    if sequence.adjacent or relayed:
        may_cut &= sequence.crossing_bytes <= most_crossing_bytes(tables)
    crosses = np.flatnonzero(relayed & (sequence.home >= 0) & (sequence.last > sequence.home))
    relay_ptr, by_last = csr(sequence.last[crosses], sequence.num_kernels)
    crosses = crosses[by_last]
    return SliceProblem(
        prefix_s=np.concatenate([zero, np.cumsum(seconds, axis=1)], axis=1),
        crossing_bytes=sequence.crossing_bytes,
        blocked=_blocked(tables, sequence, rules.get("allowed")),
        reach=sequence.reach,
        latest=latest_ends(sequence.kernel_of, sequence.num_kernels, rules.get("rising")),
        may_cut=may_cut,
        hop_s_per_byte=hop_seconds_per_byte(tables) * transfers_cost,
        chip_kind=tables.chip_kind,
        pays_transfers=tables.pays_transfers,
        again_kernel=sequence.again_kernel,
        again_before=sequence.again_before,
        again_s=(sequence.again_bytes * tables.host_in_s_per_byte * saves).astype(np.float64),
        relay_ptr=relay_ptr,
        relay_home=sequence.home[crosses],
        relay_bytes=tables.tensor_bytes[crosses],
        copy_s_per_byte=2.0 * tables.sram_s_per_byte,
        copy_s=tables.kernel_overhead_s,
        floor_s=host_floor_s if tables.overlap else 0.0,
        overlap=tables.overlap,
    )


def most_crossing_bytes(tables: CostTables) -> int:
    """Returns the most bytes that may cross a cut, unless tensors pass chips for free.

    Every crossing tensor has a double buffer on the chip before the cut and on the chip after it.
    """
    return int(tables.sram_bytes.max()) // 2


def _blocked(tables: CostTables, sequence: KernelSequence, allowed: BoolArray | None) -> LongArray:
    blocked = np.zeros((tables.num_chips, sequence.num_kernels + 1), dtype=np.int64)
    if allowed is None and sequence.can_run.all():
        return blocked
    may_run = sequence.can_run[tables.chip_kind]
    if allowed is not None:
        chip, op = np.nonzero(~allowed)
        may_run[chip, sequence.kernel_of[op]] = False
    np.cumsum(~may_run, axis=1, out=blocked[:, 1:])
    return blocked


def is_allowed(problem: SliceProblem, cuts: LongArray) -> bool:
    """Returns whether each chip can and may run its segment, and the user allows all cuts."""
    chips, start, end = np.arange(len(cuts) - 1), cuts[:-1], cuts[1:]
    return bool(
        (problem.blocked[chips, end] == problem.blocked[chips, start]).all()
        and (end <= problem.latest[start]).all()
        and problem.may_cut[cuts].all()
    )


def least_s(problem: SliceProblem, max_chips: int) -> float:
    """Returns a lower bound for ``max_chips`` chips: equal work, each kernel on its fastest kind."""
    if len(problem.prefix_s) == 1:
        work_s = float(problem.prefix_s[0, -1])
    else:
        work_s = float(np.diff(problem.prefix_s, axis=1).min(axis=0).sum())
    # Repeated reads of inputs save at most all their traffic.
    work_s -= float(problem.again_s.sum())
    return max(work_s * (1.0 - ROUNDING) / max_chips, problem.floor_s)


def one_chip_s(problem: SliceProblem) -> float:
    """Returns an upper bound on the cost of any segment on any chip."""
    dearest_hop = float(problem.hop_s_per_byte.max())
    cuts_s = 2.0 * float(problem.crossing_bytes.max()) * dearest_hop
    relays_s = float(problem.copy_s_per_byte.max() * problem.relay_bytes.sum())
    relays_s += float(problem.copy_s.max()) * len(problem.relay_home)
    return float(problem.prefix_s[:, -1].max()) + cuts_s + relays_s + problem.floor_s


def slicing_cost_s(problem: SliceProblem, cuts: LongArray) -> float:
    """Returns the interval of a slicing, without streamed weights."""
    return max(problem.floor_s, float(_dearest_segment_s(problem, cuts)))


@compiled
def _dearest_segment_s(problem: SliceProblem, cuts: LongArray) -> float:
    passes = relays_of_segments(problem, cuts)
    dearest_s = 0.0
    for d in range(len(cuts) - 1):
        saved_s = 0.0
        for a in range(len(problem.again_kernel)):
            if problem.again_before[a] >= cuts[d] and problem.again_kernel[a] < cuts[d + 1]:
                saved_s += problem.again_s[a]
        cost_s = segment_cost_s(problem, d, cuts[d], cuts[d + 1], passes[d, 0], passes[d, 1], saved_s)
        dearest_s = max(dearest_s, cost_s)
    return dearest_s


@uncounted
def segment_cost_s(
    problem: SliceProblem, chip: int, start: int, end: int, relayed_bytes: int, relays: int, saved_s: float
) -> float:
    """Returns the cost of segment [start, end) on ``chip``; twin of the conditions in ``fewest_chips``.

    The segment relays ``relayed_bytes`` in ``relays`` tensors; repeated reads of inputs save ``saved_s``.
    """
    kind = problem.chip_kind[chip]
    cost_s = problem.prefix_s[kind, end] - problem.prefix_s[kind, start]
    cost_s += relay_s(problem, kind, relayed_bytes, relays)
    in_s = problem.crossing_bytes[start] * problem.hop_s_per_byte[chip - 1] if chip > 0 else 0.0
    out_s = problem.crossing_bytes[end] * problem.hop_s_per_byte[chip]
    if problem.overlap:
        return max(cost_s, in_s, out_s)
    return cost_s - saved_s + in_s + out_s if problem.pays_transfers[kind] else cost_s


@compiled_inline
def first_start(problem: SliceProblem, start: int, end: int, work_s: float) -> int:
    """Returns the first start >= ``start`` of a permitted segment to ``end`` of at most ``work_s``."""
    while start < end and (least_work_s(problem, start, end) > work_s or problem.latest[start] < end):
        start += 1
    return start


@compiled_inline
def least_work_s(problem: SliceProblem, start: int, end: int) -> float:
    """Returns the kernel seconds of segment [start, end) on its fastest kind."""
    least_s = np.inf
    for kind in range(len(problem.prefix_s)):
        least_s = min(least_s, problem.prefix_s[kind, end] - problem.prefix_s[kind, start])
    return least_s


def no_tensors_alive(problem: SliceProblem) -> Alive:
    """Returns scratch for :func:`start_over` and :func:`end_moves_on`."""
    counts = np.zeros((2, problem.num_kernels), np.int64)
    return Alive(counts[0], counts[1], np.zeros(2, np.int64))


@uncounted
def start_over(problem: SliceProblem, alive: Alive) -> None:
    """Sets the end before the first kernel."""
    for kernel in range(len(alive.number)):
        alive.size_bytes[kernel] = 0
        alive.number[kernel] = 0
    for t in range(len(problem.relay_home)):
        alive.size_bytes[problem.relay_home[t]] += problem.relay_bytes[t]
        alive.number[problem.relay_home[t]] += 1
    alive.total[0] = 0
    alive.total[1] = 0


@uncounted_inner
def end_moves_on(problem: SliceProblem, alive: Alive, end: int) -> None:
    """Moves the end from ``end - 1`` to ``end``, after kernel ``end - 1`` has read and produced."""
    for t in range(problem.relay_ptr[end - 1], problem.relay_ptr[end]):
        alive.size_bytes[problem.relay_home[t]] -= problem.relay_bytes[t]
        alive.number[problem.relay_home[t]] -= 1
        alive.total[0] -= problem.relay_bytes[t]
        alive.total[1] -= 1
    alive.total[0] += alive.size_bytes[end - 1]
    alive.total[1] += alive.number[end - 1]


@uncounted_inner
def relay_s(problem: SliceProblem, kind: int, size_bytes: int, count: int) -> float:
    """Returns the seconds of ``count`` relays of ``size_bytes`` in total on a chip of ``kind``."""
    return size_bytes * problem.copy_s_per_byte[kind] + count * problem.copy_s[kind]


@compiled
def relays_of_segments(problem: SliceProblem, cuts: LongArray) -> LongArray:
    """Returns the bytes and number [S, 2] of the tensors that pass each segment between two cuts."""
    num_segments = len(cuts) - 1
    passes = np.zeros((num_segments + 1, 2), np.int64)
    segment_of = np.empty(cuts[num_segments], np.int64)
    for d in range(num_segments):
        for kernel in range(cuts[d], cuts[d + 1]):
            segment_of[kernel] = d
    for last in range(cuts[num_segments]):
        for t in range(problem.relay_ptr[last], problem.relay_ptr[last + 1]):
            first, end = segment_of[problem.relay_home[t]] + 1, segment_of[last]
            if first < end:
                passes[first, 0] += problem.relay_bytes[t]
                passes[end, 0] -= problem.relay_bytes[t]
                passes[first, 1] += 1
                passes[end, 1] -= 1
    for d in range(1, num_segments):
        passes[d, 0] += passes[d - 1, 0]
        passes[d, 1] += passes[d - 1, 1]
    return passes[:num_segments]
