"""The lower bound of a request, and the certificate of a plan against it."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.env import Target, cost_tables, divided_tables, loop_roles
from go_opt.model.dtypes import costed_dtype, size_bytes
from go_opt.model.graph import NO_PRODUCER, Graph, with_sequences
from go_opt.model.states import with_host_states
from go_opt.result import ONLY, OPTIMAL_GAP, OptimizeResult, Request, Status
from go_opt.search.methods.events import may_replicate
from go_opt.search.shared.context import errors_are_raised
from go_opt.search.splits.ways import divisible_ops
from go_opt.solver import Bound, latency_bound, throughput_bound
from go_opt.solver.certify.problem.bounds import host_seconds
from go_opt.solver.problem.streamed_bytes import least_host_s_with_states

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
    tables, roles = divided_tables(graph, target, divisible), loop_roles(graph, target.kernel_patterns)
    is_open = request.decide == "all"
    if request.objective == "latency":
        return latency_bound(graph, tables, roles, fusion_is_open=is_open, divisible=divisible)
    replicates = may_replicate(target, request)
    return throughput_bound(
        graph, tables, roles, fusion_is_open=is_open, replication_is_open=replicates, divisible=divisible
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
    bounds = [lower_bound(free, target, request, divisible)]
    if request.objective == "latency":
        return bounds[0]
    sequences = request.sequences or 1
    if target.overlap:
        bounds += _host_bounds(graph, target, sequences, may_forward=may_replicate(target, request))
    if request.sequences:
        path = latency_bound(
            free,
            divided_tables(free, target, divisible),
            loop_roles(free, target.kernel_patterns),
            fusion_is_open=True,
            is_alone=False,
            divisible=divisible,
            counts_transfers=False,
        )
        why = f"a sequence waits for its last inference: {path.reason}"
        bounds.append(Bound(path.seconds / sequences, why))
    return max(bounds, key=lambda bound: bound.seconds)


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
