"""The state of annealing before units are placed, from cost tables and the placement problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, IntArray, LongArray, RecordArray
from go_opt.env.cost import CostTables
from go_opt.env.cost.routes import hop_seconds_per_byte
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.csr import row_pointers
from go_opt.model.graph import NO_PRODUCER
from go_opt.model.graph import WEIGHT as WEIGHT_KIND
from go_opt.solver.annealing.records import (
    ALL_TICKS,
    CHIP,
    FROM_HOST,
    IS_WEIGHT,
    LISTS,
    NONE,
    RUN,
    TENSOR,
    TERM,
    UNIT,
    AnnealingState,
    Prices,
)
from go_opt.solver.problem.passing import PASSING_CODE, Passing
from go_opt.solver.problem.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class AnnealingProblem:
    """What is placed, with its kernels and their order."""

    tables: CostTables
    units: PlacementProblem
    order: IntArray  # [N] topological; the ops of a kernel stand next to each other
    fusion_group: IntArray  # [N] kernels, one or several a unit
    passing: Passing
    allowed: BoolArray | None = None  # [U, D] chips; by default those whose kind can run the unit


def annealing_state(problem: AnnealingProblem, placement: IntArray) -> tuple[AnnealingState, Prices]:
    """The state with all units on chip 0, and ``placement`` [N] as the best one."""
    tables = problem.tables
    unit_of_op, num_units = problem.units.unit_of_op, problem.units.num_units
    kernel_of = number_kernels(problem.order, problem.fusion_group)
    ticks, tick_s, place = _kernel_ticks(tables, kernel_of, unit_of_op, num_units)
    tensors = _tensors(tables, unit_of_op)
    units, entries = _units(problem, tensors, place, ticks)
    units["best"][unit_of_op] = placement
    units["inner_bytes"][:num_units] = _inner_bytes(tables, unit_of_op, kernel_of, num_units)
    along = np.argsort(place)
    chips, readers_on = _chips(tables), np.zeros((tensors["row"] != NONE).sum() * tables.num_chips, np.int32)
    _put_on_chip_0(units, tensors, chips, readers_on, along)
    chips[0].compute_ticks = ticks[chips[0].kind].sum()
    num_weights = len(tables.weight_by_size)
    state = AnnealingState(
        units=units,
        entries=entries,
        tensors=tensors,
        readers_on=readers_on,
        chips=chips,
        run=_fresh_run(problem, tensors, tick_s),
        lists=np.zeros(2 * num_units, LISTS),
    )
    prices = Prices(
        terms=_terms(tables, tensors),
        weight=tables.weight_by_size.astype(np.int64),
        heap=np.zeros(num_weights, np.int64),
        touched_bytes=np.full(num_weights, NONE, np.int64),
        priority=np.zeros(num_weights),
    )
    return state, prices


def _put_on_chip_0(
    units: RecordArray,
    tensors: RecordArray,
    chips: RecordArray,
    readers_on: IntArray,
    along: LongArray,
) -> None:
    """Fill in what depends on the placement, compute apart."""
    units["following"][along[:-1]] = along[1:]
    units["preceding"][along[1:]] = along[:-1]
    units["following"][along[-1]] = units["preceding"][along[0]] = NONE
    shared = tensors[tensors["row"] != NONE]
    readers_on[shared["row"]] = shared["readers"]
    home, size, is_read = tensors["home"], tensors["size_bytes"], tensors["readers"] > 0
    stored, is_output = tensors["stored_bytes"], tensors["is_output"] > 0
    chip = chips[0]
    chip.units = len(along)
    chip.weight_bytes = stored[(home == IS_WEIGHT) & is_read].sum()
    chip.host_in_bytes = size[(home == FROM_HOST) & is_read].sum()
    chip.host_out_bytes = size[is_output].sum()
    chip.held_bytes = 2 * stored[((home == FROM_HOST) & is_read) | is_output].sum()
    chip.inside_bytes = stored[(home >= 0) & is_read & ~is_output].sum()
    chip.first, chip.last = along[0], along[-1]


def _chips(tables: CostTables) -> RecordArray:
    """[D] of CHIP, without units."""
    kind = tables.chip_kind
    pays = tables.pays_transfers[kind] | tables.overlap
    chips = np.zeros(tables.num_chips, CHIP)
    chips["first"] = chips["last"] = NONE
    chips["kind"] = kind
    chips["sram_bytes"] = tables.sram_bytes
    chips["stream_buffer_bytes"] = tables.stream_buffer_bytes
    chips["stream_sharers"] = tables.stream_sharers
    chips["copy_s_per_byte"] = 2.0 * tables.sram_s_per_byte[kind]
    chips["copy_s"] = tables.kernel_overhead_s[kind]
    chips["link_s_per_byte"] = hop_seconds_per_byte(tables)
    chips["host_in_s_per_byte"] = np.where(pays, tables.host_in_s_per_byte, 0.0)
    chips["host_out_s_per_byte"] = np.where(pays, tables.host_out_s_per_byte, 0.0)
    return chips


def _terms(tables: CostTables, tensors: RecordArray) -> RecordArray:
    """[2 D + 2] of TERM; what leaves over the host's link is there to stay."""
    terms = np.zeros(2 * tables.num_chips + 2, TERM)
    if tables.overlap:
        outputs = tensors[tensors["is_output"] > 0]
        terms[-1].seconds = outputs["size_bytes"].sum() * tables.host_out_s_per_byte
    return terms


