"""Proposals of the slicer: the cheapest cuts of an order, with relays and without; copies of one chip."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, Unpack

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, cost_tables, list_schedule
from go_opt.env.copies.stages import Stages, stage_tables, stages_of, stages_of_sizes
from go_opt.env.cost.tables import hop_seconds_per_byte
from go_opt.env.kernels.fusion import LoopRoles, priority_fusion
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.plan import Candidate, Plan
from go_opt.search.methods.events import Event, Miss, Proposal, SearchView, copies_are_open
from go_opt.solver import ForwardingMode, slice_order, slice_order_streamed
from go_opt.solver.constraints.plans import constrained_fusion
from go_opt.solver.copies.relays import relayed_terms
from go_opt.solver.orders.cheapest import charged_slicing, streams_weights
from go_opt.solver.orders.orders import by_arrival
from go_opt.solver.problem.replica_allocation import allocated_chips
from go_opt.solver.problem.segment_rules import SegmentRules
from go_opt.solver.slicing.slice import slice_order_forwarded, slice_order_replicated

# Copies share nothing but the host, so an order and its kernels cost each chip what they cost one chip
# alone, over the number of copies. Where all fits one chip of the only kind no pipeline beats that:
# no more than all chips can be busy.


COPIED: Final = ", copied"
_JOINED: Final = 2.0  # a priority by which an op joins whatever kernel it may


def copies(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Proposal]:
    """Everything on each chip of a kind; of as many as are of use, where the host sets the pace."""
    if not copies_are_open(search.target, search.request) or search.requested.num_stages not in (None, 1):
        return
    kernel_of = number_kernels(order, group)
    tables = search.tables  # under constraints each chip is of a kind of its own
    work_s = kernel_seconds(tables, kernel_of).sum(axis=1)  # [Q]
    for kind in range(len(search.target.kinds)):
        chips = np.flatnonzero(search.target.chip_kind == kind)
        if not tables.can_run[tables.chip_kind[chips]].all():
            continue
        of_chip = int(tables.chip_kind[chips[0]])
        first, size = np.full(len(order), chips[0], dtype=np.int32), len(chips)
        if search.graph.has_scope("sequence"):  # which stays on its chip
            size = min(size, search.graph.sequences)
            if size == 1:  # that one method has already
                continue
        name = method + COPIED
        yield Proposal(name, first, order, group, replication=np.full_like(first, size))
        enough = int(allocated_chips(work_s[of_chip : of_chip + 1], size, search.last_interval_s)[0])
        if enough < size:
            yield Proposal(name, first, order, group, replication=np.full_like(first, enough))


def joined_kernels(search: SearchView, roles: LoopRoles, group: IntArray) -> tuple[IntArray, IntArray]:
    """``(order, kernels)``, [N] each: the kernels ``group`` joined wherever they may be.

    That saves overheads and traffic and costs nothing on one chip, but for memory. It may take ops away
    from the place where a slicing would cut, and so is of use where nothing has to be cut.
    """
    graph = search.graph
    joined = priority_fusion(graph, roles, group, np.full(graph.num_ops, _JOINED))
    order = list_schedule(graph, joined, -np.arange(int(joined.max()) + 1, dtype=np.float64))
    return order, constrained_fusion(search.requested, order, joined)


RELAYED: Final = ", relayed"
REPLICATED: Final = ", replicated"
STREAMED: Final = ", streaming counted"
LATENCY: Final = ", latency counted"
FORWARDED: Final = ", weights forwarded"
WAITING: Final = ", weights forwarded, waiting counted"
ARRIVAL: Final = ", by arrival"
NEARLY: Final = 1.01  # times its latency over all sequences: a plan that waits for streamed weights as well
FAR: Final = 1.1  # times the best plan: chips wait so much that counting it takes long and seldom helps
MOST_SIZES: Final = 4  # of the stages, whose number is given, for one order
ALLOTTED: Final = ", replicas allocated"


def slices(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Event]:
    """The cheapest slicings of ``order``: where relays are open, those that need none first."""
    order = search.requested.contiguous(order, group)
    yield from _cheapest(search, method, order, group, is_relayed=False)
    if search.forwarding == "relayed":
        yield from _cheapest(search, method + RELAYED, order, group, is_relayed=True)
    yield from copies(search, method, order, group)
    if search.replicates:
        yield from _replicated(search, method + REPLICATED, order, group)
        if not search.target.goes_forward:
            return
        if search.request.max_latency_s is not None and search.best_plan is not None:
            # The stages that keep to the latency are few: more chips for each cost no latency.
            yield reallocated(search, search.best_plan, method + ALLOTTED)


def slices_of_towers(
    search: SearchView, method: str, order: IntArray, tables: CostTables, rising: IntArray, group: IntArray
) -> Iterator[Event]:
    """The cheapest slicing without relays that gives each tower chips of its own."""
    asked = search.rules.get("rising")
    rising = rising if asked is None else np.concatenate([asked, rising], axis=1)
    yield from _cheapest(search, method, order, group, is_relayed=False, tables=tables, rising=rising)


def widest_slices(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Event]:
    """The same in one go: with relays, and with replicated stages, where they are open."""
    order = search.requested.contiguous(order, group)
    yield from copies(search, method, order, group)
    if search.replicates:
        yield from _replicated(search, method, order, group)
        return
    yield from _with_one_chip_each(search, method, order, group)


def least_s(search: SearchView, order: IntArray, group: IntArray, at_most_s: float) -> float:
    """The interval of the cheapest cuts of :func:`widest_slices`; infinite if more than ``at_most_s``."""
    given = (search.tables, search.requested.contiguous(order, group), group)
    asked = partial(slice_order_replicated if search.replicates else slice_order, *given, **search.rules)
    slicing = asked(forwarding=search.forwarding, at_most_s=at_most_s)
    return math.inf if slicing is None else slicing.expected_s


def slices_of_sequences(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Event]:
    """The same for sequences in flight: without replicas, each chip may run what arrives first."""
    yield from _with_one_chip_each(search, method, search.requested.contiguous(order, group), group)
    if search.replicates:
        yield from widest_slices(search, method, order, group)


def _with_one_chip_each(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Event]:
    yield from _cheapest(search, method, order, group, is_relayed=search.forwarding == "relayed")


def _cheapest(
    search: SearchView,
    method: str,
    order: IntArray,
    group: IntArray,
    *,
    is_relayed: bool,
    tables: CostTables | None = None,
    **rules: Unpack[SegmentRules],
) -> Iterator[Event]:
    """The cheapest slicing, for a low latency on fewer chips; if it streams weights, charged for them.

    ``tables`` to slice by, and ``rules`` beside the user's, may be given.
    """
    needs_all = search.target.constraints.no_skip == "all"
    min_chips = search.requested.num_stages or (search.target.num_chips if needs_all else 1)
    forwarding: ForwardingMode = "free" if search.target.constraints.triangle == "off" else "adjacent"
    if is_relayed:
        forwarding = "relayed"
    at_most_s = search.best_s if search.request.is_interval_alone else math.inf
    given = (tables or cost_tables(search.graph, search.target), order, group)
    options: dict[str, Any] = {"forwarding": forwarding, "min_chips": min_chips, **search.rules, **rules}
    cut = partial(slice_order, *given, at_most_s=at_most_s, **options)
    cuts = (partial(cut, max_chips=chips) for chips in _chip_counts(search))
    charged = partial(slice_order_streamed, *given, max_chips=search.requested.num_stages, **options)
    yield from _in_turn(search, method, cuts, charged)
    if min_chips == 1 and _waits_for_sequences(search):
        options.pop("min_chips")
        slicing = slice_order_streamed(*given, counts_latency=True, at_most_s=at_most_s, **options)
        yield _sliced(search, method + LATENCY, slicing)
        yield from _by_arrival(search, method + LATENCY, slicing)


def _waits_for_sequences(search: SearchView) -> bool:
    """Whether each sequence's wait for its last inference binds the last proposal."""
    loops_s = search.tables.loops * search.last_interval_s
    return search.request.objective == "throughput" and 0.0 < loops_s <= search.last_latency_s * NEARLY


