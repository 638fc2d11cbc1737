"""The placement problem as flat arrays: units, edges between units, and rules.

A variable is a *unit*: an op, or a kernel whose ops share a chip. Its value is a chip
``f(u)`` in 0 … D - 1. Axes: ``U`` units, ``N`` ops, ``E`` edges between units, ``D`` chips,
``Q`` chip kinds. Ragged data is CSR: row ``u`` of ``x`` is ``x[ptr[u]:ptr[u + 1]]``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray, csr
from go_opt.common.compiling import compiled, uncounted_inner
from go_opt.env.cost.tables import kinds_that_run
from go_opt.env.kernels.schedule import list_schedule
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import number_by_first_place

NO_SKIP_RULES: Final = ("off", "prefix", "all")
NO_SKIP_OFF, NO_SKIP_PREFIX, NO_SKIP_ALL = range(3)
TRIANGLE_RULES: Final = ("off", "longest_path", "three_chip", "adjacent")
TRIANGLE_OFF, TRIANGLE_LONGEST_PATH, TRIANGLE_THREE_CHIP, TRIANGLE_ADJACENT = range(4)


class PlacementProblem(NamedTuple):
    """Units of a graph on the chips of a target."""

    num_chips: int  # D
    unit_of_op: IntArray  # [N]
    successor_ptr: LongArray  # [U + 1]
    successor: IntArray  # [E] units that read unit u: ascending, unique, never u itself
    predecessor_ptr: LongArray  # [U + 1]
    predecessor: IntArray  # [E] units that unit u reads: ascending, unique, never u itself
    rise: LongArray  # [E] least f(v) - f(u), parallel to successor: 1 at a user's cut point, else 0
    topological: IntArray  # [U] units, each after all its producers
    component: IntArray  # [U] weak component, numbered 0 … C - 1 along the units
    num_components: int  # C
    chip_kind: IntArray  # [D]
    can_run: BoolArray  # [Q, U] True where the kind may run every op of the unit
    acyclic: bool  # f(u) <= f(v) for every edge
    no_skip: int  # index into NO_SKIP_RULES
    triangle: int  # index into TRIANGLE_RULES

    @property
    def num_units(self) -> int:
        return len(self.successor_ptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.successor)


def placement_problem(
    graph: Graph,
    target: Target,
    fusion_group: IntArray | None = None,
    *,
    cycles_are_legal: bool = False,
) -> PlacementProblem:
    """Returns the problem of ``graph`` on ``target``; units are its kernels, or its ops by default.

    Args:
      fusion_group: [N] kernel of each op, any numbers; units are numbered by their first ops.
      cycles_are_legal: units are not kernels but sets of ops on one chip, which may read each other;
        ``topological`` is then any order.

    Raises:
      PlanError: contracting the kernels leaves a cycle.
    """
    ops = np.arange(graph.num_ops, dtype=np.int32)
    unit_of_op = ops if fusion_group is None else number_by_first_place(fusion_group)
    num_units = int(unit_of_op.max()) + 1
    source, reader = _unit_edges(graph, unit_of_op)
    successor_ptr, by_source = csr(source, num_units)
    predecessor_ptr, by_reader = csr(reader, num_units)
    successor, predecessor = reader[by_source], source[by_reader]
    component = _components(successor_ptr, successor, predecessor_ptr, predecessor)
    rules = target.constraints
    return PlacementProblem(
        num_chips=target.num_chips,
        unit_of_op=unit_of_op,
        successor_ptr=successor_ptr,
        successor=successor,
        predecessor_ptr=predecessor_ptr,
        predecessor=predecessor,
        rise=np.zeros(len(successor), dtype=np.int64),
        topological=np.arange(num_units, dtype=np.int32)
        if cycles_are_legal
        else _topological(graph, unit_of_op, num_units),
        component=component,
        num_components=int(component.max()) + 1,
        chip_kind=target.chip_kind,
        can_run=_can_run(graph, target, unit_of_op, num_units),
        acyclic=rules.acyclic,
        no_skip=NO_SKIP_RULES.index(rules.no_skip),
        triangle=TRIANGLE_RULES.index(rules.triangle),
    )


def most_chips_adjacent(problem: PlacementProblem) -> int:
    """Returns the most chips a placement under the adjacent rule can use, at most ``D``.

    The rule is a system of difference constraints: ``f(v) - f(u) <= 1`` and
    ``f(u) - f(v) <= 0`` for every edge. The largest ``f(t) - f(s)`` is therefore the shortest
    path from s to t, where an edge costs 1 forward and 0 backward. A weak component uses all
    chips between its lowest and its highest, so its width is the longest of these shortest paths
    plus 1. Components are independent and may use separate chips, so the widths add up.
    """
    width = component_width(problem, span_from_sources(problem))
    return min(problem.num_chips, int(width.sum()))


def component_width(problem: PlacementProblem, span: IntArray) -> IntArray:
    """Returns the most chips [C] each component can use, from its sources' spans; at most ``D``."""
    width = np.zeros(problem.num_components, dtype=np.int32)
    np.maximum.at(width, problem.component, span + 1)
    return width


