"""Which orders of the same kernels can be sliced within an interval: a quick check of whole batches.

List scheduling by keys, then one candidate interval of the slicer: no plan is made, nothing
is costed twice; of memory what crosses a cut counts, and the weights that must stream at least
(:mod:`go_opt.solver.slicing.streamed.floor`). A search for better orders needs
little else: most of the orders that it tries are no better than those it has.
Axes: ``B`` orders, ``M`` kernels, ``C`` tensors between kernels, ``I`` inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner
from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.kernels.schedule import schedule_kernels
from go_opt.model.csr import row_pointers
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT
from go_opt.solver.problem.passing import ADJACENT, PASSING_CODE, RELAYED, Passing
from go_opt.solver.problem.sequence import KernelSequence, kernel_sequence, unique_pairs
from go_opt.solver.slicing.cuts import NO_SLICING, fewest_chips
from go_opt.solver.slicing.fewest_fitting import fewest_fitting_chips
from go_opt.solver.slicing.segments.memory import least_needed_bytes, segment_memory
from go_opt.solver.slicing.segments.problem import SliceProblem, most_crossing_bytes, slice_problem
from go_opt.solver.slicing.segments.relay_terms import Alive, RelayTerms
from go_opt.solver.slicing.segments.starts import FittingStarts, all_starts
from go_opt.solver.slicing.streamed.cells import cell_streams, make_cells
from go_opt.solver.slicing.streamed.floor import CELLS, FINE_CELLS, least_before
from go_opt.solver.slicing.streamed.weight_streams import (
    HeldWeights,
    WeightReads,
    no_weights_held,
    weight_reads,
)


class KernelGraph(NamedTuple):
    """Kernels by their numbers in a fusion, and what passes between them."""

    successor_ptr: LongArray  # [M + 1]
    successor: IntArray  # [...] kernels that read from each, each once
    num_read: LongArray  # [M] kernels that each reads from
    work_s: FloatArray  # [M] seconds of each (summed: and its host traffic)
    home: IntArray  # [C] kernel that produces the tensor
    size_bytes: LongArray  # [C]
    reader_ptr: LongArray  # [C + 1]
    reader: IntArray  # [...] other kernels that read it
    input_ptr: LongArray  # [M + 1]
    input: IntArray  # [...] inputs that each reads, numbered 0 … I - 1
    input_s: FloatArray  # [I] seconds that reading it again on the same chip saves
    most_crossing_bytes: int  # that memory may hold at a cut


class Streaming(NamedTuple):
    """Weights, and what the host's link carries of them."""

    reads: WeightReads  # by kernel of the fusion
    needed_bytes: LongArray  # [M] beside weights, of any segment that holds the kernel
    room_bytes: int  # of the largest memory
    input_s: float  # of the host's link, for inputs
    s_per_byte: float  # of the same for weights; 0: what streams is left out


class OrderScreen:
    """The check for one fusion; ``order`` is any order along which its kernels are contiguous."""

    def __init__(
        self,
        tables: CostTables,
        order: IntArray,
        fusion_group: IntArray,
        passing: Passing,
    ) -> None:
        sequence = kernel_sequence(tables, order, fusion_group, adjacent=False)
        self._problem = slice_problem(tables, sequence)
        place = number_kernels(order, fusion_group)
        kernel_at = np.empty(sequence.num_kernels, np.int64)
        kernel_at[place] = fusion_group
        kernels = _kernel_graph(tables, self._problem, fusion_group, kernel_at)
        if passing != "free":
            kernels = kernels._replace(most_crossing_bytes=most_crossing_bytes(tables))
        self._kernels = kernels
        self._streaming = _streaming(tables, sequence._replace(kernel_of=fusion_group))
        self._passing = PASSING_CODE[passing]
        self._max_chips = min(tables.num_chips, sequence.num_kernels)
        self._starts = all_starts(sequence.num_kernels)

    @property
    def streams(self) -> bool:
        """Whether the host's link has to carry weights, which slicing then charges for."""
        return self._streaming.s_per_byte > 0.0

    def within(self, priority: FloatArray, interval_s: float) -> BoolArray:
        """[B] whether the list schedule by ``priority`` [B, M] can be sliced within ``interval_s``.

        True wherever chips differ: they are not looked at.
        """
        if not self._problem.chips_are_alike or interval_s == np.inf:
            return np.ones(len(priority), dtype=np.bool_)
        return _within(
            self._problem, self._kernels, self._starts, self._streaming,
            no_weights_held(self._streaming.reads), self._passing, self._max_chips,
            priority, float(interval_s),
        )  # fmt: skip


