"""What fills a chip's memory: by hand, and against the peak that the analytical model counts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from go_opt.env import evaluate_plan
from go_opt.env.chip_buffers import Buffer, ChipBuffers
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.peak_memory import Held, PeakMemory, peak_memory, plan_buffers
from go_opt.model.plan import Relay
from tests.env.memory_twin import chip_memory
from tests.env.numpy_twin import Twin
from tests.env.simulator.test_by_hand import package, uneven
from tests.strategies import (
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
)


def test_one_chip_by_hand() -> None:
    graph, target = toy_graph(), small_mcm(1)
    # The input and the output cross the border. While relu runs there are x, h and a.
    assert peak_memory(graph, target, make_plan(graph, target, [0] * 6), 0) == PeakMemory(
        chip=0,
        peak_bytes=800 + 4000 + 3000,
        ops=("relu",),
        held=(
            Held("out", 4000, crosses=True),
            Held("x", 1000, crosses=False),
            Held("h", 1000, crosses=False),
            Held("a", 1000, crosses=False),
            Held("ids", 800, crosses=True),
        ),
        holes_bytes=0,
    )


def test_what_only_crosses_is_held_throughout() -> None:
    graph, target = toy_graph(), small_mcm(6)
    peak = peak_memory(graph, target, make_plan(graph, target, range(6)), 1)
    held = Held("x", 2000, crosses=True), Held("h", 2000, crosses=True)
    assert peak == PeakMemory(1, 4000, (), held, holes_bytes=0)


def test_holes_between_activations() -> None:
    graph, target = uneven(), package(1, fields={"sram_bytes": 7004})
    # t2 lies at 5000..7000, t1 below it at 3000..5000; below that t0 was and t3 will be.
    assert peak_memory(graph, target, make_plan(graph, target, [0] * 5), 0) == PeakMemory(
        chip=0,
        peak_bytes=7004,
        ops=("op2",),
        held=(Held("t1", 2000, crosses=False), Held("t2", 2000, crosses=False), Held("t4", 4, crosses=True)),
        holes_bytes=3000,
    )


def test_relays() -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="adjacent")
    plan = make_plan(graph, target, [0, 1, 1, 1, 2, 2])
    relayed = replace(plan, relays=(Relay("x", (1,)),))
    # The copy of x on chip 1 leaves from the buffer in which x came.
    assert peak_memory(graph, target, relayed, 1).held[:2] == (
        Held("x", 2000, crosses=True),
        Held("s", 2000, crosses=True),
    )


@settings(max_examples=examples(150))
@given(seeds)
def test_tensors_and_holes_add_up_to_the_peak_of_the_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    simulated = random_simulated_target(rng, sram_bytes=int(10 ** rng.uniform(3.7, 5.5)))
    target = random_target(rng) if rng.random() < 0.3 else simulated
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    plan = random_plan(rng, graph, target)
    metrics = evaluate_plan(graph, target, plan)
    for chip in range(target.num_chips):
        peak = peak_memory(graph, target, plan, chip)
        assert peak.peak_bytes == metrics.peak_bytes[chip]
        assert sum(held.held_bytes for held in peak.held) == peak.peak_bytes - peak.holes_bytes
        assert peak.holes_bytes >= 0
        assert peak.holes_bytes == 0 or not target.modelled.fit_by_size


def test_buffers_of_one_chip_by_hand() -> None:
    graph, target = toy_graph(), small_mcm(1)
    memory = plan_buffers(graph, target, make_plan(graph, target, [0] * 6))
    assert memory == (
        ChipBuffers(
            chip=0,
            sram_bytes=int(target.chip_sram_bytes[0]),
            end=21_800,
            least_end=21_800,
            buffers=(
                Buffer("table", 0, 10_000, "", ""),
                Buffer("w1", 10_000, 2000, "", ""),
                Buffer("w2", 12_000, 2000, "", ""),
                Buffer("ids", 14_000, 800, "", ""),
                Buffer("out", 14_800, 4000, "", ""),
                Buffer("x", 18_800, 1000, "embed", "add"),
                Buffer("h", 19_800, 1000, "dense", "relu"),
                Buffer("s", 19_800, 1000, "mix", "add"),
                Buffer("a", 20_800, 1000, "relu", "mix"),
                Buffer("y", 20_800, 1000, "add", "logits"),
            ),
        ),
    )


@settings(max_examples=examples(200))
@given(seeds)
def test_buffers_in_use_together_are_apart(seed: int) -> None:
    """And they are all that the chip holds, in whole pages, below the end of its memory if they fit."""
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng, sram_bytes=int(10 ** rng.uniform(3.7, 5.5)))
    graph = random_graph(rng, int(rng.integers(1, 25)))
    plan = random_plan(rng, graph, target)
    metrics, page = evaluate_plan(graph, target, plan), target.simulator.page_bytes
    kernel_of, twin = number_kernels(plan.order, plan.fusion_group), Twin(graph, target, plan)
    memory = plan_buffers(graph, target, plan)
    assert [on.chip for on in memory] == np.unique(plan.placement).tolist()
    for on in memory:
        slow = chip_memory(twin, on.chip)
        lives = {graph.tensor_names[life.tensor]: (life.first, life.last) for life in slow.lives}
        used = []  # (first and last kernel, first address, end)
        for buffer in on.buffers:
            ends = buffer.written_by, buffer.last_read_by
            during = (0, graph.num_ops)
            if ends != ("", ""):
                during = int(kernel_of[graph.op_index[ends[0]]]), int(kernel_of[graph.op_index[ends[1]]])
                assert during == lives[buffer.tensor]
            assert buffer.address % page == 0 < buffer.size_bytes
            assert not buffer.tensor or buffer.size_bytes % page == 0
            used.append((during, buffer.address, buffer.address + buffer.size_bytes))
        for ((first, last), address, end), (other, begin, stop) in itertools.combinations(used, 2):
            assert last < other[0] or other[1] < first or end <= begin or stop <= address
        assert min((address for _, address, _ in used), default=0) >= 0
        assert max((end for _, _, end in used), default=0) == on.end >= on.least_end
        assert len({buffer.tensor for buffer in on.buffers}) == len(on.buffers)
        stored = {life.tensor for life in slow.lives if life.size_bytes}
        assert {buffer.tensor for buffer in on.buffers if buffer.written_by} == {
            graph.tensor_names[k] for k in stored
        }
        fixed = sum(buffer.size_bytes for buffer in on.buffers if not buffer.written_by)
        kind = target.modelled.kinds[target.chip_kind[on.chip]]
        stream_bytes = kind.stream_buffer_bytes if slow.streams else 0
        assert fixed == slow.weight_bytes + slow.border_bytes + stream_bytes
        assert on.least_end == fixed + slow.most_alive_bytes
        if metrics.valid:
            assert on.end <= on.sram_bytes