def _chip_counts(search: SearchView) -> Iterator[int]:
    """How many chips to slice for at most: those of the stages, or all; then fewer for a low latency."""
    most, request = search.requested.num_stages or search.target.num_chips, search.request
    yield most
    if search.requested.num_stages or search.target.constraints.no_skip == "all":
        return
    if request.objective == "latency":
        yield from (2**i for i in range(most.bit_length()) if 2**i < most)
    elif search.last_latency_s > request.latency_limit_s:
        keep, exceed = 0, most
        while exceed - keep > 1:
            chips = (keep + exceed) // 2
            yield chips
            keep, exceed = (
                (chips, exceed) if search.last_latency_s <= request.latency_limit_s else (keep, chips)
            )


def _replicated(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Event]:
    """The cheapest slicing into stages, each on as many chips as it needs; charged likewise."""
    if search.requested.num_stages is not None:
        yield from _staged(search, method, order, group)
        return
    forwarding, rules = search.forwarding, search.rules
    cut = partial(slice_order_replicated, forwarding=forwarding)
    cuts = (
        partial(cut, tables, order, group, at_most_s=search.best_s, **rules)
        for tables in _links_in_turn(search)
    )
    given = (search.tables, order, group)
    charged = partial(slice_order_streamed, *given, forwarding=forwarding, replicates=True, **rules)
    streams = yield from _in_turn(search, method, cuts, charged)
    if streams and search.target.goes_forward:
        forward = partial(slice_order_forwarded, *given, forwarding=forwarding, **rules)
        at_most_s = min(search.best_s, search.last_interval_s)
        before_s, another_s = search.best_s, search.left_s / 2
        slicing = forward(at_most_s=at_most_s)
        yield _sliced(search, method + FORWARDED, slicing)
        is_far = slicing is not None and search.last_interval_s > FAR * before_s
        is_long = search.left_s < another_s  # so that the same again would end too late
        if not (search.tables.weight_prefetch or is_far or is_long) and math.isfinite(search.best_s):
            waited = forward(at_most_s=search.best_s, waits=True)
            yield _sliced(search, method + WAITING, waited)


