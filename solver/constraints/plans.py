"""Where searches begin under user constraints: placements that keep them, or why there is none.

The propagation engine repairs placements that a search would like (a sliced plan) and draws
others; what it cannot place by kernels it places by ops, and fuses on each chip afterwards. The
last problem it tries leaves out all that kernels, relays and clones may change, so that a proof
there holds for every plan: a conflict. Axes: ``S`` starts, ``N`` ops, ``U`` units, ``D`` chips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env.cost import CostTables, cost_tables
from go_opt.env.kernels.fusion import greedy_fusion, loop_roles
from go_opt.solver.constraints.batch_filter import ConstraintFilter
from go_opt.solver.constraints.limits import loosest_limits
from go_opt.solver.constraints.problem import (
    ConstrainedProblem,
    conflict_sentence,
    problem_under,
    smallest_conflict,
)
from go_opt.solver.copies.relays import needed_relays
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.passing import Passing
from go_opt.solver.problem.problem import NO_SKIP_OFF, TRIANGLE_OFF, PlacementProblem
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.propagation.mode_kernels import CONFLICT
from go_opt.solver.propagation.modes import MAX_BACKTRACKS, fix
from go_opt.solver.propagation.propagators.tables import Limits

# A backtrack costs more the larger the graph is; behind the engine stands the adjacent core.
BACKTRACKS_OF_UNITS: Final = 60_000
LEAST_BACKTRACKS: Final = 10


@dataclass(frozen=True, eq=False)
class ConstrainedStarts:
    """One of three endings: starts; a conflict; or the limit of the search."""

    asked: OpConstraints
    placement: IntArray  # [S, N] no two alike
    order: IntArray  # [S, N] topological; ops of a kernel stand next to each other
    fusion_group: IntArray  # [S, N]
    conflict: tuple[UserConstraint, ...] | None  # None: no proof; empty: the target's own rules
    backtracks: int  # of the engine, in all

    @property
    def limit_reached(self) -> bool:
        """Whether the search ended without a placement and without a proof."""
        return self.conflict is None and len(self.placement) == 0

    def why_none(self) -> str:
        """One sentence on why there is no start."""
        if self.conflict is not None:
            return conflict_sentence(self.asked.graph, self.asked.target, self.conflict)
        return (
            f"no placement that keeps the {len(self.asked.constraints)} constraints was found on "
            f"{self.asked.target.name} within {self.backtracks} backtracks, and none is proven impossible."
        )


def constrained_starts(
    asked: OpConstraints,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: Passing,
    guides: Sequence[IntArray] = (),
    fusion_is_open: bool = True,
    num_starts: int = 4,
    seed: int = 0,
) -> ConstrainedStarts:
    """Placements that keep ``asked`` and the target's rules but memory.

    Args:
      order: [N] topological; the ops of each kernel stand next to each other.
      fusion_group: [N] kernels to start with (:func:`go_opt.solver.constraints.fusion.constrained_fusion`).
      passing: ``adjacent`` keeps the target's own triangle rule; ``relayed`` and ``free`` have none.
      guides: placements ([N] each) to stay close to, as far as they can be kept.
      fusion_is_open: whether other kernels may be used where these cannot be placed.
      num_starts: sought; there may be fewer.
    """
    backtracks, is_proven = 0, False
    for case in _cases(asked, fusion_group, passing, fusion_is_open):
        found, is_proven, used = _place(case.problem, guides, num_starts, seed)
        backtracks += used
        starts = [_start(asked, order, case.kernels, placement) for placement in found]
        kept = [start for start in starts if _is_kept(asked, passing, *start)]
        if kept:
            placement, along, group = (np.stack(column) for column in zip(*kept, strict=True))
            return ConstrainedStarts(asked, placement, along, group, None, backtracks)
    none = np.zeros((0, asked.graph.num_ops), np.int32)
    conflict = None
    if is_proven:
        conflict = smallest_conflict(asked, lambda fewer: _loosest(fewer, passing, fusion_is_open))
    return ConstrainedStarts(asked, none, none, none, conflict, backtracks)


def constrained_tables(asked: OpConstraints) -> CostTables:
    """Cost tables of a target each of whose chips is a kind of its own, which runs what is allowed there.

    So whatever places by these tables keeps pins and forbids.
    """
    tables = cost_tables(asked.graph, asked.target)
    kind = tables.chip_kind
    return tables._replace(
        op_s=tables.op_s[kind],
        measured_s=tables.measured_s[kind],
        can_run=np.ascontiguousarray(asked.allowed.T),
        chip_kind=np.arange(tables.num_chips, dtype=np.int32),
        sram_s_per_byte=tables.sram_s_per_byte[kind],
        kernel_overhead_s=tables.kernel_overhead_s[kind],
        dma_setup_s=tables.dma_setup_s[kind],
        dependency_s=tables.dependency_s[kind],
        pays_transfers=tables.pays_transfers[kind],
    )


class _Case(NamedTuple):
    problem: ConstrainedProblem
    kernels: IntArray | None  # [N]; None: ops are fused when they have their chips


def _cases(
    asked: OpConstraints, fusion_group: IntArray, passing: Passing, fusion_is_open: bool
) -> Iterator[_Case]:
    """Problems to find a start in; the last one is no narrower than any plan's."""
    yield _Case(problem_under(asked, fusion_group, change=_rules(passing)), fusion_group)
    if fusion_is_open and len(np.unique(fusion_group)) < asked.graph.num_ops:
        yield _Case(problem_under(asked, change=_rules(passing)), None)
    yield _Case(_loosest(asked, passing, fusion_is_open), None if fusion_is_open else fusion_group)


