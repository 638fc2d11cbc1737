"""The analytical environment: figures worked by hand on the toy graph, then the slow twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from go_opt.env import Target, cost_tables, evaluate_batch, evaluate_plan, load_target, load_zoo
from go_opt.env.simulator.simulate import FRAGMENTED, TOO_LARGE, simulate_batch
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Plan
from tests.env.numpy_twin import Twin
from tests.strategies import (
    chip_kind,
    examples,
    kind_names,
    make_plan,
    random_graph,
    random_plan,
    random_simulated_target,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
    with_random_states,
)
from tests.zoo import zoo_sample

US = 1e-6
ONE_CHIP = (0, 0, 0, 0, 0, 0)
SPREAD = (0, 1, 2, 3, 4, 5)  # one op of the toy graph a chip
FUSED = (0, 1, 1, 2, 2, 3)  # embed | dense relu | mix add | logits


def in_us(seconds: object) -> object:
    return pytest.approx(np.array(seconds) * US, rel=1e-9, abs=1e-18)


# --------------------------------------------------------------------------- kernels


def test_kernel_costs_the_slower_of_compute_and_memory() -> None:
    graph, target = toy_graph(), small_mcm(6)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, SPREAD))
    # The table of toy_graph: mix and logits wait for memory, dense, relu and add for compute.
    assert metrics.compute_s == in_us([3.4, 9, 6, 5, 6, 14])


def test_compute_of_a_chip_is_the_sum_of_its_kernels() -> None:
    graph, target = toy_graph(), small_mcm(2)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, ONE_CHIP))
    assert metrics.compute_s == in_us([43.4, 0])
    assert metrics.interval_s == in_us(43.4)
    assert metrics.throughput_per_s == pytest.approx(1 / 43.4e-6)
    assert metrics.bottleneck == "chip 0 compute"


def test_group_is_one_kernel() -> None:
    graph, target = toy_graph(), small_mcm(2)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, ONE_CHIP, fusion_group=FUSED))
    # dense relu: flops 8 + 5, bytes x 1000, w1 2000, a 1000 (h stays inside) -> 13 + 1 us
    # mix add:    flops 2 + 5, bytes a 1000, w2 2000, x 1000, y 1000        ->  7 + 1 us
    assert metrics.compute_s == in_us([3.4 + 14 + 8 + 14, 0])


def test_group_reads_a_tensor_once() -> None:
    b = GraphBuilder("twice")
    b.add_tensor("table", 5000, "bf16", "weight")
    for name, touched in (("few", 500), ("many", 2000)):
        reads, writes = [("table", touched)], [(name, 500, "bf16")]
        b.add_op(name, "Add", "vector", flops=0, dtype="bf16", reads=reads, writes=writes)
        b.mark_output(name)
    graph, target = b.build(), small_mcm(1)
    apart = evaluate_plan(graph, target, make_plan(graph, target, (0, 0)))
    fused = evaluate_plan(graph, target, make_plan(graph, target, (0, 0), fusion_group=(0, 0)))
    # Apart: 1000 + 1000 and 4000 + 1000 bytes, two overheads. Fused, the widest read is 4000.
    assert apart.compute_s == in_us([2 + 5 + 2])
    assert fused.compute_s == in_us([4 + 2 + 1])


def test_measured_op_costs_exactly_that() -> None:
    b = GraphBuilder("measured")
    one_write = {"reads": [], "writes": [("t", 500, "bf16")]}
    b.add_op("op", "MatMul", "matrix", flops=8000, dtype="bf16", measured_s={"b": 7 * US}, **one_write)
    b.mark_output("t")
    graph = b.build()
    target = small_mcm(kinds=[chip_kind("a"), chip_kind("b")])
    assert evaluate_plan(graph, target, make_plan(graph, target, (0,))).compute_s == in_us([9, 0])
    assert evaluate_plan(graph, target, make_plan(graph, target, (1,))).compute_s == in_us([0, 7])


# --------------------------------------------------------------------------- links, host


def test_links_carry_the_union_of_the_routes() -> None:
    graph, target = toy_graph(), small_mcm(6)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, SPREAD))
    # x goes from chip 0 to chips 1 and 4, once over links 0..3; h, a, s, y one hop each.
    # Host: ids 400 bytes = 2 us, out 2000 bytes = 10 us.
    assert metrics.link_s == in_us([10, 20, 20, 20, 10, 0, 2, 10])
    assert metrics.interval_s == in_us(20)
    assert metrics.bottleneck == "link 1->2"


def test_ring_wraps() -> None:
    graph, target = toy_graph(), small_mcm(3)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (2, 1, 1, 1, 1, 1)))
    # x from chip 2 to chip 1: links 2->0 and 0->1.
    assert metrics.link_s == in_us([10, 0, 10, 2, 10])


def test_star_loads_the_way_up_once() -> None:
    graph, target = toy_graph(), small_mcm(3, topology="host_star")
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 1, 1, 1, 2, 2)))
    # x: up from 0, down to 1 and to 2. s: up from 1, down to 2. Host traffic has ports of its own.
    up_0, down_0, up_1, down_1, up_2, down_2 = 10, 0, 10, 10, 0, 20
    assert metrics.link_s == in_us([up_0, down_0, up_1, down_1, up_2, down_2, 2, 10])


def test_host_link_can_be_the_bottleneck() -> None:
    graph = toy_graph()
    target = small_mcm(1, host_in_bytes_per_s=8e6, host_out_bytes_per_s=40e6)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, ONE_CHIP))
    assert metrics.link_s == in_us([50, 50])
    assert metrics.bottleneck == "host in"
    target = small_mcm(1, host_out_bytes_per_s=40e6)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, ONE_CHIP))
    assert metrics.bottleneck == "host out"


def test_summed_interval() -> None:
    graph, target = toy_graph(), small_mcm(6, overlap=False)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, SPREAD))
    # compute + link in + link out + host: chip 0: 3.4 + 0 + 10 + 2, chip 1: 9 + 10 + 20,
    # chip 2: 6 + 20 + 20, chip 3: 5 + 20 + 20, chip 4: 6 + 20 + 10, chip 5: 14 + 10 + 0 + 10.
    assert metrics.interval_s == in_us(46)
    assert metrics.bottleneck == "chip 2 compute and transfers"


def test_kind_that_does_not_pay_for_transfers() -> None:
    graph, target = toy_graph(), small_mcm(6, overlap=False, pays_transfers=False)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, SPREAD))
    assert metrics.interval_s == in_us(14)
    assert metrics.link_s == in_us([10, 20, 20, 20, 10, 0, 2, 10])


def test_star_links_of_a_kind_that_does_not_pay_are_free() -> None:
    kinds = [chip_kind("accelerator"), chip_kind("cpu", pays_transfers=False)]
    graph, target = toy_graph(), small_mcm(topology="host_star", kinds=kinds)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 0, 0, 0, 1)))
    # y up from chip 0 costs 10 us, down to chip 1 nothing, latency included:
    # ids 2, embed to add 29.4, the way up 1 + 10, logits 14, out 10.
    assert metrics.link_s == in_us([10, 0, 0, 0, 2, 10])
    assert metrics.latency_s == in_us(2 + 29.4 + 11 + 14 + 10)


def test_input_of_two_chips_crosses_the_host_link_once() -> None:
    b = GraphBuilder("shared input")
    b.add_tensor("in", 1000, "bf16", "input")
    for name in ("a", "b"):
        writes = [(name, 500, "bf16")]
        b.add_op(name, "Relu", "vector", flops=0, dtype="bf16", reads=[("in", 500)], writes=writes)
        b.mark_output(name)
    graph = b.build()
    # Each op: 1000 bytes read, 1000 written, 1 us overhead = 3 us. in: 2000 bytes = 10 us;
    # outputs: 1000 bytes = 5 us each.
    target = small_mcm(2)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 1)))
    assert metrics.link_s == in_us([0, 0, 10, 10])
    # Not overlapped, each chip waits for its own copy: 3 + 10 + 5.
    target = small_mcm(2, overlap=False)
    assert evaluate_plan(graph, target, make_plan(graph, target, (0, 1))).interval_s == in_us(18)


# --------------------------------------------------------------------------- memory


def test_peak_on_one_chip() -> None:
    graph, target = toy_graph(), small_mcm(1)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, ONE_CHIP))
    # ids and out cross the chip's border: 2 * (400 + 2000) throughout. Beside them at relu:
    # x (read again by add), h and a.
    assert metrics.peak_bytes.tolist() == [4800 + 3000]
    # The table is read by embed and logits, and stored once.
    assert metrics.weight_bytes.tolist() == [10_000 + 2000 + 2000]
    assert metrics.stream_bytes.tolist() == [0]


@pytest.mark.parametrize(("groups", "inside"), [(SPREAD, 1000), (FUSED, 0)])
def test_peak_on_two_chips(groups: tuple[int, ...], inside: int) -> None:
    graph, target = toy_graph(), small_mcm(2)
    plan = make_plan(graph, target, (0, 1, 1, 0, 0, 0), fusion_group=groups)
    metrics = evaluate_plan(graph, target, plan)
    # Chip 0, throughout: ids 800, x 2000, a 2000, out 4000; at add also s and y, or, where
    # mix and add are one kernel, y alone.
    # Chip 1, throughout: x 2000, a 2000; and h between dense and relu unless they are one kernel.
    assert metrics.peak_bytes.tolist() == [8800 + 1000 + inside, 4000 + inside]
    assert metrics.weight_bytes.tolist() == [12_000, 2000]


@pytest.mark.parametrize(
    ("sram_bytes", "stream_bytes", "weight_bytes"),
    [
        (21_800, 0, 14_000),  # all fits: 7800 + 14000
        (21_799, 1, 13_999),  # every weight is touched whole: the largest goes first, in part
        (11_799, 10_001, 3999),  # then w1: as large as w2, of lower index
        (7800, 14_000, 0),
    ],
)
def test_streaming_order(sram_bytes: int, stream_bytes: int, weight_bytes: int) -> None:
    graph, target = toy_graph(), small_mcm(1, sram_bytes=sram_bytes)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, ONE_CHIP))
    assert metrics.stream_bytes.tolist() == [stream_bytes]
    assert metrics.weight_bytes.tolist() == [weight_bytes]
    assert metrics.link_s[-2] == in_us((400 + stream_bytes) / 200)
    assert metrics.valid


def test_embedding_streams_the_rows_it_touches() -> None:
    graph, target = toy_graph(), small_mcm(2, sram_bytes=12_000)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0, 1, 1, 1, 1, 1)))
    # Chip 0: peak 2 * (400 + 1000), table 10000: of the table 1000 bytes are touched here.
    # Chip 1: peak 2 * (1000 + 2000) + two of h, a, s, y; without the table 8000 + 4000 fit.
    assert metrics.peak_bytes.tolist() == [2800, 8000]
    assert metrics.stream_bytes.tolist() == [1000, 10_000]
    assert metrics.weight_bytes.tolist() == [0, 4000]
    assert metrics.link_s[-2] == in_us(2 + 55)


def test_least_touched_per_byte_streams_first() -> None:
    b = GraphBuilder("two weights")
    b.add_tensor("dense", 9000, "bf16", "weight")
    b.add_tensor("table", 1000, "bf16", "weight")
    reads = [("dense", None), ("table", 100)]
    b.add_op("op", "Mul", "vector", flops=0, dtype="bf16", reads=reads, writes=[])
    graph, target = b.build(), small_mcm(1, sram_bytes=18_500)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (0,)))
    # 18000 + 2000 bytes; the table frees 2000 for 200, the larger matrix costs all it frees.
    assert metrics.stream_bytes.tolist() == [200]
    assert metrics.weight_bytes.tolist() == [18_000]


def test_out_of_memory_names_chip_demand_and_limit() -> None:
    graph, target = toy_graph(), small_mcm(2, sram_bytes=7799)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, (1, 1, 1, 1, 1, 1)))
    assert not metrics.valid
    assert metrics.reason == "out of memory: chip 1 needs 7800 bytes for activations and has 7799"


# --------------------------------------------------------------------------- latency


def test_latency_on_one_chip() -> None:
    graph, target = toy_graph(), small_mcm(1)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, ONE_CHIP))
    assert metrics.latency_s == in_us(2 + 43.4 + 10)  # ids, all kernels, out


def test_latency_of_a_pipeline() -> None:
    graph, target = toy_graph(), small_mcm(6)
    metrics = evaluate_plan(graph, target, make_plan(graph, target, SPREAD))
    # ids 2, the six kernels 43.4, x h a s y one hop of 1 + 10 each, out 10. x reaches add
    # after 2 + 3.4 + 4 + 10, long before s.
    assert metrics.latency_s == in_us(2 + 43.4 + 5 * 11 + 10)


def test_latency_waits_for_the_order_of_the_chip() -> None:
    b = GraphBuilder("two branches")
    for name, flops in (("long", 9000), ("short", 1000)):
        b.add_op(name, "MatMul", "matrix", flops=flops, dtype="bf16", reads=[], writes=[(name, 10, "bf16")])
        writes = [(f"{name} out", 10, "bf16")]
        b.add_op(f"{name} next", "Relu", "vector", flops=0, dtype="bf16", reads=[(name, None)], writes=writes)
    graph, target = b.build(), small_mcm(2)
    # long 10 us, short 2 us, then 20 bytes over the link 0.2 + 1 us; the readers on chip 1
    # write nothing that is read: 0.02 us of bytes + 1.
    first = evaluate_plan(graph, target, make_plan(graph, target, (0, 1, 0, 1), order=(0, 1, 2, 3)))
    second = evaluate_plan(graph, target, make_plan(graph, target, (0, 1, 0, 1), order=(2, 3, 0, 1)))
    assert first.latency_s == in_us(12 + 1.2 + 1.02)
    assert second.latency_s == in_us(12 + 1.2 + 1.02)
    # With the reader of `long` on chip 0 as well, before `short`, `short` starts 1.02 us later.
    third = evaluate_plan(graph, target, make_plan(graph, target, (0, 0, 0, 1), order=(0, 1, 2, 3)))
    assert third.latency_s == in_us(10 + 1.02 + 2 + 1.2 + 1.02)


# --------------------------------------------------------------------------- oracle


def assert_agrees(graph: Graph, target: Target, plan: Plan) -> None:
    twin = Twin(graph, target, plan).evaluate()
    metrics = evaluate_plan(graph, target, plan)
    rows = plan.placement[None], plan.order[None], plan.fusion_group[None]
    terms = evaluate_batch(cost_tables(graph, target), *rows)
    for name in ("compute_s", "link_s", "latency_s"):
        assert getattr(metrics, name) == pytest.approx(getattr(twin, name), rel=1e-9, abs=0), name
    assert terms.interval_s[0] == pytest.approx(twin.interval_s, rel=1e-9, abs=0)
    if graph.has_scope("model"):
        assert metrics.interval_s == metrics.makespan_s
    elif target.modelled.weight_prefetch or not target.overlap or not any(twin.stream_bytes):
        assert metrics.interval_s == terms.interval_s[0]  # else the simulator has a say
    for name in ("peak_bytes", "stream_bytes", "weight_bytes"):
        assert getattr(metrics, name).tolist() == getattr(twin, name), name
    assert metrics.valid == twin.valid == (metrics.reason == "")
    assert terms.fits[0] == twin.valid
    assert twin.terms_s[terms.bottleneck[0]] == pytest.approx(twin.interval_s, rel=1e-9, abs=0)


@settings(max_examples=examples(500))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_agrees_with_the_twin(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, num_ops, kinds=kind_names(target))
    if rng.random() < 0.3:
        graph = with_sequences(with_random_states(rng, graph), int(rng.integers(1, 5)))
    fusion = rng.choice(["any", "legal", "none"])
    assert_agrees(graph, target, random_plan(rng, graph, target, fusion=fusion))


@settings(max_examples=examples(500))
@given(seed=seeds, num_ops=st.integers(1, 25))
@example(seed=67852, num_ops=1)  # of half a multiply-add
def test_agrees_with_the_twin_with_what_the_simulator_knows(seed: int, num_ops: int) -> None:
    """Pages, addresses, stream buffers; tiles, set-ups, headers and copies of inputs."""
    rng = np.random.default_rng(seed)
    sram_bytes, overlap = int(10 ** rng.uniform(3.7, 5.5)), bool(rng.random() < 0.7)
    target = random_simulated_target(rng, rates_differ=False, sram_bytes=sram_bytes, overlap=overlap)
    graph = random_graph(rng, num_ops)
    assert_agrees(graph, target, random_plan(rng, graph, target))


@settings(max_examples=examples(300))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_memory_is_the_simulator_s(seed: int, num_ops: int) -> None:
    """What fits by the model fits in the simulator, which uses memory in the same way."""
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng, sram_bytes=int(10 ** rng.uniform(3.7, 5.5)))
    graph = random_graph(rng, num_ops)
    plan = random_plan(rng, graph, target)
    rows = plan.placement[None], plan.order[None], plan.fusion_group[None]
    terms, simulated = evaluate_batch(cost_tables(graph, target), *rows), simulate_batch(graph, target, *rows)
    assert terms.fits[0] == (simulated.outcome[0] not in (TOO_LARGE, FRAGMENTED))
    for name in ("peak_bytes", "weight_bytes", "stream_bytes"):
        assert getattr(terms, name).tolist() == getattr(simulated, name).tolist(), name


@pytest.mark.parametrize("name", zoo_sample())
def test_agrees_with_the_twin_on_the_zoo(name: str) -> None:
    graph, target = load_zoo(name), load_target("mcm-6x6")
    rng = np.random.default_rng(0)
    for monotone in (False, True):
        assert_agrees(graph, target, random_plan(rng, graph, target, monotone=monotone, fusion="legal"))


@settings(max_examples=examples(60))
@given(seed=seeds, num_ops=st.integers(1, 25))
def test_batch_equals_single_evaluations(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng)
    graph = random_graph(rng, num_ops, kinds=kind_names(target))
    plans = [random_plan(rng, graph, target) for _ in range(5)]
    rows = [np.array([getattr(p, name) for p in plans]) for name in ("placement", "order", "fusion_group")]
    tables = cost_tables(graph, target)
    batch = evaluate_batch(tables, *rows)
    for b in range(len(plans)):
        single = evaluate_batch(tables, *(row[b : b + 1] for row in rows))
        for together, alone in zip(batch, single, strict=True):
            assert np.array_equal(together[b], alone[0])


@pytest.mark.parametrize("name", ["gpt2_step", "rnnt_step"])
def test_agrees_with_the_twin_on_steps_with_states(name: str) -> None:
    graph, target = with_sequences(load_zoo(name), 3), load_target("mcm-6x6")
    assert_agrees(graph, target, random_plan(np.random.default_rng(0), graph, target, fusion="legal"))
