"""Slicing against the enumeration of all slicings, and the fast slicer against the table of segments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import (
    CostTables,
    Target,
    cost_tables,
    evaluate_batch,
    greedy_fusion,
    load_target,
    loop_roles,
)
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.solver import ForwardingMode, slice_order, slice_order_streamed
from go_opt.solver.verify.verifier import verify
from tests.solver.brute_force import (
    all_slicings,
    evaluate_placements,
    plenty_of_memory,
    segments_of,
)
from tests.strategies import (
    examples,
    kind_names,
    random_graph,
    random_order,
    random_simulated_target,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)


class Case:
    """A random short sequence: graph, target, an order and kernels along it."""

    def __init__(
        self, seed: int, *, max_ops: int = 9, max_chips: int = 4, is_simulated: bool = False, **fields: object
    ) -> None:
        rng = np.random.default_rng(seed)
        num_ops, num_chips = int(rng.integers(1, max_ops + 1)), int(rng.integers(1, max_chips + 1))
        topology = ("ring", "chain")[int(rng.integers(2))]
        draw = random_simulated_target if is_simulated else random_target
        self.target = draw(rng, num_chips=num_chips, topology=topology, **fields)
        graph = random_graph(rng, num_ops, kinds=kind_names(self.target))
        self.graph = with_shared_input(graph, rng) if rng.random() < 0.5 else graph
        self.tables = cost_tables(self.graph, self.target)
        self.order = random_order(rng, self.graph)
        self.group = greedy_fusion(loop_roles(self.graph), self.order)
        if rng.random() < 0.4:
            self.group = np.arange(self.graph.num_ops, dtype=np.int32)
        self.forwarding: ForwardingMode = "adjacent" if rng.random() < 0.6 else "free"

    def slicings(self) -> IntArray:
        return all_slicings(
            self.graph,
            self.tables,
            self.order,
            self.group,
            adjacent=self.forwarding == "adjacent",
            max_chips=self.target.num_chips,
        )

    def evaluate(self, tables: CostTables, placements: IntArray):
        return evaluate_placements(tables, placements, self.order, self.group)


def with_shared_input(graph: Graph, rng: np.random.Generator) -> Graph:
    """As many ops as ``graph`` has, about half of which read one large input."""
    b = GraphBuilder("shared input", precision=graph.precision)
    b.add_tensor("shared", int(rng.integers(1, 5000)), "float32", "input")
    for i in range(graph.num_ops):
        reads = [("shared", None)] if rng.random() < 0.5 else []
        reads += [(f"t{i - 1}", None)] if i and rng.random() < 0.7 else []
        writes = [(f"t{i}", int(rng.integers(0, 2000)), "float32")]
        flops = int(rng.integers(0, 5000))
        b.add_op(f"op{i}", "Add", "vector", flops=flops, dtype="float32", reads=reads, writes=writes)
    return b.build()


def least(seconds: FloatArray) -> float:
    return float(seconds.min()) if len(seconds) else np.inf


def reached(slicing: Candidate | None) -> float:
    return np.inf if slicing is None else slicing.expected_s


@settings(max_examples=examples(400))
@given(seed=seeds)
def test_slice_order_is_the_least_of_all_slicings(seed: int) -> None:
    case = Case(seed)
    placements = case.slicings()
    fits = case.evaluate(case.tables, placements).fits
    seconds = case.evaluate(plenty_of_memory(case.tables), placements).interval_s
    got = slice_order(case.tables, case.order, case.group, forwarding=case.forwarding)
    assert reached(got) == pytest.approx(least(seconds[fits]), rel=1e-9, abs=0)


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_fewer_chips_may_be_asked_for(seed: int) -> None:
    case = Case(seed, sram_bytes=10**9)
    for max_chips in range(1, case.target.num_chips + 1):
        placements = case.slicings()
        placements = placements[placements.max(axis=1, initial=0) < max_chips]
        seconds = case.evaluate(case.tables, placements).interval_s
        got = slice_order(
            case.tables,
            case.order,
            case.group,
            forwarding=case.forwarding,
            max_chips=max_chips,
        )
        assert reached(got) == pytest.approx(least(seconds), rel=1e-9, abs=0)


@settings(max_examples=examples(300))
@given(seed=seeds)
def test_the_reported_interval_is_the_environments_where_nothing_streams(seed: int) -> None:
    case = Case(seed, max_ops=30, max_chips=8)
    slicing = slice_order(case.tables, case.order, case.group, forwarding=case.forwarding)
    if slicing is None:
        return
    terms = evaluate_batch(case.tables, slicing.placement[None], case.order[None], case.group[None])
    assert terms.fits[0]
    if not terms.stream_bytes.any():
        assert slicing.expected_s == pytest.approx(terms.interval_s[0], rel=1e-9, abs=0)
    else:
        assert slicing.expected_s <= terms.interval_s[0] * (1 + 1e-9)


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_slicings_of_strict_targets_are_valid(seed: int) -> None:
    case = Case(seed, max_ops=30, max_chips=8)
    by_adjacent = slice_order(case.tables, case.order, case.group, forwarding="adjacent")
    charged = slice_order_streamed(case.tables, case.order, case.group, forwarding="adjacent")
    for slicing in (by_adjacent, charged):
        if slicing is not None:
            plan = plan_of(case.graph, case.target, slicing.placement, case.order, case.group)
            assert verify(case.graph, case.target, plan) == []


@settings(max_examples=examples(200))
@given(seed=seeds)
def test_slicings_of_chips_with_pages_and_addresses_are_valid(seed: int) -> None:
    """Stream buffers too; nothing takes less than the slicing without memory."""
    sram_bytes = int(10 ** np.random.default_rng(seed).uniform(3.7, 5.5))
    case = Case(seed, max_ops=30, max_chips=8, is_simulated=True, sram_bytes=sram_bytes)
    slicing = slice_order(case.tables, case.order, case.group, forwarding="adjacent")
    if slicing is not None:
        plan = plan_of(case.graph, case.target, slicing.placement, case.order, case.group)
        assert verify(case.graph, case.target, plan) == []
        relaxed = slice_order(plenty_of_memory(case.tables), case.order, case.group, forwarding="adjacent")
        assert relaxed is not None
        assert relaxed.expected_s <= slicing.expected_s * (1 + 1e-9)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_the_fast_slicer_agrees_with_the_table_of_segments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_kernels = int(rng.integers(1, 301 if examples(20) == 20 else 41))
    target = random_target(rng, topology="ring", num_chips=int(rng.integers(1, 40)), num_kinds=1)
    graph = random_graph(rng, num_kernels)
    tables = plenty_of_memory(cost_tables(graph, target))
    order = random_order(rng, graph)
    forwarding: ForwardingMode = "adjacent" if rng.random() < 0.7 else "free"
    fast = slice_order(tables, order, order, forwarding=forwarding)
    general = slice_order_streamed(tables, order, order, forwarding=forwarding)
    assert fast is not None
    assert reached(fast) == pytest.approx(reached(general), rel=1e-9, abs=0)


# Kernels of the toy graph take 3.4, 9, 6, 5, 6 and 14 us; the cuts between them carry 10, 20,
# 20, 20 and 10 us of link; ids comes in within 2 us, out leaves within 10 us.
@pytest.mark.parametrize(
    ("num_chips", "overlap", "cuts", "interval_us"),
    [
        (1, True, [0, 6], 43.4),
        (1, False, [0, 6], 55.4),  # 43.4 + 2 in + 10 out
        (2, True, [0, 4, 6], 23.4),  # 3.4 + 9 + 6 + 5; chip 1 20, link 20
        (2, False, [0, 5, 6], 41.4),  # 29.4 + 2 + 10; chip 1 14 + 10 + 10
        (3, True, None, 20.0),  # the link of x and one more tensor; without it 26 remain
    ],
)
def test_toy_by_hand(num_chips: int, overlap: bool, cuts: list[int] | None, interval_us: float) -> None:
    graph, target = toy_graph(), small_mcm(num_chips, overlap=overlap)
    order = np.arange(6, dtype=np.int32)
    slicing = slice_order(cost_tables(graph, target), order, order, forwarding="adjacent")
    assert slicing is not None
    assert slicing.expected_s == pytest.approx(interval_us * 1e-6)
    assert cuts is None or list(segments_of(slicing)[0]) == cuts


def test_activations_that_fit_nowhere_have_no_slicing() -> None:
    # dense holds x (1000 bytes) while it writes h (1000 bytes).
    graph, target = toy_graph(), small_mcm(2, sram_bytes=1999)
    order = np.arange(6, dtype=np.int32)
    assert slice_order(cost_tables(graph, target), order, order, forwarding="adjacent") is None


def test_memory_moves_the_cut_by_hand() -> None:
    # One chip needs ids (800) and out (4000) twice and x, h, a at relu: 7800 bytes. Cut before
    # add, chip 1 holds s, x and out twice and y: 9000; any earlier, out and more. Cut before
    # logits, chip 0 needs ids and y twice and 3000 at relu: 5800; chip 1 y and out twice: 6000.
    graph, target = toy_graph(), small_mcm(2, sram_bytes=7000)
    order = np.arange(6, dtype=np.int32)
    tables = cost_tables(graph, target)
    found = slice_order(tables, order, order, forwarding="adjacent")
    assert found is not None
    assert list(segments_of(found)[0]) == [0, 5, 6]
    assert found.expected_s == pytest.approx(29.4e-6)
    assert slice_order(tables, order, order, forwarding="adjacent", at_most_s=29.3e-6) is None


@pytest.mark.parametrize("overlap", [True, False])
def test_chips_that_do_not_pay_send_for_free(overlap: bool) -> None:
    # Not overlapped and unpaid, only compute counts: 23.4 us as where the links overlap.
    graph, target = toy_graph(), small_mcm(2, overlap=overlap, pays_transfers=False)
    order = np.arange(6, dtype=np.int32)
    slicing = slice_order(cost_tables(graph, target), order, order, forwarding="adjacent")
    assert reached(slicing) == pytest.approx(23.4e-6)


def test_an_input_read_twice_on_a_chip_comes_in_once() -> None:
    # 2 us in for each of two chips, 3 us of compute for each op: 2 x 3 + 2 = 8 us.
    b = GraphBuilder("read by all")
    b.add_tensor("in", 400, "int8", "input")
    for i in range(4):
        measured = {"chip": 3e-6}
        b.add_op(
            f"op{i}", "Relu", "vector", flops=0, dtype="int8", reads=[("in", None)], writes=[],
            measured_s=measured,
        )  # fmt: skip
    graph, target = b.build(), small_mcm(2, overlap=False)
    order = np.arange(4, dtype=np.int32)
    slicing = slice_order(cost_tables(graph, target), order, order, forwarding="adjacent")
    assert reached(slicing) == pytest.approx(8e-6)


def test_mcm_of_36_chips() -> None:
    rng = np.random.default_rng(5)
    graph, target = random_graph(rng, 60), load_target("mcm-6x6")
    order = np.arange(60, dtype=np.int32)
    slicing = slice_order(cost_tables(graph, target), order, order, forwarding="adjacent")
    assert slicing is not None
    assert verify(graph, target, plan_of(graph, target, slicing.placement, order, order)) == []


def plan_of(graph: Graph, target: Target, placement: IntArray, order: IntArray, group: IntArray) -> Plan:
    return Candidate("test", placement, order, group).plan(graph, target)