def _streaming(tables: CostTables, sequence: KernelSequence) -> Streaming:
    reads, room_bytes = weight_reads(tables, sequence), int(tables.sram_bytes.max())
    is_weight = tables.tensor_kind == WEIGHT
    # Where transfers do not overlap, what streams is part of what segments cost.
    may_stream = tables.overlap and int(tables.tensor_bytes[is_weight].sum()) > room_bytes
    s_per_byte = tables.host_in_s_per_byte
    needed_bytes = least_needed_bytes(
        segment_memory(tables, sequence, weights_may_stream=True, with_stream_buffer=False)
    )
    return Streaming(
        reads, needed_bytes, room_bytes, sequence.input_bytes * s_per_byte, s_per_byte * may_stream
    )


def _kernel_graph(
    tables: CostTables,
    problem: SliceProblem,
    group: IntArray,
    kernel_at: LongArray,
) -> KernelGraph:
    num_kernels = len(kernel_at)
    work_s = np.empty(num_kernels)
    work_s[kernel_at] = np.diff(problem.prefix_s[problem.chip_kind[0]])
    tensor, reader = tables.reader_tensor, group[tables.reader_op]
    is_input = tables.tensor_kind[tensor] == INPUT
    inputs = unique_pairs(reader[is_input], tensor[is_input])
    number, input_of = np.unique(inputs[:, 1], return_inverse=True)
    producer = tables.tensor_producer[tensor]
    is_between = (producer != NO_PRODUCER) & (tables.tensor_kind[tensor] != WEIGHT)
    is_between &= group[producer] != reader
    between = unique_pairs(tensor[is_between], reader[is_between])
    tensors, tensor_of = np.unique(between[:, 0], return_inverse=True)
    home = group[tables.tensor_producer[tensors]]
    edges = unique_pairs(home[tensor_of], between[:, 1])
    saves = not problem.overlap and bool(tables.pays_transfers.any())
    return KernelGraph(
        row_pointers(edges[:, 0], num_kernels),
        edges[:, 1].astype(np.int32),
        np.bincount(edges[:, 1], minlength=num_kernels).astype(np.int64),
        work_s,
        home.astype(np.int32),
        tables.tensor_bytes[tensors],
        row_pointers(tensor_of, len(tensors)),
        between[:, 1].astype(np.int32),
        row_pointers(inputs[:, 0], num_kernels),
        input_of.astype(np.int32),
        (tables.tensor_bytes[number] * tables.host_in_s_per_byte * saves).astype(np.float64),
        np.iinfo(np.int64).max,
    )


@compiled
def _within(
    problem: SliceProblem,
    kernels: KernelGraph,
    starts: FittingStarts,
    streaming: Streaming,
    held: HeldWeights,
    passing: int,
    max_chips: int,
    priority: FloatArray,
    interval_s: float,
) -> BoolArray:
    num_orders, num_kernels = priority.shape
    within = np.empty(num_orders, np.bool_)
    place = np.empty(num_kernels, np.int64)
    previous = np.zeros(num_kernels + 1, np.int64)
    counts = np.zeros((2, num_kernels), np.int64)
    alive = Alive(counts[0], counts[1], np.zeros(2, np.int64))
    one_size = np.zeros(max_chips, np.int64)
    by_chips = np.empty((max_chips + 1, num_kernels + 1), np.int32)
    for b in range(num_orders):
        schedule_kernels(kernels.successor_ptr, kernels.successor, kernels.num_read, priority[b], place)
        along = _problem_along(problem, kernels, passing, place)
        chips, _ = fewest_chips(along, max_chips, interval_s, previous)
        if passing == RELAYED and chips != NO_SLICING:
            chips, _ = fewest_fitting_chips(along, starts, one_size, 1, True, interval_s, alive, by_chips)
        within[b] = chips != NO_SLICING
        if within[b] and streaming.s_per_byte > 0.0:
            within[b] = _may_stream_within(along, streaming, held, place, max_chips, interval_s)
    return within