def span_from_sources(problem: PlacementProblem) -> IntArray:
    """Returns [U] for a source s the largest ``f(t) - f(s)`` of any t, at most ``D - 1``; -1 for others.

    Steps back to an ancestor are free, so each unit's distance is at most that from one of its
    source ancestors: sources are enough.
    """
    return _span_from_sources(problem)


def _unit_edges(graph: Graph, unit_of_op: IntArray) -> tuple[IntArray, IntArray]:
    """Returns edges between units, each once, sorted by source and then by reader."""
    pairs = np.stack([unit_of_op[graph.edge_src], unit_of_op[graph.edge_dst]], axis=1)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return pairs[:, 0], pairs[:, 1]


def _topological(graph: Graph, unit_of_op: IntArray, num_units: int) -> IntArray:
    """Returns the topological order [U] that always takes the lowest ready unit."""
    along = unit_of_op[list_schedule(graph, unit_of_op, -np.arange(num_units, dtype=np.float64))]
    if len(along) < graph.num_ops:
        stuck = np.setdiff1d(np.arange(num_units), along)[0]
        op = int(np.flatnonzero(unit_of_op == stuck)[0])
        raise PlanError(
            f"the kernel of op {graph.op_names[op]!r} reads its own result through other kernels, "
            "or follows one that does.",
            field="fusion_group",
        )
    return along[np.concatenate([[True], along[1:] != along[:-1]])]


def _can_run(graph: Graph, target: Target, unit_of_op: IntArray, num_units: int) -> BoolArray:
    can_run = np.ones((len(target.kinds), num_units), dtype=np.bool_)
    kind, op = np.nonzero(~kinds_that_run(graph, target))
    can_run[kind, unit_of_op[op]] = False
    return can_run


@compiled
def _components(
    successor_ptr: LongArray, successor: IntArray, predecessor_ptr: LongArray, predecessor: IntArray
) -> IntArray:
    num_units = len(successor_ptr) - 1
    component = np.empty(num_units, np.int32)
    for unit in range(num_units):
        component[unit] = -1
    stack = np.empty(num_units, np.int32)
    found = 0
    for root in range(num_units):
        if component[root] >= 0:
            continue
        component[root] = found
        stack[0] = root
        size = 1
        while size > 0:
            size -= 1
            unit = stack[size]
            for i in range(successor_ptr[unit], successor_ptr[unit + 1]):
                if component[successor[i]] < 0:
                    component[successor[i]] = found
                    stack[size] = successor[i]
                    size += 1
            for i in range(predecessor_ptr[unit], predecessor_ptr[unit + 1]):
                if component[predecessor[i]] < 0:
                    component[predecessor[i]] = found
                    stack[size] = predecessor[i]
                    size += 1
        found += 1
    return component


@compiled
def _span_from_sources(problem: PlacementProblem) -> IntArray:
    num_units = len(problem.component)
    span = np.empty(num_units, np.int32)
    level_of = np.empty(num_units, np.int32)
    seen_from = np.empty(num_units, np.int32)  # the source that level_of is counted from
    for unit in range(num_units):
        span[unit] = -1
        seen_from[unit] = -1
    level = np.empty(num_units, np.int32)
    following = np.empty(num_units, np.int32)
    for source in range(num_units):
        if problem.predecessor_ptr[source] == problem.predecessor_ptr[source + 1]:
            level[0] = source
            level_of[source] = 0
            seen_from[source] = source
            span[source] = _last_level(problem, source, level_of, seen_from, level, following)
    return span


@uncounted_inner
def _last_level(
    problem: PlacementProblem,
    source: int,
    level_of: IntArray,
    seen_from: IntArray,
    level: IntArray,
    following: IntArray,
) -> int:
    """Returns the last level of the 0-1 shortest paths from ``source``, at most ``D - 1``.

    ``level[0]`` is the source. A unit first reached by a step forward may later be reached within
    the current level at no cost. Its entry in ``following`` is then skipped.
    """
    depth = 0
    size = 1
    while True:
        num_following = 0
        while size > 0:
            size -= 1
            unit = level[size]
            if level_of[unit] < depth:
                continue
            for i in range(problem.predecessor_ptr[unit], problem.predecessor_ptr[unit + 1]):
                before = problem.predecessor[i]
                if seen_from[before] != source or level_of[before] > depth:
                    seen_from[before] = source
                    level_of[before] = depth
                    level[size] = before
                    size += 1
            for i in range(problem.successor_ptr[unit], problem.successor_ptr[unit + 1]):
                after = problem.successor[i]
                if seen_from[after] != source:
                    seen_from[after] = source
                    level_of[after] = depth + 1
                    following[num_following] = after
                    num_following += 1
        while num_following > 0:
            num_following -= 1
            if level_of[following[num_following]] == depth + 1:
                level[size] = following[num_following]
                size += 1
        if size == 0 or depth + 1 >= problem.num_chips:
            return depth
        depth += 1
