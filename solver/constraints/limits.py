"""Chip limits as arrays: the amount of each unit, and the weights that units share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, IntArray, LongArray, row_pointers
from go_opt.env.cost import CostTables, cost_tables
from go_opt.env.kernels.fusion import MAX_GROUP_OPS
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import WEIGHT
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.problem import PlacementProblem, placement_problem
from go_opt.solver.problem.user_constraints import LIMITS, ChipLimit
from go_opt.solver.propagation.propagators.tables import Limits


def chip_limits(requested: OpConstraints, problem: PlacementProblem, fusion_group: IntArray) -> Limits | None:
    """Returns the limits of ``requested`` for the kernels of ``fusion_group``; ``None`` if there are none."""
    if not requested.limits and not len(requested.stage_chips):
        return None
    tables = cost_tables(requested.graph, requested.target)
    kernel_of = placement_problem(requested.graph, requested.target, fusion_group).unit_of_op
    kernel_s = kernel_seconds(tables, kernel_of)
    unit_of_kernel = np.zeros(kernel_s.shape[1], np.int64)
    unit_of_kernel[kernel_of] = problem.unit_of_op
    unit_s = _summed(kernel_s, unit_of_kernel, problem.num_units)
    kernels = np.bincount(unit_of_kernel, minlength=problem.num_units).astype(np.float64)
    rows = [*_rows(requested.limits, problem, unit_s, kernels), *_op_on_each_stage(requested, problem)]
    return _limits(rows, tables, problem)


def loosest_limits(
    requested: OpConstraints,
    problem: PlacementProblem,
    *,
    fusion_is_open: bool,
    relays_are_open: bool,
    replicates: bool,
) -> Limits | None:
    """Returns limits that every valid plan keeps, for any kernels, relays and replicas if these are open.

    Fused, an op costs at least its own work, and a kernel costs at most its ops as separate kernels.
    Relays may add seconds to any chip, and replicas weights too: then there are no such lower limits.
    A stage that starts on a chip may share its seconds with all later ones.
    """
    tables = cost_tables(requested.graph, requested.target)
    most_s = tables.kernel_floor_s()
    least_s = tables.own_s() if fusion_is_open else most_s
    ops = np.bincount(problem.unit_of_op, minlength=problem.num_units).astype(np.float64)
    least_kernels = ops / (MAX_GROUP_OPS if fusion_is_open else 1)
    at_most = [
        replace(
            limit,
            at_least_bytes=None,
            at_least_s=None,
            at_most_s=limit.at_most_s
            and limit.at_most_s * (problem.num_chips - limit.chip if replicates else 1),
        )
        for limit in requested.limits
        if any(getattr(limit, name) is not None for name in LIMITS if name.startswith("at_most"))
    ]
    lower = ("at_least_bytes",) if relays_are_open else ("at_least_bytes", "at_least_s")
    at_least = [
        ChipLimit(limit.chip, **given)
        for limit in requested.limits
        if not replicates
        and (given := {name: value for name in lower if (value := getattr(limit, name)) is not None})
    ]
    rows = [
        *_rows(at_most, problem, _summed(least_s, problem.unit_of_op, problem.num_units), least_kernels),
        *_rows(at_least, problem, _summed(most_s, problem.unit_of_op, problem.num_units), ops),
        *_op_on_each_stage(requested, problem),
    ]
    return _limits(rows, tables, problem) if rows else None


_Row = tuple[int, float, float, FloatArray, bool]  # as in Limits: chip, most, least, amounts [U], shares


def _rows(
    wanted: Sequence[ChipLimit], problem: PlacementProblem, unit_s: FloatArray, kernels: FloatArray
) -> Iterator[_Row]:
    """Yields a row for each limit in bytes, seconds, ops or kernels; ``unit_s`` [Q, U], ``kernels`` [U]."""
    nothing = np.zeros(problem.num_units)
    ops = np.bincount(problem.unit_of_op, minlength=problem.num_units).astype(np.float64)
    for limit in wanted:
        for most, least, amount in (
            (limit.at_most_bytes, limit.at_least_bytes, nothing),
            (limit.at_most_s, limit.at_least_s, unit_s[problem.chip_kind[limit.chip]]),
            (limit.at_most_ops, None, ops),
            (limit.at_most_kernels, None, kernels),
        ):
            if most is not None or least is not None:
                most, least = math.inf if most is None else most, 0.0 if least is None else least
                yield limit.chip, most, least, amount, amount is nothing


def _op_on_each_stage(requested: OpConstraints, problem: PlacementProblem) -> Iterator[_Row]:
    ones = np.ones(problem.num_units)
    return ((int(chip), math.inf, 1.0, ones, False) for chip in requested.stage_chips)


def _limits(rows: Sequence[_Row], tables: CostTables, problem: PlacementProblem) -> Limits:
    chip, at_most, at_least, amount, shares = zip(*rows, strict=True)
    return Limits(
        np.array(chip, np.int64),
        np.array(at_most, np.float64),
        np.array(at_least, np.float64),
        np.array(amount, np.float64),
        np.array(shares, np.bool_),
        *_weights(tables, problem),
    )


def _weights(tables: CostTables, problem: PlacementProblem) -> tuple[LongArray, LongArray, FloatArray]:
    """Returns a CSR of the weights each unit reads, and the bytes of every tensor."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    unit = problem.unit_of_op[tables.reader_op[is_weight]]
    pairs = np.unique(np.stack([unit, tables.reader_tensor[is_weight]], axis=1), axis=0).reshape(-1, 2)
    return (
        row_pointers(pairs[:, 0], problem.num_units),
        pairs[:, 1].astype(np.int64),
        tables.tensor_bytes.astype(np.float64),
    )


def _summed(seconds: FloatArray, unit_of: NDArray, num_units: int) -> FloatArray:
    """Returns the seconds [Q, U] of ops or kernels ([Q, any]), summed by unit."""
    return np.stack([np.bincount(unit_of, weights=row, minlength=num_units) for row in seconds])
