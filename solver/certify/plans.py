"""Exact intervals of the refinement's placements; with replication open, the stage sizes are chosen."""

from __future__ import annotations

import math

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.solver.certify.fits import fit_scratch, least_streamed_on_chip
from go_opt.solver.certify.problem import NEVER_FITS, ChipMemory, RefinementProblem, UnitGraph


def unit_plan(
    problem: RefinementProblem, units: UnitGraph, placement: IntArray
) -> tuple[float, IntArray, IntArray]:
    """Returns the exact interval of ``placement`` [U], first chips [U] and chips of each unit's stage [U].

    With replication open, chips become stages. Streamed weights count only if the units count memory.

    Args:
      units: the units of ``problem``, with or without memory.
    """
    used = np.unique(placement) if units.replicates else np.arange(units.num_chips)
    never = math.inf, placement.astype(np.int32), np.ones(units.num_units, np.int32)
    if len(used) > units.num_chips:
        return never
    stage = np.searchsorted(used, placement).astype(np.int32)
    streams = _streamed_bytes(units, stage, len(used))
    if (streams == NEVER_FITS).any():
        return never
    stage_s, link_s = _loads(problem, stage, len(used))
    stage_s += streams * units.chip.stream_ticks_per_byte * problem.tick_s
    enters_s = np.concatenate([[0.0], link_s[:-1]])
    least_s = max(problem.floor_s, float(link_s.max()) if units.overlap else 0.0)
    forwards = units.replicates and units.overlap
    if units.counts_memory and units.overlap and not forwards:
        least_s = max(least_s, _host_s(problem, units.chip, int(streams.sum())))
    size = np.ones(len(used), np.int32)

    def chips_s() -> FloatArray:
        work_s = _chip_s(units, stage_s, enters_s, link_s, size)
        return np.maximum(work_s, _forwarding_s(problem, units.chip, streams * forwards, size))

    chip_s = chips_s()
    while units.replicates and size.sum() < units.num_chips and chip_s.max() > least_s:
        size[np.argmax(chip_s)] += 1
        chip_s = chips_s()
    first = (np.cumsum(size) - size).astype(np.int32)
    return max(least_s, float(chip_s.max())), first[stage], size[stage]


def _loads(problem: RefinementProblem, stage: IntArray, num_stages: int) -> tuple[FloatArray, FloatArray]:
    """Returns the seconds [S] of all work on each stage, and of the tensors that leave it."""
    units = problem.units
    work_s = problem.unit_s + problem.own_s
    stage_s = np.bincount(stage, weights=work_s, minlength=num_stages).astype(np.float64)
    home = stage[units.tensor_producer]
    farthest = home.copy()
    tensor = np.repeat(np.arange(len(home)), np.diff(units.reader_ptr))
    np.maximum.at(farthest, tensor, stage[units.reader])
    tensor_s = (units.tensor_bytes * problem.link_s_per_byte).astype(np.float64)
    link_s = _along(home, farthest, tensor_s, num_stages)
    relayed = farthest > home + 1
    stage_s += _along(home[relayed] + 1, farthest[relayed], problem.relay_s[relayed], num_stages)
    for i, seconds in enumerate(problem.input_s):
        readers = units.input_reader[units.input_reader_ptr[i] : units.input_reader_ptr[i + 1]]
        stage_s[np.unique(stage[readers])] += seconds
    return stage_s, link_s


def _chip_s(
    units: UnitGraph,
    stage_s: FloatArray,
    enters_s: FloatArray,
    leaves_s: FloatArray,
    size: IntArray,
) -> FloatArray:
    """Returns the seconds [S] of a chip per stage; without overlap, of the chip at the busier border."""
    if units.overlap:
        return stage_s / size
    return (stage_s + leaves_s + enters_s + (2 * size - 2) * np.maximum(enters_s, leaves_s)) / size


def _streamed_bytes(units: UnitGraph, placement: IntArray, num_stages: int) -> LongArray:
    """Returns the bytes [S] that the chip of each stage streams, or NEVER_FITS."""
    streams = np.zeros(num_stages, np.int64)
    if units.counts_memory:
        words = (units.num_units + 63) // 64
        # Units done before each chip, and after the last.
        is_done = placement[None] < np.arange(num_stages + 1)[:, None]
        done = np.zeros((num_stages + 1, 64 * words), np.bool_)
        to_do = done.copy()
        done[:, : units.num_units], to_do[:, : units.num_units] = is_done, ~is_done
        inside, outside = (
            np.packbits(rows, axis=1, bitorder="little").view(np.int64) for rows in (done, to_do)
        )
        scratch = fit_scratch(units)
        for chip in np.unique(placement).tolist():
            streams[chip], _, _ = least_streamed_on_chip(
                units, inside, outside, scratch, chip, chip + 1, 0, words - 1
            )
    return streams


def _host_s(problem: RefinementProblem, chip: ChipMemory, streamed_bytes: int) -> float:
    """Returns the seconds of the host's link for ``streamed_bytes`` and the reserved bytes."""
    return (chip.reserved_bytes + streamed_bytes) / chip.stream_bytes_per_tick * problem.tick_s


def _forwarding_s(
    problem: RefinementProblem, chip: ChipMemory, streams: LongArray, size: IntArray
) -> FloatArray:
    """Returns the seconds [S] to send each stage of ``size`` chips its streamed bytes, if it were alone."""
    if not streams.any():
        return np.zeros(len(streams))
    per_tick = chip.stream_bytes_per_tick + (size - 1) * chip.forward_bytes_per_tick
    return np.where(streams > 0, chip.reserved_bytes + streams, 0) / per_tick * problem.tick_s


def _along(first: IntArray, end: IntArray, seconds: FloatArray, num_chips: int) -> FloatArray:
    """Returns [D], for each d the sum of ``seconds`` of all ranges [first, end) that contain d."""
    change = np.bincount(first, weights=seconds, minlength=num_chips + 1)
    change -= np.bincount(end, weights=seconds, minlength=num_chips + 1)
    return np.maximum(np.cumsum(change)[:num_chips], 0.0)
