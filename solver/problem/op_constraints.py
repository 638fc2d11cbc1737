"""User constraints by op: allowed chips, ops that share a chip, edges that must rise, limits.

Axes: ``N`` ops, ``D`` chips, ``E`` edges of the graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.common.suggestion import suggestion
from go_opt.common.topological import strong_components
from go_opt.env.cost.tables import kinds_that_run
from go_opt.env.kernels.schedule import list_schedule
from go_opt.env.target import Target
from go_opt.errors import InvalidInputError
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Graph
from go_opt.model.plan import number_by_first_place
from go_opt.solver.problem.user_constraints import (
    ChipLimit,
    Colocate,
    CutAfter,
    Forbid,
    KeepState,
    Pin,
    Stages,
    UserConstraint,
    checked_constraints,
)

Ops = LongArray


@dataclass(frozen=True, eq=False)
class OpConstraints:
    """Constraints on a graph and a target, each with its ops."""

    graph: Graph
    target: Target
    constraints: tuple[UserConstraint, ...]
    ops: tuple[Ops, ...]  # of each constraint, ascending; empty for a limit and for stages

    def subset(self, kept: Sequence[int]) -> OpConstraints:
        """Returns only the constraints with the indices ``kept``."""
        constraints = tuple(self.constraints[i] for i in kept)
        return OpConstraints(self.graph, self.target, constraints, tuple(self.ops[i] for i in kept))

    def without_stages(self) -> OpConstraints:
        """Returns the constraints that do not count stages."""
        pairs = enumerate(self.constraints)
        return self.subset([i for i, constraint in pairs if not isinstance(constraint, Stages)])

    @cached_property
    def num_stages(self) -> int | None:
        """The number of stages that a plan must have; ``None`` if any number will do."""
        counts = (constraint.count for constraint in self.constraints if isinstance(constraint, Stages))
        return min(counts, default=None)

    @cached_property
    def stage_chips(self) -> LongArray:
        """Chips for the stages of plans without replicas, ascending; none if no number, or any, will do.

        Where chips may be skipped, those that some op cannot do without; then the first ones.
        """
        counts = {constraint.count for constraint in self.constraints if isinstance(constraint, Stages)}
        if len(counts) != 1 or max(counts) > self.target.num_chips:
            return np.zeros(0, np.int64)
        free = self.without_stages().allowed
        needed = np.zeros(self.target.num_chips, np.bool_)
        if self.target.constraints.no_skip == "off":
            needed = free[free.sum(axis=1) == 1].any(axis=0)
        return np.sort(np.argsort(~needed, kind="stable")[: self.num_stages])

    @property
    def limits(self) -> tuple[ChipLimit, ...]:
        return tuple(constraint for constraint in self.constraints if isinstance(constraint, ChipLimit))

    @cached_property
    def allowed(self) -> BoolArray:
        """[N, D] True where kinds, pins, forbids and numbers of stages allow an op to run."""
        allowed = kinds_that_run(self.graph, self.target)[self.target.chip_kind].T
        for constraint, ops in zip(self.constraints, self.ops, strict=True):
            if isinstance(constraint, Pin):
                allowed[ops] &= np.arange(self.target.num_chips) == constraint.chip
            elif isinstance(constraint, Forbid):
                allowed[np.ix_(ops, np.array(constraint.chips))] = False
            elif isinstance(constraint, Stages):
                allowed[:, np.setdiff1d(np.arange(self.target.num_chips), self.stage_chips)] = False
        return allowed

    @cached_property
    def colocated(self) -> tuple[Ops, ...]:
        """Sets of ops that share a chip."""
        pairs = zip(self.constraints, self.ops, strict=True)
        return tuple(ops for constraint, ops in pairs if isinstance(constraint, Colocate))

    @cached_property
    def rise(self) -> LongArray:
        """[E] least ``f(v) - f(u)`` of each edge: 1 at a cut point, else 0."""
        rise = np.zeros(self.graph.num_edges, np.int64)
        for constraint, ops in zip(self.constraints, self.ops, strict=True):
            if isinstance(constraint, CutAfter):
                is_before = np.zeros(self.graph.num_ops, np.bool_)
                is_before[ops] = True
                rise[is_before[self.graph.edge_src] & ~is_before[self.graph.edge_dst]] = 1
        return rise

    def shared_chips(self, group: IntArray) -> IntArray:
        """Returns ``group`` [N] after joining the groups that must share a chip.

        These are groups with colocated ops and, if dataflow is acyclic, groups on a cycle of
        groups: ops on a path between ops of one chip must run on that chip.
        """
        joined = group.copy()
        for ops in self.colocated:
            together = np.unique(joined[ops])
            joined[np.isin(joined, together)] = together[0]
        if not self.colocated or not self.target.constraints.acyclic:
            return joined
        source, reader = joined[self.graph.edge_src], joined[self.graph.edge_dst]
        readers: list[list[int]] = [[] for _ in range(int(joined.max()) + 1)]
        for one, other in np.unique(np.stack([source, reader], axis=1)[source != reader], axis=0).tolist():
            readers[one].append(other)
        for cycle in strong_components(readers):
            if len(cycle) > 1:
                joined[np.isin(joined, cycle)] = min(cycle)
        return joined

    def contiguous(self, order: IntArray, fusion_group: IntArray) -> IntArray:
        """Returns ``order`` [N] with the ops that share a chip next to each other, for more places to cut.

        Kernels stay as they are. Units of ops that share a chip follow each other as their first ops do.
        """
        if not self.colocated:
            return order
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        unit = number_by_first_place(self.shared_chips(fusion_group), order)
        first = np.full(int(unit.max()) + 1, len(order), np.float64)
        np.minimum.at(first, unit, place)
        scheduled = list_schedule(self.graph, unit, -first)
        if len(scheduled) < len(order):  # units in a circle, where dataflow may be cyclic
            return order
        unit_place = np.empty(len(order), np.int64)
        unit_place[scheduled] = np.arange(len(order))
        at = np.full(len(first), len(order), np.int64)
        np.minimum.at(at, unit, unit_place)
        return np.lexsort((place, at[unit])).astype(np.int32)


def op_constraints(graph: Graph, target: Target, constraints: Sequence[UserConstraint]) -> OpConstraints:
    """Returns ``constraints`` with their ops in ``graph``, and those that the states of the graph need.

    Raises:
      InvalidInputError: a pattern matches no op, a chip is unknown, or a constraint needs ordered
        chips and the target has none.
    """
    constraints = checked_constraints(constraints)
    for constraint in constraints:
        _check_chips(constraint, target)
    nothing = np.zeros(0, np.int64)
    ops = tuple(
        nothing if isinstance(constraint, ChipLimit | Stages) else match_ops(graph, constraint)
        for constraint in constraints
    )
    kept = [(state, graph.readers_of(state.read)) for state in graph.states]
    kept = [(state, readers) for state, readers in kept if len(readers) > 1]
    states = tuple(
        KeepState(tuple(graph.op_names[op] for op in readers), state=graph.tensor_names[state.read])
        for state, readers in kept
    )
    touching = tuple(np.array(readers, np.int64) for _, readers in kept)
    return OpConstraints(graph, target, (*constraints, *states), (*ops, *touching))


def _check_chips(constraint: UserConstraint, target: Target) -> None:
    if isinstance(constraint, CutAfter) and not target.goes_forward:
        raise InvalidInputError(
            f"{constraint}: the chips of {target.name} have no order, so none of them is a later one.",
            field="constraints",
        )
    chips: Sequence[int] = ()
    if isinstance(constraint, Pin | ChipLimit):
        chips = (constraint.chip,)
    elif isinstance(constraint, Forbid):
        chips = constraint.chips
    for chip in chips:
        if chip >= target.num_chips:
            raise InvalidInputError(
                f"{constraint} names chip {chip}; chips are 0 to {target.num_chips - 1}.", field="constraints"
            )


class NamesOps(Protocol):
    """A constraint that names ops; as text it describes itself in errors."""

    @property
    def ops(self) -> str | Sequence[str]: ...
    @property
    def op_types(self) -> str | Sequence[str]: ...


def match_ops(graph: Graph, constraint: NamesOps) -> LongArray:
    """Returns the ops that ``constraint`` names, and those of the types that it names, ascending.

    An existing name or type means itself, even if it is also a regular expression.

    Raises:
      InvalidInputError: a pattern matches no op, or is not a regular expression.
    """
    names = graph.op_index
    found = {names[name] for pattern in constraint.ops for name in _match(names, pattern, constraint, "op")}
    if constraint.op_types:
        types = dict.fromkeys(graph.op_types)
        wanted = {
            of for pattern in constraint.op_types for of in _match(types, pattern, constraint, "op type")
        }
        found.update(np.flatnonzero(graph.has_type(wanted.__contains__)).tolist())
    return np.array(sorted(found), dtype=np.int64)


def _match(known: Mapping[str, object], pattern: str, constraint: NamesOps, what: str) -> list[str]:
    """Returns the names or types, keys of ``known``, that the pattern matches."""
    if pattern in known:
        return [pattern]
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:  # counts too large, groups too deep
        raise InvalidInputError(
            f"{constraint}: {shown(pattern)} is neither an {what} nor a regular expression ({error}).",
            field="constraints",
        ) from None
    found = [name for name in known if compiled.fullmatch(name)]
    if not found:
        hint = suggestion(pattern, list(known))
        raise InvalidInputError(f"{constraint}: {pattern!r} matches no {what}{hint}", field="constraints")
    return found
