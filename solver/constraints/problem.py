"""User constraints on a placement problem: pin, forbid, colocate, cut points, chip limits.

A search with user constraints has one of three results: valid placements; a conflict, which is a
small set of constraints that cannot all hold under the target's rules; or the search limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env.cost import kinds_that_run, why_not_on
from go_opt.env.target import Target
from go_opt.model.graph import Graph
from go_opt.solver.constraints.limits import chip_limits
from go_opt.solver.problem.op_constraints import OpConstraints, op_constraints
from go_opt.solver.problem.problem import PlacementProblem, placement_problem
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.propagation.modes import CONFLICT, MAX_BACKTRACKS, Placements, fix, sample
from go_opt.solver.propagation.propagators.tables import Limits, RuleTables, rule_tables
from go_opt.solver.propagation.search import Solver

SMALL_UNITS: Final = 200
SMALL_BACKTRACKS: Final = 200_000
# Budget in backtracks for making a conflict smaller; propagation is charged per unit.
PROOF_COST: Final = 5 * SMALL_BACKTRACKS
COST_OF_A_UNIT: Final = 24
MOST_NAMED: Final = 8  # in a sentence


@dataclass(frozen=True, eq=False)
class ConstrainedProblem:
    """A placement problem with user constraints."""

    problem: PlacementProblem  # kernels that must share a chip are one unit
    tables: RuleTables
    constraints: tuple[UserConstraint, ...]

    @property
    def max_backtracks(self) -> int:
        """The backtrack limit: enough for a proof if the problem is small."""
        return SMALL_BACKTRACKS if self.problem.num_units <= SMALL_UNITS else MAX_BACKTRACKS


@dataclass(frozen=True, eq=False)
class ConstrainedPlacements:
    """One of three results: some ``placements.found``; a conflict; or the search limit."""

    problem: PlacementProblem
    placements: Placements
    conflict: tuple[UserConstraint, ...] | None  # None: no proof; empty: the target's own rules

    @property
    def limit_reached(self) -> bool:
        """Whether the search ended without a placement and without a proof."""
        return self.conflict is None and not bool(self.placements.found.any())

    @property
    def op_placement(self) -> IntArray:
        """[S, N] chip of each op; -1 in rows without a placement."""
        return self.placements.placement[:, self.problem.unit_of_op]


def problem_under(
    requested: OpConstraints,
    fusion_group: IntArray | None = None,
    *,
    change: Callable[[PlacementProblem], PlacementProblem] = lambda problem: problem,
    limits: Callable[[OpConstraints, PlacementProblem], Limits | None] | None = None,
) -> ConstrainedProblem:
    """Returns the problem of placing kernels under constraints.

    Args:
      change: changes the target's rules.
      limits: returns the chip limits as arrays; by default those of ``fusion_group``'s kernels.
    """
    graph, target = requested.graph, requested.target
    group = np.arange(graph.num_ops, dtype=np.int32) if fusion_group is None else fusion_group
    units = requested.shared_chips(group)
    problem = placement_problem(graph, target, units, cycles_are_legal=not target.constraints.acyclic)
    problem = problem._replace(rise=_unit_rise(requested, problem), acyclic=target.goes_forward)
    problem = change(problem)
    allowed = np.ones((problem.num_units, problem.num_chips), np.bool_)
    np.logical_and.at(allowed, problem.unit_of_op, requested.allowed)
    allowed[_cut_units(requested, problem)] = False
    held = chip_limits(requested, problem, group) if limits is None else limits(requested, problem)
    tables = rule_tables(problem, allowed=allowed, limits=held)
    return ConstrainedProblem(problem, tables, requested.constraints)


def sample_constrained(
    graph: Graph,
    target: Target,
    constraints: Sequence[UserConstraint],
    *,
    fusion_group: IntArray | None = None,
    log_probs: FloatArray | None = None,
    seed: int = 0,
    num_samples: int = 1,
    max_backtracks: int | None = None,
) -> ConstrainedPlacements:
    """SAMPLE under user constraints.

    Args:
      log_probs: [U, D] of the constrained problem's units; uniform where not given.
      max_backtracks: for each sample; by default ``SMALL_BACKTRACKS`` up to ``SMALL_UNITS``
        units, ``MAX_BACKTRACKS`` above.

    Raises:
      InvalidInputError: a pattern matches no op, a chip is unknown, or a constraint needs ordered
        chips and the target has none.
    """
    requested = op_constraints(graph, target, constraints)
    case = problem_under(requested, fusion_group)
    rows = np.zeros((case.problem.num_units, target.num_chips)) if log_probs is None else log_probs
    drawn = sample(
        case.problem, rows, seed=seed, num_samples=num_samples,
        max_backtracks=case.max_backtracks if max_backtracks is None else max_backtracks,
        tables=case.tables,
    )  # fmt: skip
    conflict = None
    if (drawn.ending == CONFLICT).any():
        conflict = smallest_conflict(requested, lambda fewer: problem_under(fewer, fusion_group))
    return ConstrainedPlacements(case.problem, drawn, conflict)


def smallest_conflict(
    requested: OpConstraints, problem_of: Callable[[OpConstraints], ConstrainedProblem]
) -> tuple[UserConstraint, ...]:
    """Returns a small subset of ``requested`` that is still in conflict; ``requested`` must be in conflict.

    Bisection (QuickXplain, Junker, AAAI 2004). If the search proves every case within its limit,
    and ``PROOF_COST`` is enough, no constraint of the result can be left out.
    """
    left = PROOF_COST

    def is_proven(kept: list[int]) -> bool:
        nonlocal left
        if left <= 0:
            return False
        case = problem_of(requested.subset(sorted(kept)))
        is_conflict, backtracks = _prove(case)
        left -= backtracks + COST_OF_A_UNIT * case.problem.num_units
        return is_conflict

    def needed(kept: list[int], has_changed: bool, open_: list[int]) -> list[int]:
        """Returns the part of ``open_`` that a conflict needs in addition to ``kept``."""
        if has_changed and is_proven(kept):
            return []
        if len(open_) == 1:
            return open_
        first, second = open_[: len(open_) // 2], open_[len(open_) // 2 :]
        of_second = needed(kept + first, True, second)
        return needed(kept + of_second, bool(of_second), first) + of_second

    everything = list(range(len(requested.constraints)))
    if not everything or is_proven([]):
        return ()
    return requested.subset(sorted(needed([], False, everything))).constraints


def conflict_sentence(graph: Graph, target: Target, conflict: Sequence[UserConstraint]) -> str:
    """Returns one sentence that says why no placement is valid, given the constraints in ``conflict``."""
    if not conflict:
        able = "" if kinds_that_run(graph, target).all() else " with each op on a kind of chip that runs it"
        return f"no placement{able} obeys the rules of {target.name}, whatever the constraints."
    names = " and ".join(map(str, conflict[:MOST_NAMED]))
    if len(conflict) > MOST_NAMED:
        names += f" and {len(conflict) - MOST_NAMED} more constraints"
    nowhere = np.flatnonzero(~op_constraints(graph, target, conflict).allowed.any(axis=1))
    if len(nowhere):
        op = int(nowhere[0])
        unable = np.flatnonzero(~kinds_that_run(graph, target)[:, op])
        why = ", ".join(why_not_on(graph, target.kinds[q], op) for q in unable)
        sentence = f"{names} leave op {graph.op_names[op]!r} no chip of {target.name}"
        return f"{sentence}: {why}." if why else f"{sentence}."
    return f"no placement obeys {names}, beside the rules of {target.name}."


def _prove(case: ConstrainedProblem) -> tuple[bool, int]:
    """Returns whether infeasibility is proven, and the backtracks used.

    Searches if the problem is small, otherwise only propagates.
    """
    if case.problem.num_units > SMALL_UNITS:
        return Solver(case.tables).is_exhausted, 0
    proposal = np.zeros((1, case.problem.num_units), np.int32)
    fixed = fix(case.problem, proposal, max_backtracks=case.max_backtracks, tables=case.tables)
    return bool((fixed.ending == CONFLICT).any()), fixed.backtracks


def _cut_units(requested: OpConstraints, problem: PlacementProblem) -> IntArray:
    """Returns the units that contain a required cut."""
    unit, at_cut = problem.unit_of_op, requested.rise > 0
    source, reader = unit[requested.graph.edge_src[at_cut]], unit[requested.graph.edge_dst[at_cut]]
    return source[source == reader]


def _unit_rise(requested: OpConstraints, problem: PlacementProblem) -> LongArray:
    """Returns the least ``f(v) - f(u)`` [E] of the problem's edges, parallel to ``successor``."""
    at_cut = requested.rise > 0
    unit = problem.unit_of_op.astype(np.int64)
    source = np.repeat(np.arange(problem.num_units), np.diff(problem.successor_ptr))
    edges = source * problem.num_units + problem.successor
    cuts = unit[requested.graph.edge_src[at_cut]] * problem.num_units + unit[requested.graph.edge_dst[at_cut]]
    return np.isin(edges, cuts).astype(np.int64)
