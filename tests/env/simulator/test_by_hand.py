"""Cases worked by hand: one effect each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from go_opt.env import Target, parse_target
from go_opt.env.simulator import simulate_plan
from go_opt.graph import Graph
from go_opt.graph_builder import GraphBuilder
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


def holes(weight_elements: int = 0) -> Graph:
    """Three sources, the first of which is used up; ``large`` then has to lie beside the other two."""
    b = GraphBuilder("holes")
    if weight_elements:
        b.add_tensor("weight", weight_elements, "float32", "weight")

    def add(name: str, op_type: str, reads: list[str], elements: int) -> None:
        op_class, flops = ("data_movement", 0) if op_type == "Concat" else ("vector", 1)
        writes = [(f"t_{name}", elements, "float32")]
        sources = [(f"t_{source}", None) for source in reads]
        sources += [("weight", None)] if weight_elements and name == "end" else []
        b.add_op(name, op_type, op_class, flops=flops, dtype="float32", reads=sources, writes=writes)

    add("first", "Exp", [], 1000)
    add("second", "Exp", [], 500)
    add("third", "Exp", [], 500)
    add("use", "ReduceSum", ["first"], 1)
    add("large", "Exp", [], 1500)
    add("end", "Concat", ["second", "third", "use", "large"], 1)
    b.mark_output("t_end")
    return b.build()


def test_an_allocation_that_fits_in_one_order_only() -> None:
    graph = holes()
    # t_end, twice: 4 bytes. first 2000, second and third 1000 each, use 2, large 3000: 5002 at most at once.
    target = package(1, fields={"sram_bytes": 5500})
    bad = make_plan(graph, target, [0] * 6)
    metrics = simulate_plan(graph, target, bad)
    assert not metrics.valid
    # first 0..2000, second ..3000, third ..4000, use ..4002; large finds 2000 and 1494 free.
    assert "no hole on chip 0 takes tensor 't_large'" in metrics.reason
    good = make_plan(graph, target, [0] * 6, order=[0, 3, 1, 2, 4, 5])
    # first 0..2000, use ..2002; second 0..1000, third 1000..2000; large 2002..5002.
    metrics = simulate_plan(graph, target, good)
    assert metrics.valid, metrics.reason
    assert metrics.peak_bytes[0] == 5002 + 4
    assert simulate_plan(graph, target, bad, without=("memory",)).valid


def test_a_weight_streams_where_an_activation_finds_no_hole() -> None:
    graph = holes(weight_elements=750)
    # With the weight of 1500 bytes all add up to 6506, but large needs those from 4002 to 7002.
    target = package(1, fields={"sram_bytes": 7010})
    plan = make_plan(graph, target, [0] * 6)
    metrics = simulate_plan(graph, target, plan)
    assert metrics.valid, metrics.reason
    assert metrics.stream_bytes[0] == 1500
    assert metrics.peak_bytes[0] == 7002 + 4
    assert simulate_plan(graph, target, plan, without=("memory",)).stream_bytes[0] == 0
    small = package(1, fields={"sram_bytes": 7000})
    assert "no hole on chip 0" in simulate_plan(graph, small, make_plan(graph, small, [0] * 6)).reason


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
    # 4000 bytes each, 20 us over the host's link; 10 us computed each.
    target = package(1, fields={"sram_bytes": 1000}, weight_prefetch=False)
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
