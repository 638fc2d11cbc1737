"""The verifier: checks any plan from the definitions, in plain NumPy.

It shares no code with the solver, the slicer or the compiled environment, except the
definitions of the fusion rule, routes and relays. A plan with relays keeps the placement
rules if the expanded plan does, in which relays are ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.env.copies.relays import expand_plan
from go_opt.env.cost.tables import kinds_that_run, why_not_on
from go_opt.env.kernels.fusion import are_one_loop, loop_roles
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.solver.problem.user_constraints import UserConstraint
from go_opt.solver.verify.constraints import broken_constraints
from go_opt.solver.verify.memory import broken_memory
from go_opt.solver.verify.stages import (
    broken_relays,
    broken_stages,
    pairs_in_turn,
    shape_of_relays,
    stages_in,
)


@dataclass(frozen=True)
class Violation:
    """A rule a plan breaks: ``constraint`` is the rule's name, ``message`` one sentence."""

    constraint: str
    message: str


def verify(
    graph: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint] = ()
) -> list[Violation]:
    """Returns every rule and constraint that ``plan`` breaks, each with its first offender; empty if valid.

    Raises:
      PlanError: the plan was made for another graph or target.
      InvalidInputError: a constraint names an unknown op or chip.
    """
    plan.check_belongs_to(graph, target.fingerprint)
    shape = list(_shape(graph, target, plan))
    if shape:
        return shape
    relays = list(starmap(Violation, broken_relays(graph, target, plan)))
    stages = list(starmap(Violation, broken_stages(graph, target, plan)))
    found = [*_order(graph, plan), *_fusion(graph, target, plan), *stages, *relays]
    if relays or stages:  # the plan cannot be expanded
        return found
    placed, placed_plan = expand_plan(graph, target, plan)
    found += [
        *_kinds(placed, target, placed_plan),
        *_dataflow(placed, target, placed_plan),
        *_no_skip(target, placed_plan),
        *_triangle(placed, target, placed_plan),
        *starmap(Violation, broken_constraints(graph, target, plan, constraints, placed, placed_plan)),
    ]
    # Memory depends on the order of kernels, so it is checked only if order and fusion are valid.
    return (
        found
        if any(v.constraint in ("order", "fusion") for v in found)
        else [*found, *starmap(Violation, broken_memory(placed, target, placed_plan))]
    )


def rules_broken(
    graph: Graph, target: Target, plan: Plan, constraints: Sequence[UserConstraint] = ()
) -> list[Violation]:
    """As :func:`verify`, of a plan that is to be costed.

    Raises:
      PlanError: the plan's arrays do not fit the graph.
    """
    violations = verify(graph, target, plan, constraints)
    if any(violation.constraint == "shape" for violation in violations):
        raise PlanError(violations[0].message, field="plan")
    return violations


def _shape(graph: Graph, target: Target, plan: Plan) -> Iterator[Violation]:
    for field in ("placement", "order", "fusion_group", "replication", "op_provenance"):
        if len(getattr(plan, field)) != graph.num_ops:
            size = len(getattr(plan, field))
            yield Violation("shape", f"{field} has {size} entries, the graph {graph.num_ops} ops.")
            return
    outside = np.flatnonzero((plan.placement < 0) | (plan.placement >= target.num_chips))
    if len(outside):
        op = outside[0]
        chip, last = plan.placement[op], target.num_chips - 1
        yield Violation("shape", f"op {graph.op_names[op]!r} is on chip {chip}; chips are 0 to {last}.")
    apart = set(plan.host_states) ^ {state.read for state in graph.host_states}
    if apart:
        yield Violation("shape", f"plan and graph differ on whether the host keeps state {min(apart)!r}.")
    if plan.rewrites != graph.rewrites:
        yield Violation("shape", "plan and graph differ in their rewrites.")
    if not np.array_equal(np.sort(plan.order), np.arange(graph.num_ops)):
        yield Violation("shape", "order is not a permutation of the ops.")
    yield from starmap(Violation, shape_of_relays(graph, target, plan))


def _order(graph: Graph, plan: Plan) -> Iterator[Violation]:
    place = np.empty(graph.num_ops, dtype=np.int64)
    place[plan.order] = np.arange(graph.num_ops)
    late = np.flatnonzero(place[graph.edge_src] >= place[graph.edge_dst])
    if len(late):
        source, reader = graph.edge_src[late[0]], graph.edge_dst[late[0]]
        yield Violation(
            "order",
            f"op {graph.op_names[reader]!r} stands before op {graph.op_names[source]!r}, "
            "whose result it reads.",
        )


def _fusion(graph: Graph, target: Target, plan: Plan) -> Iterator[Violation]:
    group = plan.fusion_group[plan.order]
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    _, first = np.unique(group[starts], return_index=True)
    if len(first) < len(starts):
        again = np.setdiff1d(np.arange(len(starts)), first)[0]
        op = plan.order[starts[again]]
        yield Violation("fusion", f"the kernel of op {graph.op_names[op]!r} is not one stretch of the order.")
        return
    chip, sizes = plan.placement[plan.order], np.diff(starts, append=len(group))
    is_elsewhere = chip != np.repeat(chip[starts], sizes)
    is_split = np.add.reduceat(is_elsewhere.astype(np.int64), starts) > 0
    is_loop = are_one_loop(loop_roles(graph, target.kernel_patterns), plan.order, starts)
    wrong = np.flatnonzero(is_split | ~is_loop)
    if len(wrong):
        op = graph.op_names[plan.order[starts[wrong[0]]]]
        what = "lies on several chips" if is_split[wrong[0]] else "is not one loop nest"
        yield Violation("fusion", f"the kernel of op {op!r} {what}.")


