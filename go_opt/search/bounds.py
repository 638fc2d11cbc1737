"""The lower bound of a request, the certificate of a plan against it, and limits that no plan can meet."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Target, cost_tables, divided_tables, loop_roles
from go_opt.env.kernels.fusion import ALONE, MAX_GROUP_OPS, LoopRoles
from go_opt.env.peak_memory import largest_demand, op_that_runs_nowhere
from go_opt.errors import InfeasibleError
from go_opt.model.dtypes import costed_dtype, size_bytes
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT, Graph, with_sequences
from go_opt.model.states import with_host_states
from go_opt.result import ONLY, OPTIMAL_GAP, OptimizeResult, Request, Status
from go_opt.search.methods.events import may_replicate
from go_opt.search.shared.context import errors_are_raised
from go_opt.search.splits.ways import divisible_ops
from go_opt.solver import Bound, latency_bound, throughput_bound
from go_opt.solver.certify.bounds import host_seconds
from go_opt.solver.problem.op_constraints import OpConstraints, op_constraints
from go_opt.solver.problem.streamed_bytes import least_host_s_with_states
from go_opt.solver.problem.user_constraints import ChipLimit, Stages

_SLACK: Final = 1e-9  # relative: sums in different orders
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Certificate:
    """How good a plan is proven to be; the fields are those of the answer."""

    status: Status
    lower_bound_s: float
    gap: float


def lower_bound(graph: Graph, target: Target, request: Request, divisible: BoolArray | None = None) -> Bound:
    """The lower bound of the objective over all decisions that ``request`` leaves open.

    Args:
      divisible: [N] True for ops that may be split; None: no op.
    """
    if request.fidelity != "analytical":
        return Bound(0.0, f"none is proven at the {request.fidelity} fidelity")
    tables, roles = divided_tables(graph, target, divisible), _roles(graph, target, divisible)
    is_open = request.decide == "all"
    if request.objective == "latency":
        return latency_bound(graph, tables, roles, fusion_is_open=is_open, divisible=divisible)
    replicates = may_replicate(target, request)
    keeps = bool(request.sequences) and tables.sequences == request.sequences
    return throughput_bound(
        graph,
        tables,
        roles,
        fusion_is_open=is_open,
        replication_is_open=replicates,
        divisible=divisible,
        sequences=tables.sequences if keeps else None,
    )


def _roles(graph: Graph, target: Target, divisible: BoolArray | None) -> LoopRoles:
    in_parts = divisible is not None and bool(divisible.any())
    return loop_roles(graph, target.kernel_patterns, in_parts=in_parts)


def path_bound(graph: Graph, target: Target, request: Request, divisible: BoolArray | None) -> Bound:
    """The least latency of a sample among others; stages may share their chips."""
    return latency_bound(
        graph,
        divided_tables(graph, target, divisible),
        _roles(graph, target, divisible),
        fusion_is_open=request.decide == "all",
        is_alone=False,
        divisible=divisible,
        counts_transfers=False,
        rises=target.goes_forward,
    )


def may_keep_states(graph: Graph, request: Request) -> bool:
    """Whether plans may leave states of the graph to the host."""
    return bool(graph.states) and request.decide == "all" and request.policy != ONLY


def bound_over_states(graph: Graph, target: Target, request: Request, divisible: BoolArray) -> Bound:
    """As :func:`lower_bound`, over all places of states that the request leaves open."""
    bound = lower_bound(graph, target, request, divisible)
    if not may_keep_states(graph, request):
        return bound
    return min(bound, bound_with_host_states(graph, target, request), key=lambda one: one.seconds)


def bound_with_host_states(graph: Graph, target: Target, request: Request) -> Bound:
    """The lower bound of plans that leave at least one state to the host.

    Ops cost the least of both places of each state. No state takes memory, is sent or ties ops to a chip, but
    for the one with the fewest bytes. Where the memories are too small, states are sent or weights stream.
    """
    if request.fidelity != "analytical":
        return Bound(0.0, f"none is proven at the {request.fidelity} fidelity")
    everything = tuple(graph.tensor_names[state.read] for state in graph.states)
    divisible = divisible_ops(graph, target, request)
    divisible |= divisible_ops(with_host_states(graph, everything), target, request)
    free = _with_free_states(graph)
    bound = lower_bound(free, target, request, divisible)
    if request.objective == "latency":
        return bound
    may_forward = may_replicate(target, request)

    def loads(number: int) -> Bound:
        """With so many sequences or more."""
        bounds = _host_bounds(graph, target, number, may_forward=may_forward) if target.overlap else []
        return max([bound, *bounds], key=lambda one: one.seconds)

    path = path_bound(free, target, request, divisible)
    number = request.sequences
    if number:
        return max(loads(number), waiting_bound(path, number), key=lambda one: one.seconds)
    return loads_or_waiting(loads, path, math.ceil(path.seconds / max(bound.seconds, 1e-30)) + 1)


def bound_over_numbers(graph: Graph, target: Target, request: Request) -> Bound:
    """As :func:`lower_bound`, over the numbers of sequences that the request leaves open."""
    divisible = divisible_ops(graph, target, request)

    def loads(number: int) -> Bound:
        return lower_bound(with_sequences(graph, number), target, request, divisible)

    number, first = request.sequences, loads(request.sequences or 1)
    if request.objective == "latency" or not first.seconds:
        return first
    path = path_bound(graph, target, request, divisible)
    if number:
        return max(first, waiting_bound(path, number), key=lambda one: one.seconds)
    return loads_or_waiting(loads, path, math.ceil(path.seconds / first.seconds) + 1)


def waiting_bound(path: Bound, most: int) -> Bound:
    """With so many sequences or fewer, each inference of which takes ``path`` at least."""
    why = f"a sequence waits for its last inference, which takes at least {format_duration(path.seconds)}"
    return Bound(path.seconds / most if most else math.inf, f"{why}: {path.reason}")


def loads_or_waiting(loads: Callable[[int], Bound], path: Bound, most: int) -> Bound:
    """The bound for every number of sequences.

    With fewer than a number they wait, with that many or more the ``loads`` bind: the number up to ``most``
    with the larger bound, by bisection.
    """
    low, high = 1, most + 1
    best = loads(1)
    while high - low > 1:
        number = (low + high) // 2
        one, other = loads(number), waiting_bound(path, number - 1)
        best = max(best, min(one, other, key=lambda bound: bound.seconds), key=lambda bound: bound.seconds)
        low, high = (number, high) if one.seconds < other.seconds else (low, number)
    return best


def sent_bytes(graph: Graph, target: Target) -> tuple[LongArray, LongArray]:
    """Bytes [K] of states that enter and leave the package for each inference if the host keeps them."""
    sizes = size_bytes(
        graph.tensor_elements, costed_dtype(graph.tensor_dtype, target.native_dtype, graph.precision)
    )
    enters, leaves = np.zeros_like(sizes), np.zeros_like(sizes)
    touched = np.zeros(graph.num_tensors, np.int64)
    np.maximum.at(touched, graph.reader_tensor, graph.reader_elements)
    for state in graph.states:
        enters[state.read] = sizes[state.read] * (touched[state.read] > 0)
        is_computed = graph.tensor_producer[state.next] != NO_PRODUCER
        leaves[state.read] = sizes[state.next] * (is_computed and not graph.tensor_is_output[state.next])
    return enters, leaves


def certificate(objective_s: float, request: Request, bound: Bound) -> Certificate:
    """The certificate of a plan that reaches ``objective_s``."""
    bound_s = bound.below(objective_s)
    gap = _gap(objective_s, bound_s)
    if request.fidelity != "analytical":
        return Certificate("HEURISTIC", bound_s, gap)
    return Certificate("OPTIMAL" if gap <= OPTIMAL_GAP else "FEASIBLE", bound_s, gap)


def against_bound(result: OptimizeResult, request: Request, bound: Bound) -> OptimizeResult:
    """``result`` with its certificate against ``bound``."""
    proven = certificate(result.objective_s, request, bound)
    return replace(
        result,
        status=proven.status,
        lower_bound_s=proven.lower_bound_s,
        bound_reason=bound.reason,
        gap=proven.gap,
    )


def without_false_claim(result: OptimizeResult) -> OptimizeResult:
    """``result``; without its bound if that is above its own objective, which is an error of ours.

    Raises:
      AssertionError: there is such an error, and ``GO_OPT_RAISES`` is set.
    """
    if result.lower_bound_s <= result.objective_s * (1.0 + _SLACK):
        return result
    error = (
        f"the bound of {result.lower_bound_s:.9g} s ({result.bound_reason}) is above the {result.objective} "
        f"objective of {result.objective_s:.9g} s by {result.method!r}"
    )
    if errors_are_raised():
        raise AssertionError(error)
    _log.error("%s; the answer has no bound", error)
    reason = "none is proven: the bound that was found is false"
    return replace(result, status="HEURISTIC", lower_bound_s=0.0, bound_reason=reason, gap=math.inf)


def _with_free_states(graph: Graph) -> Graph:
    """The graph with states that take no memory, and whose next values cost no more than outputs do."""
    free = (
        state._replace(buffers=0, written=state.written if state.in_place else 0) for state in graph.states
    )
    return replace(graph, states=tuple(free))


def _host_bounds(graph: Graph, target: Target, sequences: int, *, may_forward: bool) -> list[Bound]:
    tables = cost_tables(with_sequences(graph, sequences), target)
    enters, leaves = sent_bytes(graph, target)
    read = [state.read for state in graph.states]
    in_s, out_s = host_seconds(tables)
    least_s = min(
        max(in_s + enters[k] * tables.host_in_s_per_byte, out_s + leaves[k] * tables.host_out_s_per_byte)
        for k in read
    )
    streamed_s = least_host_s_with_states(tables, enters, forwards=may_forward)
    return [
        Bound(least_s, "a state on the host crosses its links"),
        Bound(streamed_s, "the inputs, and what no memory can hold, cross the host's link in"),
    ]


def _gap(reached_s: float, bound_s: float) -> float:
    if bound_s > 0:
        return reached_s / bound_s - 1.0
    return 0.0 if reached_s == 0 else math.inf


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
    bound = path_bound(graph, target, request, divisible)
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