def _staged(search: SearchView, method: str, order: IntArray, group: IntArray) -> Iterator[Event]:
    """Slicings into the number of stages asked for: cuts for given sizes, then sizes for these cuts."""
    num_stages, num_chips = search.requested.num_stages, search.target.num_chips
    assert num_stages is not None
    kernel_of = number_kernels(order, group)
    kernel_s = kernel_seconds(search.tables, kernel_of)
    size, tried = np.bincount(np.arange(num_chips) % num_stages), set[bytes]()
    while size.tobytes() not in tried and len(tried) < MOST_SIZES:
        tried.add(size.tobytes())
        cut = partial(_cut_into, search, order, group, stages_of_sizes(size))
        slicing = cut(slice_order)
        yield _sliced(search, method, slicing)
        if slicing is None:
            return
        streamed = partial(cut, slice_order_streamed)
        charged = charged_slicing(slicing, search.last_interval_s, search.best_s, streamed)
        if charged is not None:
            yield _sliced(search, method + STREAMED, charged)
        chip = np.zeros(kernel_s.shape[1], np.int64)
        chip[kernel_of] = slicing.placement
        _, stage = np.unique(chip, return_inverse=True)
        work_s = np.bincount(stage, weights=kernel_s[search.tables.chip_kind[chip], np.arange(len(chip))])
        size = allocated_chips(work_s.astype(np.float64), num_chips)


def _cut_into(
    search: SearchView,
    order: IntArray,
    group: IntArray,
    stages: Stages,
    slicer: Callable[..., Candidate | None],
    **limits_s: float,
) -> Candidate | None:
    """The cheapest slicing with a segment for each stage, as if chips were a ring; on the target's chips."""
    behind = stages.first_chip + stages.size
    rules = search.rules.copy()
    if (allowed := rules.get("allowed")) is not None:  # on every chip of the stage
        rules["allowed"] = np.logical_and.reduceat(allowed[: behind[-1]], stages.first_chip, axis=0)
    links = hop_seconds_per_byte(search.tables)[behind - 1]
    tables = stage_tables(search.tables, stages)._replace(is_ring=True, link_s_per_byte=links)
    options: dict[str, Any] = {"forwarding": search.forwarding, "min_chips": len(behind), **rules}
    found = slicer(tables, order, group, **options, **limits_s)
    if found is None:
        return None
    chip, chips = stages.first_chip[found.placement], stages.size[found.placement]
    return replace(found, placement=chip, replication=chips)


