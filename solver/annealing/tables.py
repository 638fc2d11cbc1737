"""The state of annealing before units are placed, from cost tables and the placement problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import hop_seconds_per_byte
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.csr import row_pointers
from go_opt.model.graph import NO_PRODUCER
from go_opt.model.graph import WEIGHT as WEIGHT_KIND
from go_opt.solver.annealing.columns import (
    ALL_TICKS,
    BEFORE_START,
    BEST,
    CHIP_COLUMNS,
    COMPUTE,
    FIRST,
    FOLLOWING,
    FROM_HOST,
    HELD,
    HOME,
    HOST_IN,
    HOST_OUT,
    INNER,
    INPUT_BYTES,
    INSIDE,
    IS_OUTPUT,
    IS_WEIGHT,
    KIND,
    LAST,
    LASTS,
    MOVES,
    MOVING,
    NO_SKIP,
    NONE,
    NUM_FIGURES,
    NUM_LISTS,
    OVERLAP,
    PASSING,
    PLACE,
    POWER,
    PRECEDING,
    PREDECESSORS,
    RANK,
    READERS,
    READS,
    ROW,
    SCALE,
    SECONDS,
    SIZE,
    SIZES,
    SRAM,
    STORED,
    STREAM_BUFFER,
    SUCCESSORS,
    TENSOR_COLUMNS,
    TICK_S,
    TICKS,
    TOUCHES,
    UNITS,
    USED,
    WEIGHT,
    WEIGHT_TOUCHED,
    WEIGHTS,
    WRITES,
    AnnealingState,
)
from go_opt.solver.problem.passing import PASSING_CODE, Passing
from go_opt.solver.problem.problem import PlacementProblem


def annealing_tables(
    tables: CostTables,
    problem: PlacementProblem,
    order: NDArray[np.int32],
    fusion_group: NDArray[np.int32],
    placement: NDArray[np.int32],
    passing: Passing,
    allowed: NDArray[np.bool_] | None,
) -> AnnealingState:
    """The state with all units, each a kernel of ``fusion_group`` or several, on chip 0."""
    unit_of_op, num_units, num_chips = problem.unit_of_op, problem.num_units, problem.num_chips
    kernel_of = number_kernels(order, fusion_group)
    ticks, tick_s, place = _kernel_ticks(tables, kernel_of, unit_of_op, num_units)
    tensors = _tensors(tables, unit_of_op, num_chips)
    units, entries = _units(tables, problem, tensors, place, ticks)
    units[unit_of_op, BEST] = placement
    units[:num_units, INNER] = _inner_bytes(tables, unit_of_op, kernel_of, num_units)
    chips = np.zeros((num_chips, CHIP_COLUMNS), dtype=np.int64)
    chips[:, [FIRST, LAST]] = NONE
    chips[:, KIND] = tables.chip_kind
    chips[:, SRAM] = tables.sram_bytes
    chips[:, STREAM_BUFFER] = tables.stream_buffer_bytes
    num_rows = int((tensors[:, ROW] != NONE).sum())
    readers_on = np.zeros(num_rows * num_chips, dtype=np.int32)
    along = np.argsort(place)
    _put_on_chip_0(units, tensors, chips, readers_on, along)
    numbers = np.zeros(SIZES + NUM_LISTS, dtype=np.int64)
    numbers[USED] = 1
    numbers[INPUT_BYTES] = tensors[tensors[:, HOME] == FROM_HOST, SIZE].sum()
    numbers[OVERLAP] = tables.overlap
    numbers[PASSING] = PASSING_CODE[passing]
    numbers[NO_SKIP] = problem.no_skip
    numbers[MOVES] = BEFORE_START
    figures = np.zeros(NUM_FIGURES)
    figures[[SCALE, POWER, TICK_S]] = 1.0, 1.0, tick_s
    terms = np.zeros((4, 2 * num_chips + 2))
    if tables.overlap:
        is_output = tensors[:, IS_OUTPUT] > 0
        terms[SECONDS, -1] = tensors[is_output, SIZE].sum() * tables.host_out_s_per_byte
    num_weights = len(tables.weight_by_size)
    lists = np.zeros((NUM_LISTS, max(2 * num_units, num_weights)), dtype=np.int64)
    lists[MOVING, :num_units] = along
    lists[WEIGHT, :num_weights] = tables.weight_by_size
    lists[WEIGHT_TOUCHED] = NONE
    if allowed is None:
        allowed = problem.can_run[problem.chip_kind].T
    return AnnealingState(
        units=units,
        entries=entries,
        tensors=tensors,
        readers_on=readers_on,
        chips=chips,
        rates=_rates(tables),
        lists=lists,
        numbers=numbers,
        terms=terms,
        figures=figures,
        priority=np.zeros(num_weights),
        allowed=np.zeros((0, 0), dtype=np.bool_) if allowed.all() else np.ascontiguousarray(allowed),
    )


def _put_on_chip_0(
    units: NDArray[np.int64],
    tensors: NDArray[np.int64],
    chips: NDArray[np.int64],
    readers_on: NDArray[np.int32],
    along: NDArray[np.int64],
) -> None:
    """Fill in what depends on the placement."""
    units[along[:-1], FOLLOWING] = along[1:]
    units[along[1:], PRECEDING] = along[:-1]
    units[along[-1], FOLLOWING] = units[along[0], PRECEDING] = NONE
    is_shared = tensors[:, ROW] != NONE
    readers_on[tensors[is_shared, ROW]] = tensors[is_shared, READERS]
    home, size, is_read = tensors[:, HOME], tensors[:, SIZE], tensors[:, READERS] > 0
    is_output = tensors[:, IS_OUTPUT] > 0
    loads = chips[0]
    loads[UNITS] = len(along)
    loads[COMPUTE] = units[along, TICKS + loads[KIND]].sum()
    stored = tensors[:, STORED]
    loads[WEIGHTS] = stored[(home == IS_WEIGHT) & is_read].sum()
    loads[HOST_IN] = size[(home == FROM_HOST) & is_read].sum()
    loads[HOST_OUT] = size[is_output].sum()
    loads[HELD] = 2 * stored[((home == FROM_HOST) & is_read) | is_output].sum()
    loads[INSIDE] = stored[(home >= 0) & is_read & ~is_output].sum()
    loads[[FIRST, LAST]] = along[[0, -1]]


def _kernel_ticks(
    tables: CostTables, kernel_of: NDArray[np.int32], unit_of_op: NDArray[np.int32], num_units: int
) -> tuple[NDArray[np.int64], float, NDArray[np.int64]]:
    """[Q, U] ticks, seconds of a tick, and [U] place of each unit's first kernel."""
    kernel_s = kernel_seconds(tables, kernel_of)
    unit_of_kernel = np.empty(kernel_s.shape[1], dtype=np.int32)
    unit_of_kernel[kernel_of] = unit_of_op
    total_s = float(kernel_s.max(axis=0).sum())
    tick_s = total_s / ALL_TICKS if total_s > 0.0 else 1.0
    ticks = np.zeros((len(kernel_s), num_units), dtype=np.int64)
    for kind, seconds in enumerate(kernel_s):
        np.add.at(ticks[kind], unit_of_kernel, np.rint(seconds / tick_s).astype(np.int64))
    place = np.full(num_units, len(unit_of_kernel), dtype=np.int64)
    np.minimum.at(place, unit_of_kernel, np.arange(len(unit_of_kernel)))
    return ticks, tick_s, place


