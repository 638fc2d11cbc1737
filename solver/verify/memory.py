"""The verifier's check of chip memory, in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.env.cost.tables import COPY_TYPE
from go_opt.env.model.memory import MOST_BY_SIZE
from go_opt.env.target import Target
from go_opt.model.dtypes import costed_dtype, size_bytes
from go_opt.model.graph import NO_PRODUCER, STATE, WEIGHT, Graph
from go_opt.model.plan import Plan
from go_opt.solver.verify.stages import Broken


def broken_memory(graph: Graph, target: Target, plan: Plan) -> Iterator[Broken]:
    """Yields the first chip whose activations do not fit; ``graph`` and ``plan`` have copies as ops."""
    peak, weights, states = memory_bytes(graph, target, plan)
    room = target.chip_sram_bytes - peak - states
    # A chip that streams weights needs a stream buffer; all weights may stream.
    buffers = np.array([kind.stream_buffer_bytes for kind in target.modelled.kinds])[target.chip_kind]
    streams = weights > np.maximum(room, 0)
    over = np.flatnonzero(room < np.where(streams, buffers, 0))
    if len(over):
        chip = over[0]
        beside = f" beside {buffers[chip]} for streamed weights" if streams[chip] else ""
        kept = f" beside {states[chip]} of states" if states[chip] else ""
        yield (
            "memory",
            f"chip {chip} needs {peak[chip]} bytes for activations{beside}{kept} and has "
            f"{target.chip_sram_bytes[chip]}.",
        )


def memory_bytes(graph: Graph, target: Target, plan: Plan) -> tuple[LongArray, LongArray, LongArray]:
    """Returns the peak bytes of activations, the bytes of all weights and those of all states, each [D].

    Tensors that enter or leave a chip always have two buffers. Other tensors need the most bytes alive
    at once. On targets without ``fit_by_size``, they need the bytes up to their highest address
    if not everything fits side by side.
    """
    group = plan.fusion_group[plan.order]
    kernel_of = np.empty(graph.num_ops, dtype=np.int64)
    kernel_of[plan.order] = np.cumsum(np.concatenate([[0], group[1:] != group[:-1]]))
    num_kernels = int(kernel_of.max()) + 1
    dtypes = costed_dtype(graph.tensor_dtype, target.native_dtype, graph.precision)
    page = target.modelled.page_bytes
    size = -(-size_bytes(graph.tensor_elements, dtypes) // page) * page
    kept = np.zeros(target.num_chips, dtype=np.int64)
    for state in graph.states:
        op = graph.readers_of(state.read)[0]
        # Replicas keep sequences; the first has the most.
        sequences = -(-graph.sequences // plan.replication[op]) if state.scope == "sequence" else 1
        kept[plan.placement[op]] += sequences * state.buffers * max(size[state.read], size[state.next])
    size[[state.next for state in graph.states if state.in_place]] = 0
    tensor, reader = graph.reader_tensor, graph.reader_op
    producer = graph.tensor_producer[tensor]
    is_activation = (graph.tensor_kind[tensor] != WEIGHT) & (graph.tensor_kind[tensor] != STATE)
    home = np.where(producer == NO_PRODUCER, -1, plan.placement[producer])
    chip = plan.placement[reader]
    enters = is_activation & (home != chip)
    held = np.zeros(target.num_chips, dtype=np.int64)
    for t, d in np.unique(np.stack([tensor[enters], chip[enters]], axis=1), axis=0):
        held[d] += 2 * size[t]
    leaves = graph.tensor_is_output.copy()
    leaves[tensor[enters & (producer != NO_PRODUCER)]] = True
    produced = graph.tensor_producer != NO_PRODUCER
    # The output of a relay shares the double buffer of its input.
    is_copy = np.array([op_type == COPY_TYPE for op_type in graph.op_types])[graph.tensor_producer]
    buffered = leaves & produced & ~is_copy
    np.add.at(held, plan.placement[graph.tensor_producer[buffered]], 2 * size[buffered])
    last = np.full(graph.num_tensors, -1, dtype=np.int64)
    np.maximum.at(last, tensor, kernel_of[reader])
    first = np.where(produced, kernel_of[graph.tensor_producer], -1)
    stays = produced & ~leaves & (last > first)
    kernel_chip = np.empty(num_kernels, dtype=np.int64)
    kernel_chip[kernel_of] = plan.placement
    weights = np.zeros(target.num_chips, dtype=np.int64)
    is_weight = graph.tensor_kind[tensor] == WEIGHT
    for t, d in np.unique(np.stack([tensor[is_weight], chip[is_weight]], axis=1), axis=0):
        weights[d] += size[t]
    peak = held.copy()
    for d in np.unique(plan.placement):
        here = np.flatnonzero(stays & (kernel_chip[first] == d))
        here = here[np.argsort(first[here], kind="stable")]
        is_tight = kept[d] + weights[d] + held[d] + size[here].sum() > target.chip_sram_bytes[d]
        reach = _highest_address if is_tight and not target.modelled.fit_by_size else _most_alive
        peak[d] += reach(size[here], first[here], last[here])
    return peak, weights, kept


def _most_alive(size: LongArray, first: LongArray, last: LongArray) -> int:
    """Returns the most bytes alive at once of buffers that live from ``first`` to ``last``."""
    change = np.zeros(int(last.max(initial=0)) + 2, dtype=np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return max(0, int(np.cumsum(change).max()))


def _highest_address(size: LongArray, first: LongArray, last: LongArray) -> int:
    """Returns the highest address when buffers take the lowest free address, the largest first.

    More than ``MOST_BY_SIZE`` buffers are placed in the order of ``first``, to save time.
    """
    address = np.zeros(len(size), dtype=np.int64)
    placed = np.empty(0, dtype=np.int64)
    is_by_size = len(size) <= MOST_BY_SIZE
    for i in np.argsort(-size, kind="stable") if is_by_size else range(len(size)):
        others = placed[(first[placed] <= last[i]) & (last[placed] >= first[i])]
        others = others[np.argsort(address[others], kind="stable")]
        ends = np.maximum.accumulate(address[others] + size[others])
        below = np.concatenate([[0], ends])  # start of each gap, then the end of all
        fits = np.flatnonzero(below[:-1] + size[i] <= address[others])
        address[i] = below[fits[0]] if len(fits) else below[-1]
        # In the order of ``first``, what has ended meets no later one.
        placed = np.append(placed if is_by_size else others, i)
    return int((address + size).max(initial=0))
