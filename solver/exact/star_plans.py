"""Placements on chips around a host, of one or several kinds: exact where dataflow is acyclic.

Every tensor goes by the host, so a chip's load depends on its own units alone and the
dynamic program over down-sets applies (:mod:`go_opt.solver.exact.star`). Where there are
too many down-sets, those along a few topological orders stand in for them: the cheapest
slicing of an order, chips of all kinds in any order. What the program does not prove, too
many down-sets or chips that may depend on each other in a circle, is annealed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost import CostTables, cost_tables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import NO_PRODUCER
from go_opt.solver.exact.down_sets import DownSetOptimum, cheapest_chain, down_set_optimum
from go_opt.solver.exact.lattice import prefix_sets
from go_opt.solver.exact.star import StarProblem
from go_opt.solver.exact.star_search import anneal_star
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.problem import PlacementProblem, placement_problem
from go_opt.solver.problem.unit_traffic import host_seconds, private_weight_bytes, unit_traffic
from go_opt.solver.problem.user_constraints import ChipLimit

MAX_DOWN_SETS: Final = 100_000
MAX_PAIRS: Final = 10_000_000  # of down-sets: a second or two
MOVES: Final = 200_000
MAX_CELLS: Final = 4_000_000  # down-sets times numbers of chips of each kind


@dataclass(frozen=True, eq=False)
class StarPlan:
    """A placement, and what is proven of it."""

    placement: NDArray[np.int32]  # [N]
    objective_s: float  # its cost, streamed weights left out
    lower_bound_s: float  # no placement that keeps the rules costs less; 0 where none is proven
    down_sets: int  # looked at


def serves_star(asked: OpConstraints) -> bool:
    """Whether :func:`star_plan` knows the target's links and rules, and the limits of its chips."""
    return (
        asked.target.topology.kind == "host_star"
        and asked.target.constraints.no_skip == "off"
        and all(_is_of_most_bytes(limit) for limit in asked.limits)
    )


