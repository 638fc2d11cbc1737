"""Orders for the slicer: a search over orders and kernels at once, and an order with few live bytes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.model.graph import ACTIVATION, Graph
from go_opt.model.plan import Candidate
from go_opt.search.methods.events import Event, Miss, Proposal, SearchView
from go_opt.solver.orders.cheapest import HOPELESS, Slicer
from go_opt.solver.orders.instance import instance
from go_opt.solver.orders.joint_orders import joint_orders

METHOD: Final = "slice: orders and kernels"
# A search short of time ends after this many orders in a row without a better plan.
PATIENCE: Final = 4000
WIDTH: Final = 8  # orders that are followed at a time


def joint_keys(search: SearchView) -> Iterator[Event]:
    """One event for each slicing.

    Ends with the time; short of it, after :data:`PATIENCE` in a row without a better plan as well.
    """
    case = instance(search.graph, search.target)
    num_stages, cap_s = search.requested.num_stages, HOPELESS * search.best_s
    arrange = search.requested.contiguous
    slicer = Slicer(case, search.passing, search.rules, cap_s, search.replicates, num_stages, arrange)

    def known() -> Candidate | None:
        plan = search.best_plan
        if plan is None:
            return None
        replication = plan.replication if search.replicates else None
        given = plan.placement, plan.order, plan.fusion_group, replication
        return Candidate(METHOD, *given, expected_s=search.best_s)

    misses, best_s = 0, search.best_s
    for plan in joint_orders(slicer, seed=search.request.seed, known=known):
        misses, best_s = (misses + 1, best_s) if search.best_s == best_s else (0, search.best_s)
        if search.is_late or (misses > PATIENCE and search.request.max_evaluations is None):
            return
        yield _event(search, plan)


def _event(search: SearchView, plan: Candidate | None) -> Event:
    """A sliced order where it is better than the best plan; None: slicing was of no use."""
    if plan is None or plan.expected_s >= search.best_s:
        return Miss(METHOD)
    return Proposal(**vars(plan) | {"method": METHOD})


class _Begun(NamedTuple):
    """The ops that have run; the less of two needs less memory."""

    peak_bytes: int
    live_bytes: int
    done: int  # a bit for each op
    order: tuple[int, ...]


def least_memory_order(graph: Graph, tensor_bytes: LongArray) -> IntArray:
    """[N] a topological order with a low peak, by beam search: the square of the number of ops.

    Args:
      tensor_bytes: [K] of each tensor. Activations are alive from their producer to their last reader.
    """
    size = np.where(graph.tensor_kind == ACTIVATION, tensor_bytes, 0).tolist()
    ops, (ptr, before) = range(graph.num_ops), graph.predecessors
    needed = [_bits(before[ptr[op] : ptr[op + 1]].tolist()) for op in ops]
    readers = [_bits(graph.readers_of(k)) for k in range(len(size))]
    written = [sum(size[k] for k in graph.outputs_of(op)) for op in ops]
    touched = [{*graph.outputs_of(op), *(k for k, _ in graph.reads_of(op))} for op in ops]
    touched = [{k for k in some if not graph.tensor_is_output[k]} for some in touched]
    begun = [_Begun(0, 0, 0, ())]
    for _ in ops:
        found: dict[int, _Begun] = {}
        for one in begun:
            for op in ops:
                if one.done >> op & 1 or needed[op] & ~one.done:
                    continue
                done, during = one.done | 1 << op, one.live_bytes + written[op]
                after = during - sum(size[k] for k in touched[op] if not readers[k] & ~done)
                more = _Begun(max(one.peak_bytes, during), after, done, (*one.order, op))
                found[done] = min(more, found.get(done, more))
        begun = heapq.nsmallest(WIDTH, found.values())
    return np.array(begun[0].order, np.int32)


def _bits(ops: Iterable[int]) -> int:
    return sum(1 << op for op in set(ops))
