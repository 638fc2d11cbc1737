"""One execution alone: links as resources, worked by hand, then the plain event simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import evaluate_plan, load_target, load_zoo
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from tests.env.numpy_twin import Twin
from tests.strategies import (
    chip_kind,
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)

US = 1e-6


def in_us(seconds: float) -> object:
    return pytest.approx(seconds * US, rel=1e-9)


def measured_graph(seconds: dict[str, float], edges: dict[str, tuple[str, ...]]) -> Graph:
    """Ops of measured cost; each writes 500 bf16 elements = 1000 bytes = 10 us a link."""
    b = GraphBuilder("measured")
    for name, cost in seconds.items():
        reads = [(source, None) for source in edges.get(name, ())]
        writes, measured_s = [(name, 500, "bf16")], {"chip": cost * US}
        b.add_op(
            name, "X", "vector", flops=0, dtype="bf16", reads=reads, writes=writes, measured_s=measured_s
        )
    return b.build()


def _add(b: GraphBuilder, name: str, reads: list[tuple[str, None]], cost: float) -> None:
    writes, measured_s = [(name, 500, "bf16")], {"chip": cost * US}
    b.add_op(name, "X", "vector", flops=0, dtype="bf16", reads=reads, writes=writes, measured_s=measured_s)


def test_one_chip_runs_kernel_after_kernel() -> None:
    graph, target = toy_graph(), small_mcm(1)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0,) * 6))
    assert metrics.makespan_s == in_us(2 + 43.4 + 10)  # ids, all kernels, out


def test_pipeline_without_contention_takes_its_latency() -> None:
    graph, target = toy_graph(), small_mcm(6)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, range(6)))
    assert metrics.makespan_s == in_us(2 + 43.4 + 5 * 11 + 10)


def test_two_chips_overlap() -> None:
    graph = measured_graph({"a": 3, "b": 4, "c": 5}, {"b": ("a",), "c": ("a",)})
    target = small_mcm(2)
    # a, then 1 + 10 us to chip 1 and c there; b runs on chip 0 meanwhile.
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 1)))
    assert metrics.makespan_s == in_us(3 + 11 + 5)


@pytest.mark.parametrize("overlap", [True, False])
def test_copies_run_beside_kernels_of_both_chips(overlap: bool) -> None:
    graph = measured_graph({"a": 3, "b": 20, "c": 15, "d": 1}, {"b": ("a",), "d": ("a", "c")})
    target = small_mcm(2, overlap=overlap)
    # a crosses from 3 to 14, while b runs on chip 0 from 3 to 23 and c on chip 1 from 0 to 15.
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 1, 1)))
    assert metrics.makespan_s == in_us(23)


def test_kernel_waits_for_the_dependency_on_another_chip() -> None:
    graph = measured_graph({"a": 3, "b": 4, "c": 5, "d": 1}, {"b": ("a",), "c": ("a",), "d": ("b", "c")})
    target = small_mcm(2, topology="all_to_all", dependency_overhead_s=7 * US)
    plan = make_plan(graph, target, (0, 0, 1, 0))
    # a ends at 3 and is on chip 1 at 14; c starts 7 later, ends at 26, and d starts 11 + 7 behind that.
    metrics = evaluate_plan(graph, target, plan)
    assert metrics.makespan_s == metrics.latency_s == in_us(45)
    assert evaluate_plan(graph, target, make_plan(graph, target, (0,) * 4)).makespan_s == in_us(13)


def test_second_tensor_waits_for_the_link() -> None:
    graph = measured_graph({"a": 3, "b": 4, "c": 5, "d": 6}, {"c": ("a",), "d": ("b",)})
    target = small_mcm(2)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 1, 1)))
    # a's tensor holds the link from 3 to 13, b's from 13 (not 7) to 23 and arrives at 24.
    assert metrics.makespan_s == in_us(24 + 6)
    # Without contention b would arrive at 7 + 11; c ends at 14 + 5.
    assert metrics.latency_s == in_us(19 + 6)


def test_tensor_waits_for_all_links_of_its_route() -> None:
    graph = measured_graph({"a": 1, "b": 2, "c": 5, "d": 6}, {"c": ("a",), "d": ("b",)})
    target = small_mcm(3)
    # a goes 1->2 at 1 and holds the link until 11. b, from 0 to 2, needs 0->1 and 1->2 at 2:
    # it leaves at 11 and arrives at 11 + 2 + 10.
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (1, 0, 2, 2)))
    assert metrics.makespan_s == in_us(23 + 6)


def test_at_the_same_time_the_lower_chip_sends_first() -> None:
    graph = measured_graph({"a": 1, "b": 1, "c": 0, "d": 0}, {"c": ("a",), "d": ("b",)})
    target = small_mcm(3)
    # Both want 1->2 at 1. b on chip 0 goes first and arrives at 13; a leaves at 11, arrives at 22.
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (1, 0, 2, 2)))
    assert metrics.makespan_s == in_us(22)


def test_slow_link_stays_busy_longer() -> None:
    graph = measured_graph({"a": 1, "b": 1, "c": 1, "d": 1}, {"c": ("a",), "d": ("b",)})
    links = [(0, 1, 1e8, 0.0), (1, 2, 0.5e8, 0.0)]
    target = small_mcm(3, topology="listed", links=links)
    # a over both links to chip 2 at 1: 0->1 is busy until 11, 1->2 until 21, it arrives at 21.
    # b over 0->1 to chip 1 is ready at 2, leaves at 11 and arrives at 21.
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 2, 1)))
    assert metrics.makespan_s == in_us(22)


def test_host_link_serves_in_order_of_need() -> None:
    b = GraphBuilder("two inputs")
    for name in ("p", "q"):  # 2000 bytes = 10 us each
        b.add_tensor(name, 1000, "bf16", "input")
    for name, source in (("first", "q"), ("second", "p")):
        reads, writes, measured_s = [(source, None)], [(name, 500, "bf16")], {"chip": 3 * US}
        b.add_op(
            name, "X", "vector", flops=0, dtype="bf16", reads=reads, writes=writes, measured_s=measured_s
        )
        b.mark_output(name)
    graph, target = b.build(), small_mcm(2)
    # first: q there at 10, ends at 13, sent by 18. second: p there at 20, ends at 23, sent by 28.
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 1)))
    assert metrics.makespan_s == in_us(28)
    target = small_mcm(kinds=[chip_kind("slow", kernel_overhead_s=20 * US), chip_kind("chip")])
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (1, 0), order=(1, 0)))
    # p first; second, on the kind it was not measured on, takes 3000 bytes = 3 us and 20 us of
    # overhead and ends at 33; first ends at 23; sent by 38.
    assert metrics.makespan_s == in_us(38)


def test_streamed_weights_come_before_the_first_kernel() -> None:
    graph, target = toy_graph(), small_mcm(1, sram_bytes=11_800)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0,) * 6))
    # The table, 10000 bytes = 50 us, then ids 2 us, the kernels, out.
    assert metrics.makespan_s == in_us(50 + 2 + 43.4 + 10)


@settings(max_examples=examples(400))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_agrees_with_the_twin(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, num_ops, kinds=kind_names(target))
    plan = random_plan(rng, graph, target)
    metrics = evaluate_plan(graph, target, plan)
    twin = Twin(graph, target, plan)
    assert metrics.makespan_s == pytest.approx(twin.makespan(metrics.stream_bytes.tolist()), rel=1e-9, abs=0)
    # Waiting for links only adds to the longest path.
    assert metrics.makespan_s >= metrics.latency_s * (1 - 1e-9)


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert_base"])
def test_agrees_with_the_twin_on_the_zoo(name: str) -> None:
    graph, target = load_zoo(name), load_target("gpu-4")
    plan = random_plan(np.random.default_rng(0), graph, target, fusion="legal")
    metrics = evaluate_plan(graph, target, plan)
    twin = Twin(graph, target, plan)
    assert metrics.makespan_s == pytest.approx(twin.makespan(metrics.stream_bytes.tolist()), rel=1e-9)