@compiled_inner
def _may_stream_within(
    problem: SliceProblem,
    streaming: Streaming,
    held: HeldWeights,
    place: LongArray,
    max_chips: int,
    interval_s: float,
) -> bool:
    """Whether the host's link may carry inputs and streamed weights within the interval."""
    most_bytes = (interval_s - streaming.input_s) / streaming.s_per_byte * (1.0 + 1e-9)
    kernel_at = np.empty(len(place), np.int64)
    kernel_at[place] = np.arange(len(place))
    reads, needed_bytes, room_bytes = streaming.reads, streaming.needed_bytes, streaming.room_bytes
    for num_cells in (CELLS, FINE_CELLS):
        cells = make_cells(problem, reads, needed_bytes, kernel_at, room_bytes, num_cells)
        streamed = cell_streams(cells, room_bytes, most_bytes, held)
        before = least_before(cells, streamed, max_chips, 1, interval_s, most_bytes)
        if before[-1, max_chips] > most_bytes:
            return False
    return True


@compiled_inner
def _problem_along(
    problem: SliceProblem, kernels: KernelGraph, passing: int, place: LongArray
) -> SliceProblem:
    """The slicing problem of the kernels in the order of their places."""
    num_kernels, num_tensors = len(place), len(kernels.home)
    prefix_s = np.zeros((1, num_kernels + 1))
    kernel_at = np.empty(num_kernels, np.int64)
    for kernel in range(num_kernels):
        kernel_at[place[kernel]] = kernel
    for m in range(num_kernels):
        prefix_s[0, m + 1] = prefix_s[0, m] + kernels.work_s[kernel_at[m]]
    crossing_bytes = np.zeros(num_kernels + 1, np.int64)
    reach = np.arange(1, num_kernels + 2)
    last = np.empty(num_tensors, np.int64)
    last_ptr = np.zeros(num_kernels + 1, np.int64)
    for t in range(num_tensors):
        last[t] = 0
        for r in range(kernels.reader_ptr[t], kernels.reader_ptr[t + 1]):
            last[t] = max(last[t], place[kernels.reader[r]])
        home = place[kernels.home[t]]
        crossing_bytes[home + 1] += kernels.size_bytes[t]
        crossing_bytes[last[t] + 1] -= kernels.size_bytes[t]
        last_ptr[last[t] + 1] += 1
        if passing == ADJACENT:
            reach[home + 1] = max(reach[home + 1], last[t] + 1)
    may_cut = np.ones(num_kernels + 1, np.bool_)
    for m in range(num_kernels):
        crossing_bytes[m + 1] += crossing_bytes[m]
        may_cut[m + 1] = crossing_bytes[m + 1] <= kernels.most_crossing_bytes
        reach[m + 1] = max(reach[m + 1], reach[m])
        last_ptr[m + 1] += last_ptr[m]
    again_kernel, again_before, again_s = _inputs_again(kernels, kernel_at)
    return SliceProblem(
        prefix_s, crossing_bytes, problem.blocked, reach, problem.latest, may_cut,
        problem.hop_s_per_byte, problem.chip_kind, problem.pays_transfers,
        again_kernel, again_before, again_s,
        _relay_terms(problem.relays, kernels, place, last, last_ptr),
        problem.floor_s, problem.overlap,
    )  # fmt: skip


@compiled_inner
def _inputs_again(kernels: KernelGraph, kernel_at: LongArray) -> tuple[LongArray, LongArray, FloatArray]:
    """Kernels that read an input another one read before, who, and what one segment with both saves."""
    most = len(kernels.input)
    again_kernel = np.empty(most, np.int64)
    again_before = np.empty(most, np.int64)
    again_s = np.empty(most, np.float64)
    reader = np.full(len(kernels.input_s), -1, np.int64)
    number = 0
    for m in range(len(kernel_at)):
        kernel = kernel_at[m]
        for i in range(kernels.input_ptr[kernel], kernels.input_ptr[kernel + 1]):
            tensor = kernels.input[i]
            if reader[tensor] >= 0:
                again_kernel[number] = m
                again_before[number] = reader[tensor]
                again_s[number] = kernels.input_s[tensor]
                number += 1
            reader[tensor] = m
    return again_kernel[:number], again_before[:number], again_s[:number]


@compiled_inner
def _relay_terms(
    relays: RelayTerms, kernels: KernelGraph, place: LongArray, last: LongArray, last_ptr: LongArray
) -> RelayTerms:
    """The tensors by their last reader, whether anything is relayed or not."""
    home = np.empty(len(last), np.int64)
    size_bytes = np.empty(len(last), np.int64)
    filled = last_ptr.copy()
    for t in range(len(last)):
        home[filled[last[t]]] = place[kernels.home[t]]
        size_bytes[filled[last[t]]] = kernels.size_bytes[t]
        filled[last[t]] += 1
    return RelayTerms(last_ptr, home, size_bytes, relays.copy_s_per_byte, relays.copy_s)