def _kinds(graph: Graph, target: Target, plan: Plan) -> Iterator[Violation]:
    can_run = kinds_that_run(graph, target)
    for q, kind in enumerate(target.kinds):
        wrong = np.flatnonzero(~can_run[q] & (target.chip_kind[plan.placement] == q))
        if len(wrong):
            op = int(wrong[0])
            yield Violation(
                "kinds",
                f"op {graph.op_names[op]!r} is on chip {plan.placement[op]} of kind {kind.name!r}, "
                f"which cannot run it: {why_not_on(graph, kind, op)}.",
            )


def _dataflow(graph: Graph, target: Target, plan: Plan) -> Iterator[Violation]:
    source, reader = plan.placement[graph.edge_src], plan.placement[graph.edge_dst]
    if target.constraints.acyclic and not target.goes_forward:
        yield from _chip_cycle(target, source, reader)
    if target.goes_forward:
        backward = np.flatnonzero(source > reader)
        if len(backward):
            yield _edge_violation("acyclic", "flows back", graph, plan, backward[0])
            return
    size = dict(stages_in(plan))
    for pair in np.unique(source * np.int64(target.num_chips) + reader).tolist():
        a, b = divmod(pair, target.num_chips)
        for chip, to in pairs_in_turn(a, size[a], b, size[b]):
            if not target.topology.has_route(chip, to):
                edge = np.flatnonzero((source == a) & (reader == b))[0]
                message = _edge_violation("route", "has no route", graph, plan, edge).message
                if (chip, to) != (a, b):
                    message = f"{message[:-1]}: in turn it goes from chip {chip} to chip {to}."
                yield Violation("route", message)
                return


def _chip_cycle(target: Target, source: IntArray, reader: IntArray) -> Iterator[Violation]:
    """Yields a cycle of chips that wait for each other, on targets where chips have no order."""
    waits = {chip: set(reader[source == chip].tolist()) - {chip} for chip in range(target.num_chips)}
    left = set(waits)
    while free := {chip for chip in left if not waits[chip] & left}:
        left -= free
    if left:
        walked = [min(left)]  # each waits for one that is left
        while (chip := min(waits[walked[-1]] & left)) not in walked:
            walked.append(chip)
        cycle = " -> ".join(f"'chip {one}'" for one in (*walked[walked.index(chip) :], chip))
        yield Violation("acyclic", f"results go around in a circle of chips: {cycle}.")


def _edge_violation(constraint: str, what: str, graph: Graph, plan: Plan, edge: int) -> Violation:
    source, reader = graph.edge_src[edge], graph.edge_dst[edge]
    return Violation(
        constraint,
        f"the result of op {graph.op_names[source]!r} {what} from chip {plan.placement[source]} "
        f"to op {graph.op_names[reader]!r} on chip {plan.placement[reader]}.",
    )


def _no_skip(target: Target, plan: Plan) -> Iterator[Violation]:
    rule = target.constraints.no_skip
    if rule == "off":
        return
    used = np.unique(np.concatenate([np.arange(a, a + r) for a, r in stages_in(plan)]))
    wanted = np.arange(target.num_chips if rule == "all" else used[-1] + 1)
    skipped = np.setdiff1d(wanted, used)
    if len(skipped):
        yield Violation("no_skip", f"chip {skipped[0]} runs no op, but chip {used[-1]} does.")


def _triangle(graph: Graph, target: Target, plan: Plan) -> Iterator[Violation]:
    rule = target.constraints.triangle
    source, reader = plan.placement[graph.edge_src], plan.placement[graph.edge_dst]
    if rule == "off" or (source > reader).any():
        return
    depends = np.zeros((target.num_chips, target.num_chips), dtype=np.bool_)
    chips_of = {a: slice(a, a + r) for a, r in stages_in(plan)}
    for a, b in np.unique(np.stack([source, reader], axis=1)[source != reader], axis=0).tolist():
        depends[chips_of[a], chips_of[b]] = True  # all pairs of chips of the two stages
    place = np.arange(target.num_chips)  # in the row of stages
    for a, r in stages_in(plan):
        place[a : a + r] -= np.arange(r)
        place[a + r :] -= r - 1
    detour = _detours(depends, rule, place)
    if len(detour):
        replicas = plan.replication
        behind_source = detour[0, 0] - source
        behind_reader = detour[0, 1] - reader
        is_it = (behind_source >= 0) & (behind_source < replicas[graph.edge_src])
        is_it &= (behind_reader >= 0) & (behind_reader < replicas[graph.edge_dst])
        edge = int(np.argmax(is_it))
        yield _edge_violation("triangle", "goes past another chip", graph, plan, edge)


def _detours(depends: BoolArray, rule: str, place: LongArray) -> LongArray:
    """Direct dependencies a -> b that the triangle rule forbids; chips depend on higher ones only.

    Args:
      place: [D] of each chip, the same for all of a stage.
    """
    num_chips = len(depends)
    if rule == "adjacent":
        apart = place[None, :] - place[:, None]
        return np.argwhere(depends & (apart > 1))
    if rule == "three_chip":
        through_one = (depends.astype(np.int64) @ depends.astype(np.int64)) > 0
        return np.argwhere(depends & through_one)
    longest = np.full((num_chips, num_chips), -1)
    np.fill_diagonal(longest, 0)
    for b in range(num_chips):
        for c in np.flatnonzero(depends[:, b]):
            reachable = longest[:, c] >= 0
            longest[reachable, b] = np.maximum(longest[reachable, b], longest[reachable, c] + 1)
    return np.argwhere(depends & (longest > 1))
