"""Plans that take one look each, orders for the slicer, and what all methods start from."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from go_opt.agents.decoding.proposals import Advice
from go_opt.common.arrays import IntArray, LongArray
from go_opt.env import cost_tables, greedy_fusion
from go_opt.errors import InfeasibleError
from go_opt.model.graph import ACTIVATION, Graph
from go_opt.search.methods.events import (
    Event,
    NoPlan,
    Proposal,
    SearchView,
    copies_are_open,
    has_static_constraints,
    may_replicate,
)
from go_opt.search.methods.slices import joined_kernels, slices, slices_of_towers, widest_slices
from go_opt.solver import earliest_finish_placement, greedy_slicing
from go_opt.solver.constraints.plans import constrained_fusion, constrained_starts
from go_opt.solver.orders import fixed_orders
from go_opt.solver.orders.orders import towers

MOST_OPS: Final = 2_000  # of which an order with few live bytes is found within half a second
WIDTH: Final = 8  # orders that are followed at a time
FAR: Final = 1.0  # gap of a plan behind which an order with few live bytes is cut


class _Begun(NamedTuple):
    """The first kernels of an order; the less of two needs less memory."""

    live_bytes: int  # of what others read later
    peak_bytes: int
    done: int  # a bit for each kernel that has run
    ready: frozenset[int]
    last: int  # kernel
    before: _Begun | None


class _Kernel:
    """What running a kernel changes; sets of kernels are bits of a number."""

    def __init__(self) -> None:
        self.written_bytes = 0
        self.needs = 0
        self.readers: set[int] = set()
        self.frees: list[tuple[int, int]] = []  # bytes, once all of these have run

    def after(self, begun: _Begun, number: int) -> tuple[int, int, int]:
        """Live and peak bytes, and the kernels that have run, after this one."""
        done, during = begun.done | 1 << number, begun.live_bytes + self.written_bytes
        freed = sum(size for size, readers in self.frees if not readers & ~done)
        return during - freed, max(begun.peak_bytes, during), done


def least_memory_order(graph: Graph, fusion_group: IntArray, tensor_bytes: LongArray) -> IntArray:
    """[N] a topological order with few live bytes, by beam search.

    Args:
      fusion_group: [N] kernels, whose ops stay together; what a kernel alone reads takes no memory.
      tensor_bytes: [K] of each tensor. Activations are alive from their producer to their last reader.
    """
    _, kernel_of = np.unique(fusion_group, return_inverse=True)
    kernels = _kernels(graph, kernel_of.tolist(), tensor_bytes.tolist())
    none = frozenset(number for number, kernel in enumerate(kernels) if not kernel.needs)
    begun: list[_Begun] = [_Begun(0, 0, 0, none, -1, None)]
    for _ in kernels:
        found: dict[int, tuple[int, int, int, int, int]] = {}
        for at, one in enumerate(begun):
            for number in one.ready:
                live_bytes, peak_bytes, done = kernels[number].after(one, number)
                more = live_bytes, peak_bytes, done, at, number
                found[done] = min(more, found.get(done, more))
        begun = [
            _Begun(live, peak, done, _ready(kernels, begun[at].ready, done, number), number, begun[at])
            for live, peak, done, at, number in heapq.nsmallest(WIDTH, found.values())
        ]
    place = np.zeros(len(kernels), np.int64)
    last: _Begun | None = begun[0]
    for at in reversed(range(len(kernels))):
        assert last is not None
        place[last.last], last = at, last.before
    return np.argsort(place[kernel_of], kind="stable").astype(np.int32)


def _kernels(graph: Graph, kernel_of: list[int], tensor_bytes: list[int]) -> list[_Kernel]:
    kernels = [_Kernel() for _ in range(max(kernel_of) + 1)]
    for k in np.flatnonzero(graph.tensor_kind == ACTIVATION).tolist():
        maker = kernel_of[graph.tensor_producer[k]]
        readers = {kernel_of[op] for op in graph.readers_of(k)}
        is_output = bool(graph.tensor_is_output[k])
        if readers == {maker} and not is_output:
            continue
        others = readers - {maker}
        kernels[maker].written_bytes += tensor_bytes[k]
        kernels[maker].readers |= others
        for reader in others:
            kernels[reader].needs |= 1 << maker
        for reader in () if is_output else others or {maker}:
            kernels[reader].frees.append((tensor_bytes[k], sum(1 << other for other in others)))
    return kernels


def _ready(kernels: list[_Kernel], ready: frozenset[int], done: int, last: int) -> frozenset[int]:
    """The kernels that may run next, after ``last``."""
    return (ready - {last}) | {
        reader for reader in kernels[last].readers if not kernels[reader].needs & ~done
    }


@dataclass
class Start:
    """What methods start from; orders and kernels are [N]."""

    search: SearchView
    advice: Future[Advice | None] | None = None  # of the policy, where one takes part

    @cached_property
    def order(self) -> IntArray:
        """The default order."""
        return np.arange(self.search.graph.num_ops, dtype=np.int32)

    @cached_property
    def kernels(self) -> IntArray:
        """Of the default order."""
        return self.kernels_along(self.order)

    def kernels_along(self, order: IntArray) -> IntArray:
        """Fused where that is open, else one each."""
        if self.search.request.decide == "placement":
            return self.order
        return constrained_fusion(self.search.requested, order, greedy_fusion(self.search.roles, order))

    @cached_property
    def joined(self) -> tuple[IntArray, IntArray]:
        """An order, and its kernels joined wherever they may be."""
        return joined_kernels(self.search, self.search.roles, self.kernels)

    @cached_property
    def short_branches_first(self) -> tuple[IntArray, IntArray]:
        """An order by depth, and kernels along it: what joins branches is part of the longest."""
        _, order = next(fixed_orders(self.search.graph, self.kernels, cuts_joins=True))
        return order, self.kernels_along(order)

    @property
    def best_kernels(self) -> IntArray:
        """For which orders are searched: joined, where whole plans are copied and nothing has to be cut."""
        target, request = self.search.target, self.search.request
        is_whole = copies_are_open(target, request) and not has_static_constraints(target)
        return self.joined[1] if is_whole else self.kernels

    @property
    def orders(self) -> dict[str, IntArray]:
        """A few orders by name, the default one first."""
        return {"default order": self.order, **dict(fixed_orders(self.search.graph, self.best_kernels))}


def greedy(start: Start) -> Iterator[Event]:
    is_adjacent = start.search.target.constraints.triangle != "off"
    slicing = greedy_slicing(start.search.tables, start.order, start.kernels, adjacent=is_adjacent)
    yield Proposal("greedy", slicing.placement, start.order, start.kernels)


def sliced(start: Start) -> Iterator[Event]:
    """The cheapest cuts of the default order: without relays, with relays, into replicated stages."""
    return slices(start.search, "slice: default order", start.order, start.kernels)


def least_memory(start: Start) -> Iterator[Event]:
    """If there is no plan so far: cuts of an order with few live bytes, each op a kernel."""
    search = start.search
    if search.best_plan is None and search.request.decide == "all":
        order = least_memory_order(search.graph, start.order, search.tables.tensor_bytes)
        yield from widest_slices(search, "slice: least memory, unfused", order, start.order)


def constrained(start: Start) -> Iterator[Event]:
    """Placements of the propagation engine, close to the best plan so far; a proof where there are none.

    Slicings keep what states ask for: where there is one already, the engine adds nothing.
    """
    is_free = not start.search.request.constraints and bool(start.search.tables.can_run.all())
    if is_free and start.search.best_plan is not None:
        return
    search, is_open = start.search, start.search.request.decide == "all"
    starts = constrained_starts(
        search.requested,
        start.order,
        start.kernels,
        forwarding=search.forwarding,
        guides=search.violating,
        fusion_is_open=is_open,
        replicates=may_replicate(search.target, search.request),
        seed=search.request.seed % 2**31,
    )
    if starts.conflict is not None:
        raise InfeasibleError(starts.why_none(), is_proven=True, conflict=tuple(map(str, starts.conflict)))
    if starts.limit_reached:
        yield NoPlan(starts.why_none())
    for found in starts.starts:
        order = found.order if is_open else start.order
        yield Proposal(found.method, found.placement, order, found.fusion_group)


def on_all_chips(start: Start) -> Iterator[Event]:
    """The same, if there is no plan so far: ops side by side can use more chips than slices of an order."""
    if start.search.best_plan is None:
        # Without a proof, the reason why slicings were rejected says more than the engine's limit.
        yield from (event for event in constrained(start) if not isinstance(event, NoPlan))


def one_kind(start: Start) -> Iterator[Event]:
    """Everything on one chip, of each kind in turn: no transfers at all."""
    target = start.search.target
    for kind, description in enumerate(target.kinds):
        placement = np.full_like(start.order, np.argmax(target.chip_kind == kind))
        yield Proposal(f"one {description.name}", placement, start.order, start.kernels)


def earliest_finish(start: Start) -> Iterator[Event]:
    yield _earliest_finish(start.search, "default order", start.order, start.kernels)


def joined(start: Start) -> Iterator[Event]:
    yield _earliest_finish(start.search, "joined kernels", *start.joined)
    yield from slices(start.search, "slice: joined kernels", *start.joined)


def sliced_orders(start: Start) -> Iterator[Event]:
    search, kernels = start.search, start.best_kernels
    _, *orders = start.orders.items()
    if not has_static_constraints(search.target):
        yield from (_earliest_finish(search, name, order, kernels) for name, order in orders)
    else:
        yield from slices(search, "slice: short branches first", *start.short_branches_first)
        orders = orders[1:]
        if search.gap >= FAR and search.graph.num_ops <= MOST_OPS:
            order = least_memory_order(search.graph, kernels, search.tables.tensor_bytes)
            yield from slices(search, "slice: least memory", order, kernels)
    for name, order in orders:
        yield from slices(search, f"slice: {name}", order, kernels)
    if search.request.decide == "all":
        yield from slices(search, "slice: default order, unfused", start.order, start.order)


def sliced_towers(start: Start) -> Iterator[Event]:
    """Slicings of the parts that only the last ops join, one part after the other."""
    search = start.search
    apart = towers(search.graph, cost_tables(search.graph, search.target))
    if apart is not None:
        group = start.kernels_along(apart[0])
        yield from slices_of_towers(search, "slice: towers", *apart, group)


def _earliest_finish(search: SearchView, name: str, order: IntArray, group: IntArray) -> Proposal:
    placement = earliest_finish_placement(search.tables, order, group, search.requested.shared_chips(group))
    return Proposal(f"earliest finish: {name}", placement, order, group)