def _fresh_run(problem: AnnealingProblem, tensors: RecordArray, tick_s: float) -> RecordArray:
    """[1] of RUN, before the first move."""
    runs = np.zeros(1, RUN)
    run = runs[0]
    run.used = 1
    run.input_bytes = tensors["size_bytes"][tensors["home"] == FROM_HOST].sum()
    run.overlap = problem.tables.overlap
    run.passing = PASSING_CODE[problem.passing]
    run.no_skip = problem.units.no_skip
    run.per_scale, run.power, run.tick_s = 1.0, 1.0, tick_s
    return runs


def _kernel_ticks(
    tables: CostTables, kernel_of: IntArray, unit_of_op: IntArray, num_units: int
) -> tuple[LongArray, float, LongArray]:
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


def _tensors(tables: CostTables, unit_of_op: IntArray) -> RecordArray:
    """[K] of TENSOR, without their readers."""
    tensors = np.zeros(len(tables.tensor_kind), TENSOR)
    produced = np.flatnonzero(tables.tensor_producer != NO_PRODUCER)
    tensors["home"] = np.where(tables.tensor_kind == WEIGHT_KIND, IS_WEIGHT, FROM_HOST)
    tensors["home"][produced] = unit_of_op[tables.tensor_producer[produced]]
    tensors["size_bytes"] = tables.tensor_bytes
    tensors["stored_bytes"] = tables.stored_bytes
    tensors["is_output"][produced] = tables.tensor_is_output[produced]
    tensors["rank"][tables.weight_by_size] = np.arange(len(tables.weight_by_size))
    return tensors


def _units(
    problem: AnnealingProblem, tensors: RecordArray, place: LongArray, ticks: LongArray
) -> tuple[RecordArray, LongArray]:
    """Units with their lists and rows of entries; counts readers and gives shared tensors their rows."""
    placed, num_units = problem.units, problem.units.num_units
    tensor, reader, touched = _reads(problem.tables, placed.unit_of_op, tensors["home"], num_units)
    tensors["readers"] = np.bincount(tensor, minlength=len(tensors))
    is_shared = tensors["readers"] > 1
    tensors["row"] = np.where(is_shared, (np.cumsum(is_shared) - 1) * placed.num_chips, NONE)
    by_reader = np.argsort(reader, kind="stable")
    home = tensors["home"]
    written = np.flatnonzero((home >= 0) & ((tensors["readers"] > 0) | (tensors["is_output"] > 0)))
    written = written[np.argsort(home[written], kind="stable")]
    by_place = np.lexsort((place[reader], tensor))
    is_last = np.append(np.diff(tensor[by_place]) != 0, np.ones(min(1, len(tensor)), dtype=np.bool_))
    last = by_place[is_last & (home[tensor[by_place]] >= 0)]
    last = last[np.argsort(reader[last], kind="stable")]
    read_ptr = row_pointers(reader[by_reader], num_units)
    allowed = placed.can_run[placed.chip_kind].T if problem.allowed is None else problem.allowed
    rows, row_of = np.unique(allowed, axis=0, return_inverse=True)
    lists: dict[str, tuple[LongArray, NDArray]] = {
        "successors": (placed.successor_ptr, placed.successor),
        "predecessors": (placed.predecessor_ptr, placed.predecessor),
        "reads": (read_ptr, tensor[by_reader]),
        "touches": (read_ptr, touched[by_reader]),
        "writes": (row_pointers(home[written], num_units), written),
        "lasts": (row_pointers(reader[last], num_units), tensor[last]),
        "ticks": (np.arange(num_units + 1) * len(ticks), ticks.T.ravel()),
        "allowed": (np.append(row_of.reshape(-1), 0) * allowed.shape[1], rows.ravel()),
    }
    units = np.zeros(num_units + 1, UNIT)
    units["place"][:num_units] = place
    begin = 0
    for field, (ptr, values) in lists.items():
        units[field] = ptr + begin
        begin += len(values)
    return units, np.concatenate([values for _, values in lists.values()]).astype(np.int64)


def _reads(
    tables: CostTables, unit_of_op: IntArray, home: LongArray, num_units: int
) -> tuple[LongArray, LongArray, LongArray]:
    """Pairs of a tensor and a unit beside its home that reads it, with the bytes it touches."""
    reader = unit_of_op[tables.reader_op]
    is_read = reader != home[tables.reader_tensor]
    keys = tables.reader_tensor[is_read].astype(np.int64) * num_units + reader[is_read]
    keys, inverse = np.unique(keys, return_inverse=True)
    touched = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(touched, inverse, tables.read_bytes[is_read])
    return keys // num_units, keys % num_units, touched


def _inner_bytes(tables: CostTables, unit_of_op: IntArray, kernel_of: IntArray, num_units: int) -> LongArray:
    producer, reader = tables.tensor_producer[tables.reader_tensor], tables.reader_op
    is_inner = (producer != NO_PRODUCER) & (unit_of_op[producer] == unit_of_op[reader])
    is_inner &= kernel_of[producer] != kernel_of[reader]
    tensors = np.unique(tables.reader_tensor[is_inner])
    units = unit_of_op[tables.tensor_producer[tensors]]
    return np.bincount(units, weights=tables.stored_bytes[tensors], minlength=num_units).astype(np.int64)
