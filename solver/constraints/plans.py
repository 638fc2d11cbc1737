"""Start placements for searches under user constraints, or the reason why there is none.

The propagation engine repairs preferred placements (such as a sliced plan) and makes others.
If it cannot place kernels, it places ops and fuses them on each chip afterwards. The last
problem omits every rule that kernels and relays may change, so that a proof of
infeasibility (a conflict) holds for every plan. Axes: ``S`` starts, ``N`` ops, ``U`` units,
``D`` chips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env.cost.tables import CostTables, cost_tables
from go_opt.env.kernels.fusion import fused_within_chips, loop_roles
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.plan import Candidate
from go_opt.solver.constraints.problem import (
    ConstrainedProblem,
    LimitRow,
    conflict_sentence,
    loosest_limits,
    problem_under,
    smallest_conflict,
)
from go_opt.solver.copies.relays import needed_relays, relays_of_arrays
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.problem import (
    NO_SKIP_OFF,
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    TRIANGLE_OFF,
    PlacementProblem,
)
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.propagation.adjacent import CONFLICT
from go_opt.solver.propagation.modes import MAX_BACKTRACKS, fix
from go_opt.solver.verify.verifier import verify

# Backtracks cost more in larger graphs; the adjacent core is the fallback of the engine.
BACKTRACKS_OF_UNITS: Final = 60_000
LEAST_BACKTRACKS: Final = 10
STARTS: Final = 4  # to try for
# Of the rules of the verifier, those that decide whether other kernels are tried.
KEPT: Final = ("pin", "forbid", "colocate", "cut", "limit", "stages", "no_skip")


@dataclass(frozen=True, eq=False)
class ConstrainedStarts:
    """One of three results: starts; a conflict; or the limit of the search."""

    requested: OpConstraints
    starts: tuple[Candidate, ...]  # no two placements alike
    conflict: tuple[UserConstraint, ...] | None  # None: no proof; empty: the target's own rules
    backtracks: int  # total, of the engine

    @property
    def limit_reached(self) -> bool:
        """Whether the search ended without a placement and without a proof."""
        return self.conflict is None and not self.starts

    def why_none(self) -> str:
        """Returns one sentence that says why there is no start."""
        if self.conflict is not None:
            return conflict_sentence(self.requested.graph, self.requested.target, self.conflict)
        number = len(self.requested.constraints)
        kept = f" that keeps the {number} constraints" if number else ""
        return (
            f"no placement{kept} was found on {self.requested.target.name} within {self.backtracks} "
            "backtracks, and none is proven impossible."
        )


def constrained_starts(
    requested: OpConstraints,
    order: IntArray,
    fusion_group: IntArray,
    *,
    forwarding: ForwardingMode,
    guides: Sequence[IntArray] = (),
    fusion_is_open: bool = True,
    replicates: bool = False,
    seed: int = 0,
) -> ConstrainedStarts:
    """Returns placements that keep ``requested`` and the target's rules except memory.

    Args:
      order: [N] topological; the ops of each kernel are adjacent.
      fusion_group: [N] kernels to start with (:func:`constrained_fusion`).
      forwarding: ``adjacent`` keeps the target's own triangle rule; ``relayed`` and ``free`` have none.
      guides: placements ([N] each) that the starts follow as far as possible.
      fusion_is_open: whether other kernels may be used if these cannot be placed.
      replicates: whether stages may be replicated: chips without an op of their own are then no conflict.
    """
    backtracks, is_proven = 0, False
    for problem, kernels in _cases(requested, fusion_group, forwarding, fusion_is_open, replicates):
        found, is_proven, used = _place(problem, guides, seed)
        backtracks += used
        starts = (_start(requested, order, kernels, placement) for placement in found)
        kept = tuple(start for start in starts if _is_kept(requested, forwarding, start))
        if kept:
            return ConstrainedStarts(requested, kept, None, backtracks)
    conflict = None
    if is_proven:
        conflict = smallest_conflict(
            requested, lambda fewer: _loosest(fewer, forwarding, fusion_is_open, replicates)
        )
    return ConstrainedStarts(requested, (), conflict, backtracks)


def constrained_fusion(requested: OpConstraints, order: IntArray, fusion_group: IntArray) -> IntArray:
    """Returns ``fusion_group`` [N] with kernels split where constraints force their ops apart.

    Along ``order`` a kernel continues while some chip is open to all its ops and no cut point
    precedes the next op. Contiguous parts of a legal kernel are legal kernels.
    """
    kernel = number_kernels(order, fusion_group)[order]
    starts = np.diff(kernel, prepend=-1) > 0
    cuts_into = np.zeros(len(order), np.bool_)  # [N] ops that a cut point stands before
    at_cut = requested.rise > 0
    cuts_into[requested.graph.edge_dst[at_cut]] = True
    is_bound = cuts_into | ~requested.allowed.all(axis=1)
    first = np.append(np.flatnonzero(starts), len(order))
    for k in np.unique(kernel[is_bound[order]]):
        begin, end = first[k], first[k + 1]
        starts[begin:end] = _starts_of_parts(requested, order[begin:end], cuts_into)
    split = np.empty_like(fusion_group)
    split[order] = np.cumsum(starts) - 1
    return split


def _starts_of_parts(requested: OpConstraints, ops: IntArray, cuts_into: BoolArray) -> BoolArray:
    """Returns True for each op where a part of the kernel ``ops`` starts."""
    starts = np.zeros(len(ops), np.bool_)
    part, open_chips = set[int](), np.zeros_like(requested.allowed[0])
    for i, op in enumerate(ops.tolist()):
        common = open_chips & requested.allowed[op]
        if not common.any() or (cuts_into[op] and _is_cut(requested, part, op)):
            starts[i] = True
            part, common = set(), requested.allowed[op]
        part.add(op)
        open_chips = common
    starts[0] = True
    return starts


def _is_cut(requested: OpConstraints, part: set[int], op: int) -> bool:
    """Returns whether a cut point separates one of ``part`` from ``op``."""
    into = (requested.graph.edge_dst == op) & (requested.rise > 0)
    return not part.isdisjoint(requested.graph.edge_src[into].tolist())


def constrained_tables(requested: OpConstraints) -> CostTables:
    """Returns cost tables in which each chip is a separate kind that runs only the ops allowed there.

    So any method that places by these tables keeps pins and forbids. Where all ops may be on all chips of
    the kinds that run them, these are the tables of the graph.
    """
    tables = cost_tables(requested.graph, requested.target)
    kind = tables.chip_kind
    if (tables.can_run[kind] == requested.allowed.T).all():
        return tables
    return tables._replace(
        op_s=tables.op_s[kind],
        measured_s=tables.measured_s[kind],
        can_run=np.ascontiguousarray(requested.allowed.T),
        chip_kind=np.arange(tables.num_chips, dtype=np.int32),
        sram_s_per_byte=tables.sram_s_per_byte[kind],
        kernel_overhead_s=tables.kernel_overhead_s[kind],
        dma_setup_s=tables.dma_setup_s[kind],
        dependency_s=tables.dependency_s[kind],
        pays_transfers=tables.pays_transfers[kind],
    )


def _cases(
    requested: OpConstraints,
    fusion_group: IntArray,
    forwarding: ForwardingMode,
    fusion_is_open: bool,
    replicates: bool,
) -> Iterator[tuple[ConstrainedProblem, IntArray | None]]:
    """Yields problems in which to find a start; the last is a relaxation of every plan's problem.

    Each with its kernels [N], or None: ops are fused after placement.
    """
    yield problem_under(requested, fusion_group, change=_rules(forwarding)), fusion_group
    if fusion_is_open and len(np.unique(fusion_group)) < requested.graph.num_ops:
        yield problem_under(requested, change=_rules(forwarding)), None
    loosest = _loosest(requested, forwarding, fusion_is_open, replicates)
    yield loosest, None if fusion_is_open else fusion_group


def _loosest(
    requested: OpConstraints, forwarding: ForwardingMode, fusion_is_open: bool, replicates: bool
) -> ConstrainedProblem:
    """Returns the rules that every plan keeps, for any kernels, relays and replicas.

    Copies may occupy chips that ops skip, so the no-skip rule is dropped for them. Replicas may lie between
    neighbouring stages; those still keep the longest-path rule. Stages are on the first chips only if no chip
    is skipped and no stage is replicated; otherwise their number is dropped.
    """
    relays_are_open = forwarding == "relayed"
    uses_copies = replicates or relays_are_open
    skips = uses_copies or requested.target.constraints.no_skip == "off"
    requested = requested.without_stages() if skips or fusion_is_open else requested

    def change(problem: PlacementProblem) -> PlacementProblem:
        problem = _rules(forwarding)(problem)
        if replicates and problem.triangle == TRIANGLE_ADJACENT:
            problem = problem._replace(triangle=TRIANGLE_LONGEST_PATH)
        return problem._replace(no_skip=NO_SKIP_OFF) if uses_copies else problem

    def limits(requested: OpConstraints, problem: PlacementProblem) -> list[LimitRow]:
        return loosest_limits(
            requested,
            problem,
            fusion_is_open=fusion_is_open,
            relays_are_open=relays_are_open,
            replicates=replicates,
        )

    return problem_under(requested, change=change, limits=limits)


def _rules(forwarding: ForwardingMode) -> Callable[[PlacementProblem], PlacementProblem]:
    """Returns a change that drops the triangle rule unless ``forwarding`` is ``adjacent``."""

    def change(problem: PlacementProblem) -> PlacementProblem:
        return problem if forwarding == "adjacent" else problem._replace(triangle=TRIANGLE_OFF)

    return change


def _place(case: ConstrainedProblem, guides: Sequence[IntArray], seed: int) -> tuple[IntArray, bool, int]:
    """Returns distinct placements of the ops [S, N], whether infeasibility is proven, and the backtracks."""
    problem = case.problem
    _, first_op = np.unique(problem.unit_of_op, return_index=True)
    wanted = [guide[first_op] for guide in guides]
    wanted += [_spread(problem, problem.num_chips >> i) for i in range(max(STARTS - len(wanted), 1))]
    few = max(LEAST_BACKTRACKS, min(MAX_BACKTRACKS, BACKTRACKS_OF_UNITS // problem.num_units))
    tries = [fix(problem, np.array(wanted), seed=seed, max_backtracks=few, tables=case.tables)]
    if not tries[0].found.any() and case.max_backtracks > MAX_BACKTRACKS:
        last = np.array(wanted[-1:])
        tries.append(fix(problem, last, seed=seed, max_backtracks=case.max_backtracks, tables=case.tables))
    found = np.concatenate([tried.placement[tried.found] for tried in tries])
    _, distinct = np.unique(found, axis=0, return_index=True)
    is_proven = any((tried.ending == CONFLICT).any() for tried in tries)
    backtracks = sum(tried.backtracks for tried in tries)
    return found[np.sort(distinct)][:, problem.unit_of_op], is_proven, backtracks


def _spread(problem: PlacementProblem, num_chips: int) -> IntArray:
    """Returns chips [U]: units in topological order in equal shares on ``num_chips`` chips, at least one."""
    chips = np.empty(problem.num_units, np.int32)
    chips[problem.topological] = np.arange(problem.num_units) * max(num_chips, 1) // problem.num_units
    return chips


def _start(
    requested: OpConstraints, order: IntArray, kernels: IntArray | None, placement: IntArray
) -> Candidate:
    if requested.target.goes_forward:
        order = order[np.argsort(placement[order], kind="stable")]
    if kernels is None:
        roles = loop_roles(requested.graph, requested.target.kernel_patterns)
        kernels = fused_within_chips(roles, order, placement)
    return Candidate("constraints", placement, order, kernels)


def _is_kept(requested: OpConstraints, forwarding: ForwardingMode, start: Candidate) -> bool:
    """Returns whether the start keeps all constraints with its own kernels, and the no-skip rule."""
    graph, target = requested.graph, requested.target
    plan = start.plan(graph, target)
    if forwarding == "relayed":
        relays = needed_relays(cost_tables(graph, target), start.placement, target.constraints.triangle)
        plan = replace(plan, relays=relays_of_arrays(graph, *relays))
    broken = {violation.constraint for violation in verify(graph, target, plan, requested.constraints)}
    return broken.isdisjoint(KEPT)