def _tensors(tables: CostTables, unit_of_op: NDArray[np.int32], num_chips: int) -> NDArray[np.int64]:
    tensors = np.zeros((len(tables.tensor_kind), TENSOR_COLUMNS), dtype=np.int64)
    produced = np.flatnonzero(tables.tensor_producer != NO_PRODUCER)
    tensors[:, HOME] = np.where(tables.tensor_kind == WEIGHT_KIND, IS_WEIGHT, FROM_HOST)
    tensors[produced, HOME] = unit_of_op[tables.tensor_producer[produced]]
    tensors[:, SIZE] = tables.tensor_bytes
    tensors[:, STORED] = tables.stored_bytes
    tensors[produced, IS_OUTPUT] = tables.tensor_is_output[produced]
    tensors[tables.weight_by_size, RANK] = np.arange(len(tables.weight_by_size))
    return tensors


def _units(
    tables: CostTables,
    problem: PlacementProblem,
    tensors: NDArray[np.int64],
    place: NDArray[np.int64],
    ticks: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of units with their ragged columns; counts readers and gives shared tensors their rows."""
    num_units = problem.num_units
    tensor, reader, touched = _reads(tables, problem.unit_of_op, tensors[:, HOME], num_units)
    tensors[:, READERS] = np.bincount(tensor, minlength=len(tensors))
    is_shared = tensors[:, READERS] > 1
    tensors[:, ROW] = np.where(is_shared, (np.cumsum(is_shared) - 1) * problem.num_chips, NONE)
    by_reader = np.argsort(reader, kind="stable")
    is_written = (tensors[:, HOME] >= 0) & ((tensors[:, READERS] > 0) | (tensors[:, IS_OUTPUT] > 0))
    written = np.flatnonzero(is_written)
    written = written[np.argsort(tensors[written, HOME], kind="stable")]
    by_place = np.lexsort((place[reader], tensor))
    is_last = np.append(np.diff(tensor[by_place]) != 0, np.ones(min(1, len(tensor)), dtype=np.bool_))
    last = by_place[is_last & (tensors[tensor[by_place], HOME] >= 0)]
    last = last[np.argsort(reader[last], kind="stable")]
    read_ptr = row_pointers(reader[by_reader], num_units)
    rows = {
        SUCCESSORS: (problem.successor_ptr, problem.successor),
        PREDECESSORS: (problem.predecessor_ptr, problem.predecessor),
        READS: (read_ptr, tensor[by_reader]),
        TOUCHES: (read_ptr, touched[by_reader]),
        WRITES: (row_pointers(tensors[written, HOME], num_units), written),
        LASTS: (row_pointers(reader[last], num_units), tensor[last]),
    }
    units = np.zeros((num_units + 1, TICKS + len(ticks)), dtype=np.int64)
    units[:num_units, PLACE] = place
    units[:num_units, TICKS:] = ticks.T
    begin = 0
    for column, (ptr, values) in rows.items():
        units[:, column] = ptr + begin
        begin += len(values)
    return units, np.concatenate([values for _, values in rows.values()]).astype(np.int64)


def _reads(
    tables: CostTables, unit_of_op: NDArray[np.int32], home: NDArray[np.int64], num_units: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of a tensor and a unit beside its home that reads it, with the bytes it touches."""
    reader = unit_of_op[tables.reader_op]
    is_read = reader != home[tables.reader_tensor]
    keys = tables.reader_tensor[is_read].astype(np.int64) * num_units + reader[is_read]
    keys, inverse = np.unique(keys, return_inverse=True)
    touched = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(touched, inverse, tables.read_bytes[is_read])
    return keys // num_units, keys % num_units, touched


def _inner_bytes(
    tables: CostTables, unit_of_op: NDArray[np.int32], kernel_of: NDArray[np.int32], num_units: int
) -> NDArray[np.int64]:
    producer, reader = tables.tensor_producer[tables.reader_tensor], tables.reader_op
    is_inner = (producer != NO_PRODUCER) & (unit_of_op[producer] == unit_of_op[reader])
    is_inner &= kernel_of[producer] != kernel_of[reader]
    tensors = np.unique(tables.reader_tensor[is_inner])
    units = unit_of_op[tables.tensor_producer[tensors]]
    return np.bincount(units, weights=tables.stored_bytes[tensors], minlength=num_units).astype(np.int64)


def _rates(tables: CostTables) -> NDArray[np.float64]:
    kind = tables.chip_kind
    pays = tables.pays_transfers[kind] | tables.overlap
    return np.stack(
        [
            2.0 * tables.sram_s_per_byte[kind],
            tables.kernel_overhead_s[kind],
            hop_seconds_per_byte(tables),
            np.where(pays, tables.host_in_s_per_byte, 0.0),
            np.where(pays, tables.host_out_s_per_byte, 0.0),
        ],
        axis=1,
    )