def _in_turn(
    search: SearchView,
    method: str,
    cuts: Iterator[Callable[[], Candidate | None]],
    charged: Callable[..., Candidate | None],
) -> Generator[Event, None, bool]:
    """What each of ``cuts`` finds; then, where the last one's streams weights, what ``charged`` does.

    Where sequences wait for their last inference, streamed weights do not bind.
    Returns whether it streams some.
    """
    slicing = None
    for cut in cuts:
        slicing = cut()
        yield _sliced(search, method, slicing)
        yield from _by_arrival(search, method, slicing)
    if slicing is None or not streams_weights(slicing, search.last_interval_s):
        return False
    if _waits_for_sequences(search):
        return False
    slicing = charged_slicing(slicing, search.last_interval_s, search.best_s, charged)
    if slicing is not None:
        yield _sliced(search, method + STREAMED, slicing)
        yield from _by_arrival(search, method + STREAMED, slicing)
    return True


def _by_arrival(search: SearchView, method: str, slicing: Candidate | None) -> Iterator[Event]:
    """The same cuts with another order on each chip, where sequences wait for the sample's way."""
    is_open = slicing is not None and slicing.replication is None and search.request.decide == "all"
    if slicing is not None and is_open and _waits_for_sequences(search):
        order = by_arrival(search.tables, slicing.placement, slicing.order, slicing.fusion_group)
        yield _sliced(search, method + ARRIVAL, replace(slicing, order=order))


def _sliced(search: SearchView, method: str, slicing: Candidate | None) -> Proposal | Miss:
    """Where only placements are decided, ops run in the default order."""
    if slicing is None:
        return Miss(method)
    order = slicing.order
    if search.request.decide == "placement":
        order = np.arange(search.graph.num_ops, dtype=np.int32)
    plan = slicing.placement, order, slicing.fusion_group
    return Proposal(method, *plan, replication=slicing.replication, forwards=slicing.forwards)


def _links_in_turn(search: SearchView) -> Iterator[CostTables]:
    """Tables to slice by: replicas that each have links of their own share what crosses a cut.

    In how many parts depends on the stages on both sides, so links are taken to be that much faster.
    """
    tables = search.tables
    most = 1 if tables.is_ring else tables.num_chips
    for parts in sorted({most, *(2**i for i in range(most.bit_length()) if 2**i <= most)}, reverse=True):
        yield tables._replace(link_s_per_byte=tables.link_s_per_byte / parts)


def reallocated(search: SearchView, plan: Plan, method: str) -> Proposal:
    """A plan with as many chips for each of its stages as make the slowest of them the fastest.

    Stages are costed as the chips of a ring, each of which computes as fast as the stage's chips together.
    """
    own, num_chips = stages_of(plan.placement, plan.replication), search.target.num_chips
    stage = own.number(plan.placement)
    forwards = np.isin(own.first_chip, plan.forwards) & (own.size > 1)
    tables, free = search.tables, num_chips - int(own.size.sum())  # chips behind the last stage
    if own.size.max() > 1:
        ring = stages_of_sizes(np.append(own.size, np.ones(free, np.int64)))
        tables = stage_tables(tables, ring, np.pad(forwards, (0, free)))
    triangle = search.target.constraints.triangle if search.forwarding == "relayed" else "off"
    terms = relayed_terms(tables, stage, plan.order, plan.fusion_group, triangle)
    work_s = terms.compute_s[0][: len(own.size)] * own.size  # of each stage on one chip
    # Below what the busiest link takes more chips are of no use.
    first, size = stages_of_sizes(allocated_chips(work_s, num_chips, float(terms.link_s[0].max())))
    given = method, first[stage], plan.order, plan.fusion_group
    if size.max() == 1:
        return Proposal(*given)
    return Proposal(*given, replication=size[stage], forwards=tuple(first[forwards & (size > 1)].tolist()))
