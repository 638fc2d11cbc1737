"""A bound that holds for every choice of states that the host keeps, if it keeps any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.env import Target, cost_tables, divided_tables, loop_roles
from go_opt.model.dtypes import costed_dtype, size_bytes
from go_opt.model.graph import NO_PRODUCER, Graph, with_sequences
from go_opt.model.states import with_host_states
from go_opt.result import ONLY, Request
from go_opt.search.bounds import lower_bound
from go_opt.search.methods.events import may_replicate
from go_opt.search.splits.ways import divisible_ops
from go_opt.solver import Bound, latency_bound
from go_opt.solver.certify.problem.bounds import host_seconds
from go_opt.solver.problem.streamed_bytes import least_host_s_with_states


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