def star_plan(
    asked: OpConstraints,
    fusion_group: NDArray[np.int32],
    *,
    max_down_sets: int = MAX_DOWN_SETS,
    moves: int = MOVES,
    seed: int = 0,
) -> StarPlan | None:
    """The cheapest placement of kernels that was found, and a bound for these kernels.

    ``None`` where no slicing of a few orders, nor any other chain, keeps the constraints.

    Args:
      max_down_sets: more than these are not enumerated.
      moves: of the annealing, where nothing is proven.
    """
    problem = star_problem(asked, fusion_group)
    is_acyclic = asked.target.constraints.acyclic
    states = int(np.prod(np.bincount(problem.chip_kind) + 1))
    best = _best_slicing(problem) if problem.units.num_units * states <= MAX_CELLS else None
    upper_s = math.inf if best is None else best.objective_s
    exact = down_set_optimum(
        problem,
        max_ideals=min(max_down_sets, MAX_CELLS // states),
        upper_s=upper_s,
        max_pairs=MAX_PAIRS,
    )
    if exact is not None and exact.placement is not None:
        best = exact
    if best is None or best.placement is None:
        return None
    placement, objective_s, lower_bound_s = best.placement, best.objective_s, 0.0
    if exact is not None and exact.is_complete and is_acyclic:
        lower_bound_s = objective_s
    else:
        placement, objective_s = anneal_star(
            problem, placement, goes_anywhere=not is_acyclic, moves=moves, seed=seed
        )
    return StarPlan(
        placement=placement[problem.units.unit_of_op],
        objective_s=objective_s,
        lower_bound_s=lower_bound_s,
        down_sets=best.down_sets if exact is None else exact.down_sets,
    )


def star_problem(asked: OpConstraints, fusion_group: NDArray[np.int32]) -> StarProblem:
    """The placement of kernels around a host.

    Kernels that must share a chip are one unit, and so is what lies between them: chips are
    differences of down-sets.

    Chips alike in kind, limit and what may run on them are of one kind here. Weights
    count against limits only: those that do not fit a chip's memory stream.
    """
    graph, target = asked.graph, asked.target
    tables = cost_tables(graph, target)
    in_order = replace(target, constraints=replace(target.constraints, acyclic=True))
    shared = replace(asked, target=in_order).shared_chips(fusion_group)
    units = placement_problem(graph, target, shared)
    traffic = unit_traffic(tables, units.unit_of_op)
    host_in_s, host_out_s = host_seconds(tables, units.unit_of_op)
    most_bytes = np.full(target.num_chips, math.inf)
    for limit in asked.limits:
        assert limit.at_most_bytes is not None, "other limits are not served"
        most_bytes[limit.chip] = min(most_bytes[limit.chip], limit.at_most_bytes)
    allowed = np.ones((units.num_units, target.num_chips), np.bool_)
    np.logical_and.at(allowed, units.unit_of_op, asked.allowed)
    first, chip_kind = _alike(tables.chip_kind, most_bytes, allowed)
    pays = tables.pays_transfers[tables.chip_kind[first]]
    unit_s = _unit_seconds(asked, tables, units, fusion_group)[tables.chip_kind[first]]
    has_home = traffic.home != NO_PRODUCER
    link_s = traffic.num_bytes * float(tables.link_s_per_byte.max())
    input_s = traffic.num_bytes * ~traffic.is_weight * tables.host_in_s_per_byte
    if tables.overlap:
        input_s = np.zeros(len(link_s))
    else:
        unit_s = unit_s + host_out_s * pays[:, None]
    return StarProblem(
        units=units,
        traffic=traffic,
        unit_s=np.where(allowed[:, first].T, unit_s, math.inf),
        move_s=np.where(has_home, link_s, input_s),
        unit_bytes=private_weight_bytes(tables, units.unit_of_op),
        shared_bytes=traffic.num_bytes * traffic.is_weight * np.isfinite(most_bytes).any(),
        limit_bytes=most_bytes[first],
        pays=pays,
        chip_kind=chip_kind,
        overlap=tables.overlap,
        floor_s=float(max(host_in_s.sum(), host_out_s.sum())) if tables.overlap else 0.0,
    )


def _is_of_most_bytes(limit: ChipLimit) -> bool:
    return limit.at_least_bytes is None and limit.at_most_s is None and limit.at_least_s is None


def _alike(
    kind: NDArray[np.int32], most_bytes: NDArray[np.float64], allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The first chip of each kind of chips that are alike in all, and the kind of each chip."""
    rows = [(int(kind[d]), float(most_bytes[d]), allowed[:, d].tobytes()) for d in range(len(kind))]
    number = {row: q for q, row in enumerate(dict.fromkeys(rows))}
    chip_kind = np.array([number[row] for row in rows], np.int32)
    return np.unique(chip_kind, return_index=True)[1], chip_kind


def _unit_seconds(
    asked: OpConstraints, tables: CostTables, units: PlacementProblem, fusion_group: NDArray[np.int32]
) -> NDArray[np.float64]:
    """[Q, U] seconds of each unit's kernels."""
    kernel_of = placement_problem(asked.graph, asked.target, fusion_group).unit_of_op
    kernel_s = kernel_seconds(tables, kernel_of)
    unit_of_kernel = np.zeros(kernel_s.shape[1], np.int64)
    unit_of_kernel[kernel_of] = units.unit_of_op
    return np.stack([np.bincount(unit_of_kernel, weights=row, minlength=units.num_units) for row in kernel_s])


def _best_slicing(problem: StarProblem) -> DownSetOptimum | None:
    """The cheapest slicing of a few orders; ``None`` where none keeps the constraints.

    The first is looked for below bounds that double, which keeps the segments short.
    """
    orders = _orders(problem.units)
    unit_s = problem.unit_s.min(axis=0)
    upper_s = max(float(unit_s.sum()) / len(problem.chip_kind), float(unit_s.max()), problem.floor_s)
    most_s = float(np.where(np.isinf(problem.unit_s), 0.0, problem.unit_s).max(axis=0).sum())
    most_s += 2.0 * float(problem.move_s.sum()) + problem.floor_s
    best = None
    while best is None and upper_s > 0.0:
        upper_s = 2.0 * upper_s if upper_s <= most_s else math.inf
        found = cheapest_chain(problem, prefix_sets(orders[0]), upper_s)
        best = None if found.placement is None else found
        if math.isinf(upper_s):
            break
    for order in orders[1:]:
        found = cheapest_chain(problem, prefix_sets(order), math.inf if best is None else best.objective_s)
        best = best if found.placement is None else found
    return best


def _orders(units: PlacementProblem) -> list[NDArray[np.int32]]:
    """The default order, by depth, and by height."""
    depth, height = np.zeros(units.num_units, np.int64), np.zeros(units.num_units, np.int64)
    for unit in units.topological:
        for reader in units.successor[units.successor_ptr[unit] : units.successor_ptr[unit + 1]]:
            depth[reader] = max(depth[reader], depth[unit] + 1)
    for unit in units.topological[::-1]:
        for reader in units.successor[units.successor_ptr[unit] : units.successor_ptr[unit + 1]]:
            height[unit] = max(height[unit], height[reader] + 1)
    by_depth, by_height = np.argsort(depth, kind="stable"), np.argsort(-height, kind="stable")
    return [units.topological, by_depth.astype(np.int32), by_height.astype(np.int32)]
