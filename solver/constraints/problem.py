"""User constraints on a placement problem: pin, forbid, colocate, cut points, chip limits.

A search with user constraints has one of three results: valid placements; a conflict, which is a
small set of constraints that cannot all hold under the target's rules; or the search limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, IntArray, LongArray, row_pointers
from go_opt.env.cost.tables import cost_tables, kinds_that_run, why_not_on
from go_opt.env.kernels.fusion import MAX_GROUP_OPS
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.env.target import Target
from go_opt.model.graph import WEIGHT, Graph
from go_opt.solver.problem.op_constraints import OpConstraints, op_constraints
from go_opt.solver.problem.problem import PlacementProblem, placement_problem
from go_opt.solver.problem.user_constraints import LIMITS, ChipLimit, UserConstraint
from go_opt.solver.propagation.adjacent import CONFLICT, Placements
from go_opt.solver.propagation.modes import MAX_BACKTRACKS, fix, sample
from go_opt.solver.propagation.propagators.tables import RuleTables, rule_tables
from go_opt.solver.propagation.search import Solver

SMALL_UNITS: Final = 200
SMALL_BACKTRACKS: Final = 200_000
# Budget in backtracks for making a conflict smaller; propagation is charged per unit.
PROOF_COST: Final = 5 * SMALL_BACKTRACKS
COST_OF_A_UNIT: Final = 24
MOST_NAMED: Final = 8  # in a sentence
# A limit: the chip; most and least bytes, seconds or ops; [U] each unit's own amount; whether weights count.
LimitRow = tuple[int, float, float, FloatArray, bool]


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


def problem_under(
    requested: OpConstraints,
    fusion_group: IntArray | None = None,
    *,
    change: Callable[[PlacementProblem], PlacementProblem] = lambda problem: problem,
    limits: Callable[[OpConstraints, PlacementProblem], list[LimitRow]] | None = None,
) -> ConstrainedProblem:
    """Returns the problem of placing kernels under constraints.

    Args:
      change: changes the target's rules.
      limits: returns the chip limits; by default those of ``fusion_group``'s kernels.
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
    tables = _with_limits(rule_tables(problem, allowed=allowed), held, requested, problem)
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
) -> Placements:
    """SAMPLE under user constraints: placements [S, N] of the ops, or a conflict.

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
    return drawn._replace(placement=drawn.placement[:, case.problem.unit_of_op], conflict=conflict)


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


def chip_limits(
    requested: OpConstraints, problem: PlacementProblem, fusion_group: IntArray
) -> list[LimitRow]:
    """Returns the limits of ``requested`` for the kernels of ``fusion_group``."""
    if not requested.limits and not len(requested.stage_chips):
        return []
    tables = cost_tables(requested.graph, requested.target)
    kernel_of = placement_problem(requested.graph, requested.target, fusion_group).unit_of_op
    kernel_s = kernel_seconds(tables, kernel_of)
    unit_of_kernel = np.zeros(kernel_s.shape[1], np.int64)
    unit_of_kernel[kernel_of] = problem.unit_of_op
    unit_s = _summed(kernel_s, unit_of_kernel, problem.num_units)
    kernels = np.bincount(unit_of_kernel, minlength=problem.num_units).astype(np.float64)
    return [*_rows(requested.limits, problem, unit_s, kernels), *_op_on_each_stage(requested, problem)]


def loosest_limits(
    requested: OpConstraints,
    problem: PlacementProblem,
    *,
    fusion_is_open: bool,
    relays_are_open: bool,
    replicates: bool,
) -> list[LimitRow]:
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
    return [
        *_rows(at_most, problem, _summed(least_s, problem.unit_of_op, problem.num_units), least_kernels),
        *_rows(at_least, problem, _summed(most_s, problem.unit_of_op, problem.num_units), ops),
        *_op_on_each_stage(requested, problem),
    ]


def _rows(
    wanted: Sequence[ChipLimit], problem: PlacementProblem, unit_s: FloatArray, kernels: FloatArray
) -> Iterator[LimitRow]:
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


def _op_on_each_stage(requested: OpConstraints, problem: PlacementProblem) -> Iterator[LimitRow]:
    ones = np.ones(problem.num_units)
    return ((int(chip), math.inf, 1.0, ones, False) for chip in requested.stage_chips)


def _with_limits(
    tables: RuleTables, rows: Sequence[LimitRow], requested: OpConstraints, problem: PlacementProblem
) -> RuleTables:
    """Returns ``tables`` with these limits, and the weights that each unit reads as shared items."""
    if not rows:
        return tables
    chip, most, least, amount, shares = zip(*rows, strict=True)
    cost = cost_tables(requested.graph, requested.target)
    is_weight = cost.tensor_kind[cost.reader_tensor] == WEIGHT
    unit = problem.unit_of_op[cost.reader_op[is_weight]]
    pairs = np.unique(np.stack([unit, cost.reader_tensor[is_weight]], axis=1), axis=0).reshape(-1, 2)
    return tables._replace(
        limit_chip=np.array(chip, np.int64),
        limit_most=np.array(most, np.float64),
        limit_least=np.array(least, np.float64),
        limit_amount=np.array(amount, np.float64),
        limit_shares=np.array(shares, np.bool_),
        item_ptr=row_pointers(pairs[:, 0], problem.num_units),
        item=pairs[:, 1].astype(np.int64),
        item_amount=cost.tensor_bytes.astype(np.float64),
    )


def _summed(seconds: FloatArray, unit_of: NDArray, num_units: int) -> FloatArray:
    """Returns the seconds [Q, U] of ops or kernels ([Q, any]), summed by unit."""
    return np.stack([np.bincount(unit_of, weights=row, minlength=num_units) for row in seconds])
