"""Units of whole kernels as the rivals of libraries see them: their seconds, tensors and repairs.

Axes: ``S`` placements, ``U`` units, ``Q`` kinds of chips.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.bench.rivals.trial import Problem, Trial, unit_problem
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import CostTables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import NO_PRODUCER
from go_opt.solver import PlacementProblem, fix, place_adjacent


class UnitTensor(NamedTuple):
    """A tensor that is read by units other than its producer."""

    kind: int  # as in the graph
    home: int  # unit that produces it, NO_PRODUCER for inputs and weights
    readers: tuple[int, ...]  # ascending, without home
    num_bytes: int
    touched_bytes: int  # the fewest bytes that a reader reads


def unit_seconds(problem: Problem, unit_of_op: IntArray) -> FloatArray:
    """[Q, U] seconds of units of whole default kernels."""
    kernel_of = unit_problem(problem).unit_of_op
    kernel_s = kernel_seconds(problem.instance.tables, kernel_of)
    unit_of_kernel = np.empty(kernel_s.shape[1], dtype=np.int64)
    unit_of_kernel[kernel_of] = unit_of_op
    return np.stack([np.bincount(unit_of_kernel, weights=row) for row in kernel_s])


def unit_tensors(tables: CostTables, unit_of_op: IntArray) -> list[UnitTensor]:
    """Every tensor with a reader in another unit."""
    found = []
    for k, producer in enumerate(tables.tensor_producer):
        home = NO_PRODUCER if producer == NO_PRODUCER else int(unit_of_op[producer])
        reads = slice(int(tables.reader_ptr[k]), int(tables.reader_ptr[k + 1]))
        readers = tuple(sorted({int(unit_of_op[op]) for op in tables.reader_op[reads]} - {home}))
        if readers:
            touched = int(tables.read_bytes[reads].min())
            size = int(tables.tensor_bytes[k])
            found.append(UnitTensor(int(tables.tensor_kind[k]), home, readers, size, touched))
    return found


def repaired(trial: Trial, units: PlacementProblem, proposal: IntArray, seed: int) -> IntArray:
    """[S, U] valid placements near ``proposal`` [U]: one by FIX, or two where tensors may pass chips.

    In the second case acyclic dataflow is the only rule: readers move up to their producers, or
    producers down to their readers.
    """
    if trial.problem.is_adjacent:
        fixed: IntArray = place_adjacent(units, proposals=proposal[None], seed=seed).placement
        return fixed
    if not (units.acyclic and units.can_run.all()):
        return fix(units, proposal[None], seed=seed).placement
    up, down = proposal.copy(), proposal.copy()
    for unit in units.topological:
        read = units.predecessor[units.predecessor_ptr[unit] : units.predecessor_ptr[unit + 1]]
        up[unit] = max(up[unit], up[read].max(initial=0))
    for unit in units.topological[::-1]:
        readers = units.successor[units.successor_ptr[unit] : units.successor_ptr[unit + 1]]
        down[unit] = min(down[unit], down[readers].min(initial=units.num_chips - 1))
    return np.stack([up, down])