def _loosest(asked: OpConstraints, passing: Passing, fusion_is_open: bool) -> ConstrainedProblem:
    """What every plan keeps, whatever its kernels, relays and clones: relays run on chips too."""

    def change(problem: PlacementProblem) -> PlacementProblem:
        no_skip = NO_SKIP_OFF if passing == "relayed" else problem.no_skip
        return _rules(passing)(problem)._replace(no_skip=no_skip)

    def limits(asked: OpConstraints, problem: PlacementProblem) -> Limits | None:
        return loosest_limits(
            asked, problem, fusion_is_open=fusion_is_open, clones_are_open=passing == "relayed"
        )

    return problem_under(asked, change=change, limits=limits)


def _rules(passing: Passing) -> Callable[[PlacementProblem], PlacementProblem]:
    """The target's rules with what passing does to the triangle rule."""

    def change(problem: PlacementProblem) -> PlacementProblem:
        return problem if passing == "adjacent" else problem._replace(triangle=TRIANGLE_OFF)

    return change


def _place(
    case: ConstrainedProblem, guides: Sequence[IntArray], num_starts: int, seed: int
) -> tuple[IntArray, bool, int]:
    """Placements of the ops ([S, N], distinct); whether there is proof of none; backtracks it took."""
    problem = case.problem
    _, first_op = np.unique(problem.unit_of_op, return_index=True)
    wanted = [guide[first_op] for guide in guides]
    wanted += [_spread(problem, problem.num_chips >> i) for i in range(max(num_starts - len(wanted), 1))]
    few = max(LEAST_BACKTRACKS, min(MAX_BACKTRACKS, BACKTRACKS_OF_UNITS // problem.num_units))
    tries = [fix(problem, np.array(wanted), seed=seed, max_backtracks=few, tables=case.tables)]
    if not tries[0].found.any() and case.max_backtracks > MAX_BACKTRACKS:
        last = np.array(wanted[-1:])
        tries.append(fix(problem, last, seed=seed, max_backtracks=case.max_backtracks, tables=case.tables))
    found = np.concatenate([tried.placement[tried.found] for tried in tries])
    _, distinct = np.unique(found, axis=0, return_index=True)
    is_proven = any((tried.ending == CONFLICT).any() for tried in tries)
    backtracks = sum(tried.statistics.backtracks for tried in tries)
    return found[np.sort(distinct)][:, problem.unit_of_op], is_proven, backtracks


def _spread(problem: PlacementProblem, num_chips: int) -> IntArray:
    """[U] units along their order in shares of equal number on so many chips, or on one."""
    chips = np.empty(problem.num_units, np.int32)
    chips[problem.topological] = np.arange(problem.num_units) * max(num_chips, 1) // problem.num_units
    return chips


def _start(
    asked: OpConstraints, order: IntArray, kernels: IntArray | None, placement: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Placement, order and kernels of a start."""
    along = order
    if asked.target.goes_forward:
        along = order[np.argsort(placement[order], kind="stable")]
    if kernels is not None:
        return placement, along, kernels
    group = greedy_fusion(loop_roles(asked.graph), along)[along]
    chip = placement[along]
    starts = np.concatenate([[True], (group[1:] != group[:-1]) | (chip[1:] != chip[:-1])])
    split = np.empty_like(along)
    split[along] = np.cumsum(starts) - 1
    return placement, along, split


def _is_kept(
    asked: OpConstraints, passing: Passing, placement: IntArray, order: IntArray, fusion_group: IntArray
) -> bool:
    """Whether the start keeps the limits of its own kernels, and leaves no chip without one."""
    is_kept = ConstraintFilter(asked, fusion_group, passing).are_kept(placement[None])[0]
    rule = asked.target.constraints.no_skip
    if rule == "off" or not is_kept:
        return bool(is_kept)
    used = np.zeros(asked.target.num_chips, np.bool_)
    used[placement] = True
    if passing == "relayed":
        _, relay_chips = needed_relays(
            cost_tables(asked.graph, asked.target), placement, asked.target.constraints.triangle
        )
        used[relay_chips] = True
    last = asked.target.num_chips - 1 if rule == "all" else int(np.flatnonzero(used)[-1])
    return bool(used[: last + 1].all())
