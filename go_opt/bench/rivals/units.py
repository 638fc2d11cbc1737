"""Units of a placement for rivals that see a graph: their seconds, and the tensors between them.

Axes: ``U`` units, ``M`` default kernels, ``Q`` chip kinds, ``N`` ops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.bench.rivals.problem import Problem
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import CostTables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import NO_PRODUCER
from go_opt.solver import PlacementProblem, placement_problem
from go_opt.solver.problem.problem import NO_SKIP_OFF, TRIANGLE_OFF


class UnitTensor(NamedTuple):
    """A tensor that units other than its own read."""

    kind: int  # as in the graph
    home: int  # unit that makes it, NO_PRODUCER for inputs and weights
    readers: tuple[int, ...]  # ascending, without home
    num_bytes: int
    touched_bytes: int  # the least that any of them reads


def unit_problem(problem: Problem, unit_of_op: IntArray | None = None) -> PlacementProblem:
    """The default kernels, or units of whole kernels, under the rules a rival must see to itself.

    Where tensors may pass chips no triangle binds, and chips left empty are closed up afterwards.
    """
    groups = problem.kernels if unit_of_op is None else unit_of_op
    units = placement_problem(problem.graph, problem.target, groups)
    if problem.is_adjacent:
        return units
    return units._replace(triangle=TRIANGLE_OFF, no_skip=NO_SKIP_OFF)


def unit_seconds(problem: Problem, unit_of_op: IntArray) -> FloatArray:
    """[Q, U] seconds of units of whole default kernels."""
    kernel_of = unit_problem(problem).unit_of_op
    kernel_s = kernel_seconds(problem.instance.tables, kernel_of)
    unit_of_kernel = np.empty(kernel_s.shape[1], dtype=np.int64)
    unit_of_kernel[kernel_of] = unit_of_op
    return np.stack([np.bincount(unit_of_kernel, weights=row) for row in kernel_s])


def unit_tensors(tables: CostTables, unit_of_op: IntArray) -> list[UnitTensor]:
    """Every tensor with a reader beside its own unit."""
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
