"""Cases worked by hand: one effect each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from go_opt.env import Target, parse_target
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from tests.strategies import chip_kind, make_plan, simulated_kind, simulated_package, target_toml

US = 1e-6


def package(num_chips: int, kind: dict[str, Any] | None = None, **changes: Any) -> Target:
    """1 us per 100 vector flops and per 1000 bytes; links take 10 us per 1000 bytes, no latency."""
    fields = changes.pop("fields", {})
    chips = chip_kind(
        count=num_chips, kernel_overhead_s=0.0, simulator=simulated_kind(**(kind or {})), **fields
    )
    text = target_toml(
        kinds=[chips], link_latency_s=0.0, simulator=simulated_package(**changes), triangle="longest_path"
    )
    return parse_target(text, "by hand")


def chain(*flops: int, elements: int = 500) -> Graph:
    """Vector ops one behind the other; tensors of 1000 bytes."""
    b = GraphBuilder("chain")
    for i, work in enumerate(flops):
        reads = [(f"t{i - 1}", None)] if i else []
        writes = [(f"t{i}", elements, "float32")]
        b.add_op(f"op{i}", "Exp", "vector", flops=work, dtype="float32", reads=reads, writes=writes)
    b.mark_output(writes[0][0])
    return b.build()


@pytest.mark.parametrize(
    ("buffers", "interval_us"),
    [
        # The reader keeps the tensor's only buffer for its 20 us, and the next takes 10 us to come.
        (1, 30.0),
        # The next tensor comes while the reader computes: the slower chip is all that counts.
        (2, 20.0),
        (3, 20.0),
    ],
)
def test_back_pressure(buffers: int, interval_us: float) -> None:
    graph = chain(1000, 2000)
    target = package(2, buffers=buffers)
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0, 1]))
    # t1 is what the host reads: 1000 bytes in 5 us, beside all else.
    assert metrics.interval_s == pytest.approx(interval_us * US)
    assert metrics.makespan_s == pytest.approx((10 + 10 + 20 + 5) * US)
    assert metrics.simulation is not None
    assert metrics.simulation.period == 1


def test_no_back_pressure_without_buffers_to_fill() -> None:
    graph = chain(1000, 2000)
    target = package(2, buffers=1)
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0, 1]), without=("buffers",))
    assert metrics.interval_s == pytest.approx(20 * US)


def two_flows() -> Graph:
    """``a`` on chip 0 and ``b`` on chip 1 both send to ``c`` on chip 2, over link 1."""
    b = GraphBuilder("two flows")
    for name in ("a", "b"):
        b.add_op(
            name, "Exp", "vector", flops=100, dtype="float32", writes=[(f"t{name}", 500, "float32")], reads=[]
        )
    b.add_op(
        "c",
        "Add",
        "vector",
        flops=100,
        dtype="float32",
        reads=[("ta", None), ("tb", None)],
        writes=[("tc", 500, "float32")],
    )
    b.mark_output("tc")
    return b.build()


def test_two_flows_on_one_link() -> None:
    graph, target = two_flows(), package(3)
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0, 1, 2]))
    # Link 1 carries both, 10 us each: it is the slowest.
    assert metrics.interval_s == pytest.approx(20 * US)
    assert metrics.bottleneck == "link 1->2"
    # ta: 1 us computed, 10 us on link 0 but forwarded from its first byte; tb is ready at the same
    # time and first on link 1. One behind the other they are through after 21 us, c computes for
    # 2 us (3000 bytes read and written take 3 us), and tc is 5 us on its way out.
    assert metrics.makespan_s == pytest.approx((1 + 10 + 10 + 3 + 5) * US)


def test_packets_are_forwarded_when_complete_and_carry_headers() -> None:
    graph = two_flows()
    target = package(3, packet_bytes=100, packet_header_bytes=10)
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0, 1, 2]))
    # A tenth more to send. The first packet of ta, 1.1 us, must be there before link 1 takes it.
    assert metrics.interval_s == pytest.approx(22 * US)
    alone = chain(100, 100)
    far = simulate_plan(alone, target, make_plan(alone, target, [0, 2]))
    # 1 us computed (1000 bytes moved take as long), a packet over link 0, all over link 1.
    assert far.makespan_s == pytest.approx((1 + 1.1 + 11 + 2 + 5) * US)


def test_dma_engine_and_set_up() -> None:
    b = GraphBuilder("two tensors")
    writes = [("t0", 500, "float32"), ("t1", 500, "float32")]
    b.add_op("make", "Split", "data_movement", flops=0, dtype="float32", reads=[], writes=writes)
    for i in range(2):
        b.add_op(
            f"read{i}",
            "Exp",
            "vector",
            flops=100,
            dtype="float32",
            reads=[(f"t{i}", None)],
            writes=[(f"out{i}", 1, "float32")],
        )
    graph = b.build()
    plans = [0, 1, 1]
    one = package(2, {"dma_engines": 1, "dma_setup_s": 4 * US})
    metrics = simulate_plan(graph, one, make_plan(graph, one, plans))
    # One engine sets up (4 us) and sends (10 us) one tensor after the other.
    assert metrics.interval_s == pytest.approx(28 * US)
    two = package(2, {"dma_engines": 2, "dma_setup_s": 4 * US})
    metrics = simulate_plan(graph, two, make_plan(graph, two, plans))
    # With two the set-up hides behind the other's transfer.
    assert metrics.interval_s == pytest.approx(20 * US)


def test_reader_waits_for_the_dependency() -> None:
    graph = chain(1000, 2000)
    target = package(2, fields={"dependency_overhead_s": 3 * US})
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0, 1]))
    assert metrics.makespan_s == pytest.approx((10 + 10 + 3 + 20 + 5) * US)
    assert metrics.interval_s == pytest.approx(20 * US)  # it delays every tensor alike


def test_half_filled_tile() -> None:
    b = GraphBuilder("product")
    b.add_tensor("x", 16 * 64, "float32", "input")
    b.add_tensor("w", 64 * 32, "float32", "weight")
    b.add_op(
        "product",
        "MatMul",
        "matrix",
        flops=2 * 16 * 64 * 32,
        dtype="float32",
        reads=[("x", None), ("w", None)],
        writes=[("y", 16 * 32, "float32")],
    )
    graph = b.build()
    fields = {"sram_bytes_per_s": 1e12}
    whole = package(1, {"tile": [16, 64, 32], "fill_s": 3 * US}, fields=fields)
    half = package(1, {"tile": [16, 64, 64], "fill_s": 3 * US}, fields=fields)
    work_us = 2 * 16 * 64 * 32 / 1000
    metrics = simulate_plan(graph, whole, make_plan(graph, whole, [0]))
    assert metrics.compute_s[0] == pytest.approx((work_us + 3) * US)
    metrics = simulate_plan(graph, half, make_plan(graph, half, [0]))
    assert metrics.compute_s[0] == pytest.approx((2 * work_us + 3) * US)
    metrics = simulate_plan(graph, half, make_plan(graph, half, [0]), without=("shapes",))
    assert metrics.compute_s[0] == pytest.approx(work_us * US)


def uneven(num_weights: int = 0) -> Graph:
    """A chain of 3000, 2000, 2000 and 3000 bytes, its output of 2; its last op reads weights of 1000 each."""
    b = GraphBuilder("uneven")
    for i in range(num_weights):
        b.add_tensor(f"w{i}", 500, "float32", "weight")
    for i, elements in enumerate((1500, 1000, 1000, 1500, 1)):
        reads = [(f"t{i - 1}", None)] if i else []
        reads += [(f"w{k}", None) for k in range(num_weights)] if i == 4 else []
        writes = [(f"t{i}", elements, "float32")]
        b.add_op(f"op{i}", "Exp", "vector", flops=1, dtype="float32", reads=reads, writes=writes)
    b.mark_output("t4")
    return b.build()


# By size: t0 at 0..3000, t3 as well, for t0 is gone by then. Of the smaller ones t1 lies beside t0 at
# 3000..5000; t2, alive with t1 and then with t3, finds place behind both only: 5000..7000. Only 5000
# bytes are alive at a time, and with t2 at 0..2000 and t3 behind it they would do. The output: 4 bytes.
def test_activations_with_holes_between_them() -> None:
    graph = uneven()
    for sram_bytes, is_valid in ((7004, True), (7003, False), (6000, False)):
        target = package(1, fields={"sram_bytes": sram_bytes})
        plan = make_plan(graph, target, [0] * 5)
        metrics = simulate_plan(graph, target, plan)
        assert metrics.valid == is_valid
        assert metrics.peak_bytes[0] == 7004
        without = simulate_plan(graph, target, plan, without=("memory",))
        assert without.valid
        assert without.peak_bytes[0] == 5004
    assert metrics.reason == (
        "out of memory: activations on chip 0 reach up to byte 7004 of 6000, "
        "though their sizes add up to less"
    )
    # With op1 and op2 in one kernel t1 is stored nowhere: 3000 and 2000 beside them.
    fused = simulate_plan(graph, target, make_plan(graph, target, [0] * 5, fusion_group=[0, 1, 1, 2, 3]))
    assert fused.valid
    assert fused.peak_bytes[0] == 5004


def test_no_addresses_where_all_fits_side_by_side() -> None:
    graph, target = uneven(), package(1, fields={"sram_bytes": 10_004})
    assert simulate_plan(graph, target, make_plan(graph, target, [0] * 5)).peak_bytes[0] == 5004


@pytest.mark.parametrize(("stream_buffer_bytes", "stream_bytes"), [(0, 904), (96, 1000), (97, 1001)])
def test_a_weight_streams_because_of_holes(stream_buffer_bytes: int, stream_bytes: int) -> None:
    graph = uneven(num_weights=2)
    # Sizes add up to 5004 and 2000; with holes there is room for 1096 bytes of the weights.
    target = package(1, {"stream_buffer_bytes": stream_buffer_bytes}, fields={"sram_bytes": 8100})
    plan = make_plan(graph, target, [0] * 5)
    metrics = simulate_plan(graph, target, plan)
    assert metrics.valid, metrics.reason
    assert metrics.peak_bytes[0] == 7004
    assert metrics.stream_bytes[0] == stream_bytes
    assert metrics.weight_bytes[0] == 2000 - stream_bytes
    assert simulate_plan(graph, target, plan, without=("memory",)).stream_bytes[0] == 0


def test_holes_that_no_streaming_weight_makes_up_for() -> None:
    graph, target = uneven(num_weights=2), package(1, fields={"sram_bytes": 7000})
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0] * 5))
    assert "activations on chip 0 reach up to byte 7004 of 7000" in metrics.reason


def test_no_room_for_the_stream_buffer() -> None:
    graph = uneven(num_weights=2)
    target = package(1, {"stream_buffer_bytes": 997}, fields={"sram_bytes": 8000})
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0] * 5))
    assert "activations on chip 0 reach up to byte 7004 of 8000" in metrics.reason
    target = package(1, {"stream_buffer_bytes": 2997}, fields={"sram_bytes": 8000})
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0] * 5))
    reason = "chip 0 needs 7004 bytes for activations beside the buffer for streamed weights and has 8000"
    assert metrics.reason == f"out of memory: {reason}"


def test_alignment_costs_memory() -> None:
    graph = chain(100, 100, 100)
    tight = package(1, {"alignment_bytes": 800}, fields={"sram_bytes": 5000})
    loose = package(1, {"alignment_bytes": 500}, fields={"sram_bytes": 5000})
    # t2 leaves, twice; t0 and t1 at once: 1600 each, or 1000 each.
    assert not simulate_plan(graph, tight, make_plan(graph, tight, [0] * 3)).valid
    metrics = simulate_plan(graph, loose, make_plan(graph, loose, [0] * 3))
    assert metrics.valid
    assert metrics.peak_bytes[0] == 4000


def test_streamed_weights_come_one_kernel_ahead() -> None:
    b = GraphBuilder("streams")
    for i in range(2):
        b.add_tensor(f"w{i}", 2000, "float32", "weight")
        b.add_op(
            f"op{i}",
            "Exp",
            "vector",
            flops=1000,
            dtype="float32",
            reads=[(f"w{i}", None)] + ([("t0", None)] if i else []),
            writes=[(f"t{i}", 1, "float32")],
        )
    graph = b.build()
    # 4000 bytes each, 20 us over the host's link; 10 us computed each. There is room for t0 alone.
    target = package(1, fields={"sram_bytes": 2}, weight_prefetch=False)
    metrics = simulate_plan(graph, target, make_plan(graph, target, [0, 0]))
    assert metrics.stream_bytes[0] == 8000
    assert metrics.interval_s == pytest.approx(40 * US)
    assert metrics.bottleneck in ("host in", "chip 0 compute")
    assert metrics.simulation is not None
    np.testing.assert_allclose(metrics.simulation.stall_s[0, 3], 20 * US)


def test_each_chip_fetches_an_input_without_multicast() -> None:
    b = GraphBuilder("input")
    b.add_tensor("x", 500, "float32", "input")
    for i in range(2):
        b.add_op(
            f"op{i}",
            "Exp",
            "vector",
            flops=100,
            dtype="float32",
            reads=[("x", None)] + ([("t0", None)] if i else []),
            writes=[(f"t{i}", 1, "float32")],
        )
    graph = b.build()
    once, apart = package(2), package(2, host_multicast=False)
    assert simulate_plan(graph, once, make_plan(graph, once, [0, 1])).link_s[-2] == pytest.approx(5 * US)
    assert simulate_plan(graph, apart, make_plan(graph, apart, [0, 1])).link_s[-2] == pytest.approx(10 * US)
