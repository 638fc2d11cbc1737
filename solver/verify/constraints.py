"""The verifier's check of the user's constraints: from the definitions, in plain NumPy.

It matches patterns to ops with the shared code that defines patterns. It shares no other code
with the solver that enforces the constraints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.env.cost.tables import COPY_TYPE, CostTables, cost_tables
from go_opt.env.target import Target
from go_opt.model.graph import NO_PRODUCER, WEIGHT, Graph
from go_opt.model.plan import Plan
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.user_constraints import (
    ChipLimit,
    Colocate,
    CutAfter,
    Forbid,
    Pin,
    Stages,
    UserConstraint,
)
from go_opt.solver.verify.stages import Broken, stages_in

# Sums of seconds in different orders differ in the last digits.
SLACK: Final = 1e-9


def broken_constraints(
    graph: Graph,
    target: Target,
    plan: Plan,
    constraints: Sequence[UserConstraint],
    placed: Graph,
    placed_plan: Plan,
) -> Iterator[Broken]:
    """Yields every constraint that ``plan`` breaks, each with its first offender.

    Args:
      placed, placed_plan: the graph and the plan with relays as ops.

    Raises:
      InvalidInputError: a constraint names an unknown op or chip.
    """
    requested = op_constraints(graph, target, constraints)
    for constraint, ops in zip(requested.constraints, requested.ops, strict=True):
        if isinstance(constraint, ChipLimit):
            yield from _limit(target, constraint, placed, placed_plan)
        elif isinstance(constraint, Stages):
            if (found := len(np.unique(plan.placement))) != constraint.count:
                yield "stages", f"{constraint}: the plan has {found}."
        elif isinstance(constraint, Colocate):
            yield from _colocate(graph, plan, constraint, ops)
        elif isinstance(constraint, CutAfter):
            yield from _cut(graph, plan, constraint, ops)
        else:
            yield from _chips(graph, plan, constraint, ops)


def _chips(graph: Graph, plan: Plan, constraint: Pin | Forbid, ops: LongArray) -> Iterator[Broken]:
    """Yields the first op on a chip that the constraint excludes."""
    is_pin = isinstance(constraint, Pin)
    chips = {constraint.chip} if isinstance(constraint, Pin) else set(constraint.chips)
    rule = "pin" if is_pin else "forbid"
    size = dict(stages_in(plan))
    for op in ops:
        first = int(plan.placement[op])
        for chip in range(first, first + size[first]):
            if (chip in chips) != is_pin:
                yield rule, f"{constraint}: op {graph.op_names[op]!r} is on chip {chip}."
                return


def _colocate(graph: Graph, plan: Plan, constraint: Colocate, ops: LongArray) -> Iterator[Broken]:
    chips = plan.placement[ops]
    apart = np.flatnonzero(chips != chips[0])
    if len(apart):
        first, other = ops[0], ops[apart[0]]
        yield (
            constraint.rule,
            f"{constraint}: op {graph.op_names[first]!r} is on chip {chips[0]}, "
            f"op {graph.op_names[other]!r} on chip {chips[apart[0]]}.",
        )


def _cut(graph: Graph, plan: Plan, constraint: CutAfter, ops: LongArray) -> Iterator[Broken]:
    leaves = np.isin(graph.edge_src, ops) & ~np.isin(graph.edge_dst, ops)
    source, reader = graph.edge_src[leaves], graph.edge_dst[leaves]
    uncut = np.flatnonzero(plan.placement[reader] <= plan.placement[source])
    if len(uncut):
        u, v = source[uncut[0]], reader[uncut[0]]
        yield (
            "cut",
            f"{constraint}: op {graph.op_names[v]!r} on chip {plan.placement[v]} reads "
            f"op {graph.op_names[u]!r} on chip {plan.placement[u]}.",
        )


def _limit(target: Target, limit: ChipLimit, graph: Graph, plan: Plan) -> Iterator[Broken]:
    tables = cost_tables(graph, target)
    is_here = (plan.placement <= limit.chip) & (limit.chip < plan.placement + plan.replication)
    held_bytes = _weight_bytes(tables, is_here)
    held_s = kernel_seconds_of_chip(tables, plan, limit.chip)
    ops = np.count_nonzero(is_here & ~graph.has_type(COPY_TYPE.__eq__))
    kernels = len(np.unique(plan.fusion_group[is_here]))
    for held, at_least, at_most, unit in (
        (held_bytes, limit.at_least_bytes, limit.at_most_bytes, "bytes of weights"),
        (held_s, limit.at_least_s, limit.at_most_s, "seconds of kernels"),
        (float(ops), None, limit.at_most_ops, "ops"),
        (float(kernels), None, limit.at_most_kernels, "kernels"),
    ):
        is_over = at_most is not None and held > at_most * (1 + SLACK)
        if is_over or (at_least is not None and held < at_least * (1 - SLACK)):
            yield "limit", f"{limit}: it holds {held:g} {unit}."


def _weight_bytes(tables: CostTables, is_here: BoolArray) -> float:
    """Returns the bytes of the weights read by the ops in ``is_here`` [N], each once."""
    reads = (tables.tensor_kind[tables.reader_tensor] == WEIGHT) & is_here[tables.reader_op]
    return float(tables.tensor_bytes[np.unique(tables.reader_tensor[reads])].sum())


def kernel_seconds_of_chip(tables: CostTables, plan: Plan, chip: int) -> float:
    """Returns kernel seconds of a chip per inference (design section 5); measured ops count as measured."""
    is_here = (plan.placement <= chip) & (chip < plan.placement + plan.replication)
    kind, group = tables.chip_kind[chip], plan.fusion_group
    modelled = np.isnan(tables.measured_s[kind])
    num_groups = int(group.max()) + 1
    work_s = np.bincount(group[modelled], weights=tables.op_s[kind][modelled], minlength=num_groups)
    moved_s = _moved_bytes(tables, group, num_groups) * tables.sram_s_per_byte[kind]
    has_model = np.bincount(group[modelled], minlength=num_groups) > 0
    seconds = np.where(has_model, np.maximum(work_s, moved_s) + tables.kernel_overhead_s[kind], 0.0)
    measured_s = tables.measured_s[kind][is_here & ~modelled]
    sharers = int(plan.replication[is_here].max(initial=1))
    return float(seconds[np.unique(group[is_here])].sum() + measured_s.sum()) / sharers


def _moved_bytes(tables: CostTables, group: IntArray, num_groups: int) -> FloatArray:
    """Returns the bytes [M] each kernel reads from other kernels, each tensor once, and writes for them."""
    producer = tables.tensor_producer
    home = np.where(producer == NO_PRODUCER, -1, group[producer])
    reader = group[tables.reader_op]
    is_outside = home[tables.reader_tensor] != reader
    key = reader[is_outside].astype(np.int64) * len(producer) + tables.reader_tensor[is_outside]
    pairs, pair = np.unique(key, return_inverse=True)
    widest = np.zeros(len(pairs))
    np.maximum.at(widest, pair, tables.read_bytes[is_outside])
    moved = np.zeros(num_groups)
    np.add.at(moved, pairs // len(producer), widest)
    is_stored = tables.tensor_is_output.copy()
    is_stored[tables.reader_tensor[is_outside]] = True
    written = is_stored & (producer != NO_PRODUCER)
    np.add.at(moved, home[written], tables.tensor_bytes[written])
    return moved
