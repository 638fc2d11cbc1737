"""Every placement, order and choice of kernels of a tiny instance, kept as rows of arrays.

Placements are made unit by unit along a topological order; a partial placement that sends a result to a lower
chip is dropped at once. Orders and kernels are enumerated only if they are open. Nothing is left out, or
there is no answer: whoever evaluates all rows knows the optimum. Axes: ``B`` plans, ``N`` ops, ``U`` units.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env.kernels.fusion import is_one_loop, loop_roles
from go_opt.model.graph import Graph
from go_opt.solver.constraints.problem import problem_under
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.problem import NO_SKIP_OFF, TRIANGLE_OFF, PlacementProblem
from go_opt.solver.propagation.propagators.domains import unpack_chips
from go_opt.solver.propagation.propagators.tables import RuleTables
from go_opt.solver.verify.rule_check import NONE, broken_rules

MOST_PLANS: Final = 1 << 14
MOST_CELLS: Final = 1 << 27  # rows times units over all steps: below a second
MOST_OPEN_OPS: Final = 6  # of a graph whose orders and kernels are enumerated


def every_plan(
    requested: OpConstraints, *, forwarding: ForwardingMode, decides_all: bool
) -> tuple[IntArray, IntArray, IntArray] | None:
    """Returns placements, orders and kernels [B, N] of all plans that keep the rules and the constraints.

    Limits, stages and memory are not looked at; there are no relays, splits and replicated stages.
    ``None``: more than :data:`MOST_PLANS`, than :data:`MOST_CELLS` to make them, or than
    :data:`MOST_OPEN_OPS` ops with ``decides_all``.

    Args:
      forwarding: ``relayed``: relays will be added to the plans, so the triangle rule and the chips that no
        op uses are left to them.
      decides_all: whether orders and kernels are open; otherwise each op is a kernel, in the default order.
    """
    graph = requested.graph
    if decides_all and graph.num_ops > MOST_OPEN_OPS:
        return None
    rows = []
    num_plans = 0
    for order, group in _sequences(requested) if decides_all else [_default(graph)]:
        placement = _placements(requested, group, forwarding, MOST_PLANS - num_plans)
        if placement is None:
            return None
        num_plans += len(placement)
        shape = (len(placement), graph.num_ops)
        rows.append((placement, np.broadcast_to(order, shape), np.broadcast_to(group, shape)))
    placements, orders, groups = (np.concatenate(column) for column in zip(*rows, strict=True))
    return placements, orders, groups


def _default(graph: Graph) -> tuple[IntArray, IntArray]:
    order = np.arange(graph.num_ops, dtype=np.int32)
    return order, order


def _sequences(requested: OpConstraints) -> Iterator[tuple[IntArray, IntArray]]:
    """Yields every topological order with every choice of legal kernels along it."""
    graph, roles = requested.graph, loop_roles(requested.graph, requested.target.kernel_patterns)
    for ops in _orders(graph, []):
        order = np.array(ops, dtype=np.int32)
        for cuts in itertools.product((0, 1), repeat=graph.num_ops - 1):
            along = np.cumsum([0, *cuts]).astype(np.int32)
            if all(is_one_loop(roles, order[along == kernel]) for kernel in range(along[-1] + 1)):
                group = np.empty_like(along)
                group[order] = along
                yield order, group


def _orders(graph: Graph, begun: list[int]) -> Iterator[list[int]]:
    """Yields every topological order that begins with the ops ``begun``."""
    if len(begun) == graph.num_ops:
        yield begun
    ptr, source = graph.predecessors
    for op in range(graph.num_ops):
        if op not in begun and set(source[ptr[op] : ptr[op + 1]].tolist()) <= set(begun):
            yield from _orders(graph, [*begun, op])


def _placements(
    requested: OpConstraints, group: IntArray, forwarding: ForwardingMode, most: int
) -> IntArray | None:
    """Returns all placements [B, N] of the kernels ``group``; None if more than ``most`` or too large."""
    if len(np.unique(group)) ** 2 > MOST_CELLS:
        return None

    def change(problem: PlacementProblem) -> PlacementProblem:
        if forwarding == "relayed":
            return problem._replace(triangle=TRIANGLE_OFF, no_skip=NO_SKIP_OFF)
        return problem if problem.acyclic else problem._replace(triangle=TRIANGLE_OFF)

    case = problem_under(requested.without_stages(), group, change=change)
    problem, tables = case.problem, case.tables
    may_be = unpack_chips(tables.allowed, problem.num_chips)
    rows = np.zeros((1, problem.num_units), dtype=np.int32)
    cells = 0
    for unit in problem.topological:
        chips = np.flatnonzero(may_be[unit]).astype(np.int32)
        cells += len(chips) * rows.size
        if len(rows) * len(chips) > most * problem.num_chips or cells > MOST_CELLS:
            return None
        rows = np.repeat(rows, len(chips), axis=0)
        rows[:, unit] = np.tile(chips, len(rows) // max(len(chips), 1))
        rows = rows[_rises(tables, rows, int(unit))]
        if len(rows) > most:
            return None
    return rows[broken_rules(problem, rows) == NONE][:, problem.unit_of_op]


def _rises(tables: RuleTables, rows: IntArray, unit: int) -> BoolArray:
    """Returns the partial placements [B] that keep the rules between ``unit`` and its producers."""
    edges = slice(tables.pred_ptr[unit], tables.pred_ptr[unit + 1])
    rise = rows[:, unit, None] - rows[:, tables.pred[edges]]
    is_legal = (rise >= tables.pred_rise[edges]) & (rise <= tables.pred_span[edges])
    return np.logical_and.reduce(is_legal, axis=1)
