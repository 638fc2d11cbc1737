"""Limits of chips as arrays: what each unit adds to a chip, and the weights units share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost import CostTables, cost_tables
from go_opt.env.kernels import kernel_seconds
from go_opt.env.target import Target
from go_opt.errors import InvalidInputError
from go_opt.graph import WEIGHT, Graph
from go_opt.solver.problem import PlacementProblem, placement_problem
from go_opt.solver.propagators.tables import Limits
from go_opt.solver.user_constraints import ChipLimit, UserConstraint


def chip_limits(
    graph: Graph,
    target: Target,
    problem: PlacementProblem,
    constraints: Sequence[UserConstraint],
    fusion_group: NDArray[np.int32] | None,
) -> Limits | None:
    """The limits among ``constraints``; ``None`` where there are none."""
    wanted = [constraint for constraint in constraints if isinstance(constraint, ChipLimit)]
    if not wanted:
        return None
    for limit in wanted:
        _check(limit, problem.num_chips)
    tables = cost_tables(graph, target)
    item_ptr, item, item_amount = _weights(tables, problem)
    unit_s = _unit_seconds(graph, target, tables, problem, fusion_group)
    nothing = np.zeros(problem.num_units)
    chip, at_most, at_least, amount, shares = [], [], [], [], []
    for limit in wanted:
        for most, least, is_bytes in (
            (limit.at_most_bytes, limit.at_least_bytes, True),
            (limit.at_most_s, limit.at_least_s, False),
        ):
            if most is None and least is None:
                continue
            chip.append(limit.chip)
            at_most.append(math.inf if most is None else most)
            at_least.append(0.0 if least is None else least)
            amount.append(nothing if is_bytes else unit_s[problem.chip_kind[limit.chip]])
            shares.append(is_bytes)
    return Limits(
        chip=np.array(chip, np.int64),
        at_most=np.array(at_most, np.float64),
        at_least=np.array(at_least, np.float64),
        amount=np.array(amount, np.float64),
        shares=np.array(shares, np.bool_),
        item_ptr=item_ptr,
        item=item,
        item_amount=item_amount,
    )


def _check(limit: ChipLimit, num_chips: int) -> None:
    if not 0 <= limit.chip < num_chips:
        raise InvalidInputError(
            f"{limit} names chip {limit.chip}; chips are 0 to {num_chips - 1}.", field="constraints"
        )
    values = (limit.at_most_bytes, limit.at_least_bytes, limit.at_most_s, limit.at_least_s)
    given = [value for value in values if value is not None]
    if not given or not all(math.isfinite(value) and value >= 0 for value in given):
        raise InvalidInputError(
            f"{limit}: a limit is a finite number that is not negative.", field="constraints"
        )


def _weights(
    tables: CostTables, problem: PlacementProblem
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """CSR of the weights each unit reads, and bytes of every tensor."""
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    unit = problem.unit_of_op[tables.reader_op[is_weight]]
    pairs = np.unique(np.stack([unit, tables.reader_tensor[is_weight]], axis=1), axis=0).reshape(-1, 2)
    counts = np.bincount(pairs[:, 0], minlength=problem.num_units)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ptr, pairs[:, 1].astype(np.int64), tables.tensor_bytes.astype(np.float64)


def _unit_seconds(
    graph: Graph,
    target: Target,
    tables: CostTables,
    problem: PlacementProblem,
    fusion_group: NDArray[np.int32] | None,
) -> NDArray[np.float64]:
    """[Q, U] seconds of each unit's kernels: a unit of colocated kernels holds several."""
    kernel_of = placement_problem(graph, target, fusion_group).unit_of_op
    kernel_s = kernel_seconds(tables, kernel_of)
    unit_of_kernel = np.zeros(kernel_s.shape[1], np.int64)
    unit_of_kernel[kernel_of] = problem.unit_of_op
    unit_s = np.zeros((kernel_s.shape[0], problem.num_units))
    for kind, seconds in enumerate(kernel_s):
        np.add.at(unit_s[kind], unit_of_kernel, seconds)
    return unit_s
