"""User constraints: pin, forbid, colocate, limits of a chip; and their three endings.

A search with user constraints ends with valid placements, with a conflict (a small set of
constraints that cannot hold together beside the target's rules), or at its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.env.target import Target
from go_opt.errors import InfeasibleError, InvalidInputError, PlanError
from go_opt.graph import Graph
from go_opt.solver.adjacent_orders import Visiting
from go_opt.solver.constraint_limits import chip_limits
from go_opt.solver.mode_kernels import CONFLICT
from go_opt.solver.modes import MAX_BACKTRACKS, Placements, sample
from go_opt.solver.op_patterns import match_ops
from go_opt.solver.problem import PlacementProblem, placement_problem
from go_opt.solver.propagators.tables import RuleTables, rule_tables
from go_opt.solver.user_constraints import ChipLimit, Colocate, Forbid, Pin, UserConstraint

SMALL_UNITS: Final = 200
SMALL_BACKTRACKS: Final = 200_000


@dataclass(frozen=True, eq=False)
class ConstrainedProblem:
    """A placement problem with user constraints."""

    problem: PlacementProblem  # colocated kernels are one unit
    tables: RuleTables
    constraints: tuple[UserConstraint, ...]


@dataclass(frozen=True, eq=False)
class ConstrainedPlacements:
    """One of three endings: ``placements.found`` somewhere; a conflict; or the limit."""

    problem: PlacementProblem
    placements: Placements
    conflict: tuple[UserConstraint, ...] | None  # None: no proof; empty: the target's own rules

    @property
    def limit_reached(self) -> bool:
        """Whether the search ended without a placement and without a proof."""
        return self.conflict is None and not bool(self.placements.found.any())

    @property
    def op_placement(self) -> NDArray[np.int32]:
        """[S, N] chip of each op; -1 in rows that were not found."""
        return self.placements.placement[:, self.problem.unit_of_op]


def constrained_problem(
    graph: Graph,
    target: Target,
    constraints: Sequence[UserConstraint],
    fusion_group: NDArray[np.int32] | None = None,
) -> ConstrainedProblem:
    """``graph`` on ``target`` under ``constraints``, by kernels, or by ops where none are given.

    Raises:
      InvalidInputError: a pattern matches no op, a chip is unknown, or colocated ops have
        others between them.
      InfeasibleError: pins and forbids leave an op no chip.
    """
    constraints = tuple(constraints)
    problem = _colocated(graph, target, constraints, fusion_group)
    allowed = _allowed(graph, problem, constraints)
    limits = chip_limits(graph, target, problem, constraints, fusion_group)
    return ConstrainedProblem(problem, rule_tables(problem, allowed=allowed, limits=limits), constraints)


def sample_constrained(
    graph: Graph,
    target: Target,
    constraints: Sequence[UserConstraint],
    *,
    fusion_group: NDArray[np.int32] | None = None,
    log_probs: NDArray[np.float64] | None = None,
    seed: int = 0,
    num_samples: int = 1,
    order: Visiting = "random",
    max_backtracks: int | None = None,
) -> ConstrainedPlacements:
    """SAMPLE under user constraints; errors as of :func:`constrained_problem`.

    Args:
      log_probs: [U, D] of the constrained problem's units; uniform where not given.
      max_backtracks: for each sample; by default ``SMALL_BACKTRACKS`` up to ``SMALL_UNITS``
        units, ``MAX_BACKTRACKS`` above.
    """
    case = constrained_problem(graph, target, constraints, fusion_group)
    limit = _backtracks(case.problem) if max_backtracks is None else max_backtracks
    rows = np.zeros((case.problem.num_units, target.num_chips)) if log_probs is None else log_probs
    drawn = sample(
        case.problem, rows, seed=seed, num_samples=num_samples, order=order,
        max_backtracks=limit, tables=case.tables,
    )  # fmt: skip
    conflict = None
    if (drawn.ending == CONFLICT).any():
        conflict = _conflict(graph, target, case.constraints, fusion_group, limit)
    return ConstrainedPlacements(case.problem, drawn, conflict)


def conflict_sentence(conflict: Sequence[UserConstraint], target: Target) -> str:
    """One sentence on why nothing is valid."""
    if not conflict:
        return f"no placement obeys the rules of {target.name}, whatever the constraints."
    names = " and ".join(map(str, conflict))
    return f"no placement obeys {names}, beside the rules of {target.name}."


def _backtracks(problem: PlacementProblem) -> int:
    return SMALL_BACKTRACKS if problem.num_units <= SMALL_UNITS else MAX_BACKTRACKS


def _conflict(
    graph: Graph,
    target: Target,
    constraints: tuple[UserConstraint, ...],
    fusion_group: NDArray[np.int32] | None,
    limit: int,
) -> tuple[UserConstraint, ...]:
    """Leave constraints out one by one, as long as a proof remains (deletion filter).

    What is left is in conflict; where the search proves every case within its limit, no
    constraint of it can be left out.
    """
    kept = list(constraints)
    for constraint in constraints:
        fewer = [other for other in kept if other is not constraint]
        if _is_proven(graph, target, fewer, fusion_group, limit):
            kept = fewer
    return tuple(kept)


def _is_proven(
    graph: Graph,
    target: Target,
    constraints: Sequence[UserConstraint],
    fusion_group: NDArray[np.int32] | None,
    limit: int,
) -> bool:
    case = constrained_problem(graph, target, constraints, fusion_group)
    rows = np.zeros((case.problem.num_units, target.num_chips))
    drawn = sample(case.problem, rows, max_backtracks=limit, tables=case.tables)
    return bool((drawn.ending == CONFLICT).any())


def _colocated(
    graph: Graph,
    target: Target,
    constraints: tuple[UserConstraint, ...],
    fusion_group: NDArray[np.int32] | None,
) -> PlacementProblem:
    group = np.arange(graph.num_ops, dtype=np.int32) if fusion_group is None else fusion_group.copy()
    problem = placement_problem(graph, target, group)
    for constraint in constraints:
        if isinstance(constraint, Colocate):
            together = np.unique(group[match_ops(graph, constraint.ops, constraint)])
            group[np.isin(group, together)] = together[0]
            try:
                problem = placement_problem(graph, target, group)
            except PlanError:
                raise InvalidInputError(
                    f"{constraint} makes a cycle of groups: other ops lie between its ops, so they "
                    "would have to share the chip; colocate those too.",
                    field="constraints",
                ) from None
    return problem


def _allowed(
    graph: Graph, problem: PlacementProblem, constraints: tuple[UserConstraint, ...]
) -> NDArray[np.bool_]:
    """[U, D] what kinds, pins and forbids leave open; at least one chip each."""
    allowed = problem.can_run[problem.chip_kind].T.copy()
    touched: dict[int, list[UserConstraint]] = {}
    for constraint in constraints:
        chips = _open_chips(constraint, problem.num_chips)
        if isinstance(constraint, ChipLimit | Colocate):
            continue
        for op in match_ops(graph, constraint.ops, constraint):
            unit = int(problem.unit_of_op[op])
            allowed[unit] &= chips
            earlier = touched.setdefault(unit, [])
            earlier += [] if constraint in earlier else [constraint]
            if not allowed[unit].any():
                names = " and ".join(map(str, earlier))
                raise InfeasibleError(f"{names} leave op {graph.op_names[op]!r} no chip.")
    return allowed


def _open_chips(constraint: UserConstraint, num_chips: int) -> NDArray[np.bool_]:
    """[D] what one constraint leaves open to its ops."""
    chips: tuple[int, ...] = ()
    if isinstance(constraint, Pin | ChipLimit):
        chips = (constraint.chip,)
    elif isinstance(constraint, Forbid):
        chips = tuple(constraint.chips)
        if not chips:
            raise InvalidInputError(f"{constraint} forbids no chip.", field="constraints")
    for chip in chips:
        if not 0 <= chip < num_chips:
            raise InvalidInputError(
                f"{constraint} names chip {chip}; chips are 0 to {num_chips - 1}.", field="constraints"
            )
    is_named = np.zeros(num_chips, np.bool_)
    is_named[list(chips)] = True
    return ~is_named if isinstance(constraint, Forbid) else is_named
