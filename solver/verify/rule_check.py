"""The static rules of whole placements, compiled: the full-rule verifier of the hot loops.

O(U + E) per placement, plus O(chip dependencies) for the triangle rule. ``further[a]`` is the
bitset of chips that chip a reaches by two or more dependencies (three-chip form: exactly two).
The rule forbids ``depends[a] & further[a]``.
:mod:`go_opt.solver.verify.verifier` is its independent twin on plans.

:class:`PlanRules` checks whole plans in batches, with orders and kernels; the evaluation checks memory. Axes:
``B`` plans, ``N`` ops, ``D`` chips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, LongArray, WordArray
from go_opt.common.compiling import compiled, compiled_inner, uint64, uncounted_inner
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, MAX_GROUP_OPS, REDUCTION, LoopRoles, loop_roles
from go_opt.env.target import Target
from go_opt.model.graph import Graph
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    TRIANGLE_OFF,
    PlacementProblem,
    placement_problem,
)

# The first rule that a placement breaks, by code.
RULE_NAMES: Final = ("none", "chips", "kinds", "acyclic", "no_skip", "triangle")
NONE, CHIPS, KINDS, ACYCLIC, NO_SKIP, TRIANGLE = range(6)


def broken_rules(problem: PlacementProblem, placements: IntArray) -> CodeArray:
    """Returns the first rule [S] that each of ``placements`` [S, U] breaks, an index into ``RULE_NAMES``."""
    broken = np.zeros(len(placements), dtype=np.int8)
    _check_all(problem, placements, broken)
    return broken


@compiled
def _check_all(problem: PlacementProblem, placements: IntArray, broken: CodeArray) -> None:
    num_words = (problem.num_chips + 63) // 64
    for s in range(len(placements)):
        depends = np.zeros((problem.num_chips, num_words), np.uint64)
        is_used = np.zeros(problem.num_chips, np.bool_)
        broken[s] = _check_units(problem, placements[s], is_used)
        if broken[s] == NONE:
            broken[s] = _check_edges(problem, placements[s], depends)
        if broken[s] == NONE and not _is_gapless(problem, is_used):
            broken[s] = NO_SKIP
        if broken[s] == NONE and problem.triangle != TRIANGLE_OFF and _has_detour(problem, depends):
            broken[s] = TRIANGLE


@uncounted_inner
def _check_units(problem: PlacementProblem, placement: IntArray, is_used: BoolArray) -> int:
    for unit in range(len(placement)):
        chip = placement[unit]
        if chip < 0 or chip >= problem.num_chips:
            return CHIPS
        if not problem.can_run[problem.chip_kind[chip], unit]:
            return KINDS
        is_used[chip] = True
    return NONE


@uncounted_inner
def _check_edges(problem: PlacementProblem, placement: IntArray, depends: WordArray) -> int:
    goes_far = False
    for unit in range(len(placement)):
        chip = placement[unit]
        for i in range(problem.successor_ptr[unit], problem.successor_ptr[unit + 1]):
            reader = placement[problem.successor[i]]
            if problem.acyclic and reader < chip:
                return ACYCLIC
            goes_far |= problem.triangle == TRIANGLE_ADJACENT and reader > chip + 1
            if reader != chip:
                depends[chip, reader >> 6] |= uint64(1) << uint64(reader & 63)
    return TRIANGLE if goes_far else NONE


@uncounted_inner
def _is_gapless(problem: PlacementProblem, is_used: BoolArray) -> bool:
    if problem.no_skip == NO_SKIP_OFF:
        return True
    last = problem.num_chips - 1
    while problem.no_skip != NO_SKIP_ALL and not is_used[last]:
        last -= 1
    for chip in range(last):
        if not is_used[chip]:
            return False
    return is_used[last]


@compiled_inner
def _has_detour(problem: PlacementProblem, depends: WordArray) -> bool:
    """Returns whether a direct dependency has a detour; dependencies go to higher chips only."""
    num_chips, num_words = depends.shape
    further = np.zeros((num_chips, num_words), np.uint64)
    for a in range(num_chips - 1, -1, -1):
        for c in range(a + 1, num_chips):
            if (depends[a, c >> 6] >> uint64(c & 63)) & uint64(1):
                for w in range(num_words):
                    further[a, w] |= depends[c, w]
                    if problem.triangle == TRIANGLE_LONGEST_PATH:
                        further[a, w] |= further[c, w]
        for w in range(num_words):
            if depends[a, w] & further[a, w]:
                return True
    return False


Plans = IntArray
Legal = BoolArray


@dataclass(frozen=True, eq=False)
class PlanRules:
    """The rules of a graph on a target."""

    graph: Graph
    problem: PlacementProblem
    roles: LoopRoles
    has_route: BoolArray | None  # [D, D]; None if every permitted transfer has a route
    any_order: bool  # whether dataflow must be acyclic, but in any order of the chips

    def are_kept(self, placement: Plans, order: Plans, fusion_group: Plans) -> Legal:
        """Returns [B] True where a plan ([B, N] each) breaks no rule; ``B`` is 1 or more.

        Args:
          placement: chips of the target.
          order: permutations of the ops.
        """
        return (
            (broken_rules(self.problem, placement) == NONE)
            & self._are_topological(order)
            & self._are_loops(placement, order, fusion_group)
            & self._are_routed(placement)
            & self._are_acyclic(placement)
        )

    def _are_topological(self, order: Plans) -> Legal:
        place = np.empty_like(order)
        np.put_along_axis(place, order, np.arange(order.shape[1], dtype=np.int32)[None], axis=1)
        return _all(place[:, self.graph.edge_src] < place[:, self.graph.edge_dst])

    def _are_loops(self, placement: Plans, order: Plans, fusion_group: Plans) -> Legal:
        """Kernels are stretches of the order on one chip, and loop nests (:func:`is_one_loop`)."""
        group = np.take_along_axis(fusion_group, order, axis=1)
        chip = np.take_along_axis(placement, order, axis=1)
        role, elements = self.roles.role[order], self.roles.loop_elements[order]
        joins = group[:, 1:] == group[:, :-1]  # the op before it in one kernel
        may_join = (
            (chip[:, 1:] == chip[:, :-1])
            & (elements[:, 1:] == elements[:, :-1])
            & (role[:, :-1] != REDUCTION)
            & (role[:, :-1] != ALONE)
            & (role[:, 1:] != ALONE)
        )
        starts = np.ones(group.shape, dtype=np.bool_)
        starts[:, 1:] = ~joins
        first = np.flatnonzero(starts)  # place of each stretch's first op, over all plans
        return (
            _all(may_join | ~joins)
            & _are_stretches(group, starts)
            & _hold_at_most(MAX_GROUP_OPS, first, np.ones_like(starts))
            & _hold_at_most(1, first, role == MATRIX_LOOP)
        )

    def _are_routed(self, placement: Plans) -> Legal:
        if self.has_route is None:
            return np.ones(len(placement), dtype=np.bool_)
        source, reader = placement[:, self.graph.edge_src], placement[:, self.graph.edge_dst]
        return _all(self.has_route[source, reader])

    def _are_acyclic(self, placement: Plans) -> Legal:
        """Repeatedly removes chips that read from no remaining chip; a plan is acyclic if none remain."""
        kept = np.ones(len(placement), dtype=np.bool_)
        if not self.any_order:
            return kept
        num_chips = self.problem.num_chips
        reads = np.zeros((len(placement), num_chips, num_chips), dtype=np.bool_)
        rows = np.arange(len(placement))[:, None]
        reads[rows, placement[:, self.graph.edge_dst], placement[:, self.graph.edge_src]] = True
        reads[:, range(num_chips), range(num_chips)] = False
        left = np.ones((len(placement), num_chips), dtype=np.bool_)
        for _ in range(num_chips):
            left &= (reads & left[:, None, :]).any(axis=2)
        return _all(~left)


def plan_rules(graph: Graph, target: Target) -> PlanRules:
    """The rules of ``graph`` on ``target``."""
    topology, chips = target.topology, range(target.num_chips)
    has_route = None
    # A chain has no backward routes, but placements that go forward do not need any.
    if topology.kind != "ring" and not target.goes_forward:
        has_route = np.array([[topology.has_route(a, b) for b in chips] for a in chips])
    problem = placement_problem(graph, target)._replace(acyclic=target.goes_forward)
    any_order = target.constraints.acyclic and not target.goes_forward
    return PlanRules(graph, problem, loop_roles(graph, target.kernel_patterns), has_route, any_order)


def _are_stretches(group: Plans, starts: Legal) -> Legal:
    """[B] True where no group of the order [B, N] starts twice."""
    is_one_stretch = _all(group[:, 1:] >= group[:, :-1])  # nothing comes again where all ascend
    other = np.flatnonzero(~is_one_stretch)
    in_groups = np.sort(group[other], axis=1)
    num_groups = 1 + (in_groups[:, 1:] != in_groups[:, :-1]).sum(axis=1)
    is_one_stretch[other] = starts[other].sum(axis=1) == num_groups
    return is_one_stretch


def _hold_at_most(limit: int, first: LongArray, counted: Legal) -> Legal:
    """[B] True where no stretch of the order holds more ops that count ([B, N])."""
    held = np.add.reduceat(counted.ravel(), first, dtype=np.int64)
    is_kept = np.ones(len(counted), dtype=np.bool_)
    is_kept[first[held > limit] // counted.shape[1]] = False
    return is_kept


def _all(kept: Legal) -> Legal:
    """[B] True where the whole row is."""
    rows: Legal = np.logical_and.reduce(kept, axis=1)
    return rows
