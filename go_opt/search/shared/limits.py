"""Refuses limits that no plan can meet before a search begins, naming the demand and the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Target, cost_tables, divided_tables, loop_roles
from go_opt.env.kernels.fusion import ALONE, MAX_GROUP_OPS
from go_opt.env.op_memory import largest_demand, op_that_runs_nowhere
from go_opt.errors import InfeasibleError
from go_opt.model.graph import INPUT, WEIGHT, Graph
from go_opt.result import Request
from go_opt.solver.problem.op_constraints import OpConstraints, op_constraints
from go_opt.solver.problem.user_constraints import ChipLimit, Stages
from go_opt.solver.scheduling.bounds import latency_bound


def refuse_unreachable(graph: Graph, target: Target, request: Request) -> None:
    """Raise if there is provably no plan, without a search.

    Raises:
      InfeasibleError: an op runs nowhere, a chip must exceed its limit, or no sample is that fast.
    """
    nowhere = op_that_runs_nowhere(graph, target)
    if nowhere:
        if _is_final(graph, target, request):
            raise InfeasibleError(nowhere, is_proven=True)
        return  # the op may still fit inside a larger kernel
    if request.fidelity == "analytical":
        refuse_latency(graph, target, request)
    requested = op_constraints(graph, target, request.constraints)
    _refuse_stages(requested)
    requested = requested.without_stages()
    for limit in requested.limits:
        _refuse_limit(requested, limit, request)


def _is_final(graph: Graph, target: Target, request: Request) -> bool:
    """Whether fusion into a larger kernel cannot help the op that runs nowhere."""
    tables = cost_tables(graph, target)
    if not tables.can_run.any(axis=0).all():
        return True
    crosses = (tables.tensor_kind == INPUT) | tables.tensor_is_output  # chips hold such tensors twice
    if 2 * tables.tensor_bytes[crosses].max(initial=0) > target.chip_sram_bytes.max():
        return True
    op, _, _ = largest_demand(graph, target)
    is_alone = graph.num_ops == 1 or loop_roles(graph, target.kernel_patterns).role[op] == ALONE
    return request.decide == "placement" or bool(is_alone)


def refuse_latency(
    graph: Graph, target: Target, request: Request, divisible: BoolArray | None = None
) -> None:
    """Raise if no sample can meet the latency limit, whether the ops ``divisible`` [N] are split or not.

    Raises:
      InfeasibleError: with the proven limit.
    """
    if request.max_latency_s is None:
        return  # and the kernels of the bound are not compiled
    bound = latency_bound(
        graph,
        divided_tables(graph, target, divisible),
        loop_roles(graph, target.kernel_patterns),
        fusion_is_open=request.decide == "all",
        is_alone=False,
        divisible=divisible,
        counts_transfers=False,  # stages may share their chips
    )
    if bound.seconds > request.latency_limit_s * (1 + 1e-9):
        raise InfeasibleError(
            f"no plan has a latency of at most {format_duration(request.latency_limit_s)}: it is at least "
            f"{format_duration(bound.seconds)}, {bound.reason}.",
            is_proven=True,
        )


def _refuse_stages(requested: OpConstraints) -> None:
    """Raise if there are too few chips or ops for the stages, or two numbers of them."""
    asked = [constraint for constraint in requested.constraints if isinstance(constraint, Stages)]
    units = len(np.unique(requested.shared_chips(np.arange(requested.graph.num_ops, dtype=np.int32))))
    most = min(units, requested.target.num_chips)
    for constraint in asked:
        if constraint.count > most:
            held = f"{requested.target.num_chips} chips" if most < units else f"{units} ops to place"
            raise InfeasibleError(
                f"{constraint}: there are only {held}.", is_proven=True, conflict=(str(constraint),)
            )
    if len(names := sorted(set(map(str, asked)))) > 1:
        raise InfeasibleError(
            f"no plan has {names[0]} and {names[1]}.", is_proven=True, conflict=tuple(names)
        )


def _refuse_limit(requested: OpConstraints, limit: ChipLimit, request: Request) -> None:
    """Raise if the ops that can run on no other chip exceed the limit of this one."""
    on_chip = requested.allowed[:, limit.chip] & (requested.allowed.sum(axis=1) == 1)
    ops = np.flatnonzero(on_chip)
    for needed, at_most, shown in _demands(requested, limit, ops, request):
        if at_most is not None and needed > at_most * (1 + 1e-9):
            names = [requested.graph.op_names[op] for op in ops]
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            pins = [
                str(constraint)
                for constraint, about in zip(requested.constraints, requested.ops, strict=True)
                if np.isin(about, ops).any()
            ]
            raise InfeasibleError(
                f"{limit}: op {names[0]!r}{others} can only run there and {shown}.",
                is_proven=True,
                conflict=(str(limit), *pins),
            )


def _demands(
    requested: OpConstraints, limit: ChipLimit, ops: LongArray, request: Request
) -> Iterator[tuple[float, float | None, str]]:
    """Yields the weight bytes and least seconds of ``ops`` on a chip, each with its limit and a text."""
    tables = cost_tables(requested.graph, requested.target)
    is_read = np.isin(tables.reader_op, ops) & (tables.tensor_kind[tables.reader_tensor] == WEIGHT)
    weight_bytes = float(tables.tensor_bytes[np.unique(tables.reader_tensor[is_read])].sum())
    yield weight_bytes, limit.at_most_bytes, f"reads {format_bytes(int(weight_bytes))} of weights"
    kind = tables.chip_kind[limit.chip]
    # A larger kernel costs no less than the work of its ops.
    least_s = tables.own_s() if request.decide == "all" else tables.kernel_floor_s()
    seconds = float(least_s[kind, ops].sum())
    yield seconds, limit.at_most_s, f"takes {format_duration(seconds)} at least"
    yield float(len(ops)), limit.at_most_ops, f"are {len(ops)} ops"
    kernels = math.ceil(len(ops) / MAX_GROUP_OPS) if request.decide == "all" else len(ops)
    yield float(kernels), limit.at_most_kernels, f"are {kernels} kernels at least"
