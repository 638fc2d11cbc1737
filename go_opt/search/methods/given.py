"""What the user gives to begin with: a plan of this model or of one like it, or a split of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import Target, fused_within_chips, is_one_loop, loop_roles
from go_opt.env.copies.relays import relays_of
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.env.kernels.schedule import list_schedule
from go_opt.errors import InvalidInputError
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.model.start import NO_KERNEL, Start
from go_opt.search.methods.events import Event, Proposal, SearchView
from go_opt.search.methods.slices import ARRIVAL, slices_of_sequences, widest_slices
from go_opt.solver import fix
from go_opt.solver.orders.orders import by_arrival
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.verify.verifier import verify

RESLICED: Final = "cut anew"


class Stages(NamedTuple):
    """Which chips run each op, [N] each."""

    first_chip: IntArray
    size: IntArray


def given(search: SearchView) -> Iterator[Event]:
    """The plan as it is, where it is valid; else what it says of the ops, made valid.

    The repair: ops without a decision follow their neighbours; stages keep their order, move up where data
    would flow back, and shrink or join until they fit the chips; kernels are parted where the order, the
    chips or the rule of fusion ask for it; at last the order and the kernels are cut anew for the target.
    """
    start = search.request.start
    assert start is not None
    plan = start.plan
    if plan is not None and _is_of(search, plan):
        arrays = plan.placement, plan.order, plan.fusion_group
        yield Proposal(
            start.method,
            *arrays,
            relays=relays_of(search.graph, plan),
            replication=plan.replication,
            forwards=plan.forwards,
        )
        return
    graph = search.graph
    chip, replication, kernel, rank = start.on(graph)
    stages = _stages(search, Stages(chip, replication))
    if search.request.decide == "placement":
        order = np.arange(graph.num_ops, dtype=np.int32)
        yield Proposal(start.method, stages.first_chip, order, order)
        return
    order = order_by_rank(graph, rank)
    kernels = [fused_within_chips(search.roles, order, stages.first_chip)]
    if (kernel != NO_KERNEL).any():
        kernels.insert(0, _kept_kernels(search.roles, order, stages.first_chip, kernel))
    is_order_alone = stages.first_chip.max() == stages.first_chip.min() and search.target.num_chips > 1
    for group in [] if is_order_alone and graph.has_scope("sequence") else kernels:
        if graph.has_scope("sequence"):
            earlier = by_arrival(search.tables, stages.first_chip, order, group)
            method = start.method + ARRIVAL
            yield Proposal(method, stages.first_chip, earlier, group, replication=stages.size)
        yield Proposal(start.method, stages.first_chip, order, group, replication=stages.size)
    # The order and the kernels are as good on other chips, where they are cut anew.
    one_chip = np.zeros_like(order)
    whole = fused_within_chips(search.roles, order, one_chip)
    if (kernel != NO_KERNEL).any():
        whole = _kept_kernels(search.roles, order, one_chip, kernel)
    cut = slices_of_sequences if graph.has_scope("sequence") else widest_slices
    yield from cut(search, f"{start.method}: {RESLICED}", order, whole)


def _is_of(search: SearchView, plan: Plan) -> bool:
    """Whether it is a valid plan of this graph and target; one from outside may only say so."""
    return (
        plan.graph_fingerprint == search.graph.fingerprint
        and plan.target_fingerprint == search.target.fingerprint
        and not verify(search.graph, search.target, replace(plan, splits=()))
    )


def plan_as_it_stands(graph: Graph, target: Target, start: Start) -> Plan:
    """The plan that ``start`` asks for, whatever rules it breaks; kernels are fused chip by chip.

    Raises:
      InvalidInputError: the target has no such chip.
    """
    chip, _, _, rank = start.on(graph)
    if chip.max() >= target.num_chips:
        op = graph.op_names[int(chip.argmax())]
        problem = f"op {op!r} is on chip {chip.max()}, of {target.num_chips} chips of {target.name}"
        raise InvalidInputError(f"{problem}.", field="placement")
    order, roles = order_by_rank(graph, rank), loop_roles(graph, target.kernel_patterns)
    kernels = fused_within_chips(roles, order, chip)
    return Candidate("placement file", chip, order, kernels).plan(graph, target)


def order_by_rank(graph: Graph, rank: IntArray) -> IntArray:
    """[N] a topological order of the ops, by ``rank`` where that is one."""
    return list_schedule(graph, np.arange(graph.num_ops, dtype=np.int32), -rank.astype(np.float64))


def _stages(search: SearchView, start: Stages) -> Stages:
    """Chips of the target for the stages of another plan, in their order."""
    target, graph = search.target, search.graph
    chips, first, inverse = np.unique(start.first_chip, return_index=True, return_inverse=True)
    stage: IntArray = inverse.astype(np.int32)
    size = np.minimum(start.size[first], target.num_chips if search.replicates else 1)
    if target.constraints.acyclic:
        stage = _risen(graph, stage)
    elif (chips <= target.num_chips - size).all():
        return Stages(start.first_chip, size[stage].astype(np.int32))
    if search.forwarding == "adjacent":
        problem = placement_problem(graph, target)
        proposal = np.minimum(stage, target.num_chips - 1).astype(np.int32)
        fixed = fix(problem, proposal[None], seed=search.request.seed % 2**31).placement[0]
        return Stages(fixed, np.ones_like(fixed))
    used, inverse = np.unique(stage, return_inverse=True)
    size = _fitted(size[used], target)
    stage = (inverse * len(size) // len(used)).astype(np.int32)
    return Stages((np.cumsum(size) - size)[stage].astype(np.int32), size[stage].astype(np.int32))


def _risen(graph: Graph, stage: IntArray) -> IntArray:
    """[N] the lowest stages, no lower than these, at which no op lies before what it reads."""
    risen, (ptr, source) = stage.copy(), graph.predecessors
    for op in range(graph.num_ops):  # stored in a topological order
        risen[op] = max(risen[op], risen[source[ptr[op] : ptr[op + 1]]].max(initial=0))
    return risen


def _fitted(size: IntArray, target: Target) -> IntArray:
    """Sizes of at most so many stages as there are chips, which the chips are enough for."""
    size = size[: target.num_chips].copy()
    while size.sum() > target.num_chips:
        size[np.argmax(size)] -= 1
    return size


def _kept_kernels(roles: LoopRoles, order: IntArray, placement: IntArray, kernel: IntArray) -> IntArray:
    """[N] the kernels of another plan, parted where the order, the chips or the rule of fusion ask for it."""
    group = np.empty_like(order)
    run: list[int] = []
    last = -1
    for op in order.tolist():
        joins = bool(run) and kernel[op] != NO_KERNEL and kernel[op] == kernel[run[-1]]
        joins = joins and placement[op] == placement[run[-1]]
        if not joins or not is_one_loop(roles, np.array([*run, op])):
            run, last = [], last + 1
        run.append(op)
        group[op] = last
    return group
