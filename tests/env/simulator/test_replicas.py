"""Replicated stages: worked by hand, and as the analytical model has them where all effects are off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import Target, evaluate_plan
from go_opt.env.simulator.simulate import replicas_by_chip, simulate_plan
from go_opt.env.simulator.timeline import simulated_timeline
from go_opt.env.target.kinds import EFFECTS
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from tests.env.simulator.replicas import random_replicated, random_replicated_anywhere
from tests.env.simulator.test_by_hand import US, chain, package
from tests.replicated import replicated_plan
from tests.strategies import JIT_IS_ON, examples, seeds, small_mcm

SIZES = np.array([1, 3, 2])


def in_us(seconds: object) -> object:
    return pytest.approx(np.array(seconds) * US, rel=1e-9, abs=1e-18)


@pytest.mark.parametrize("buffers", [1, 2])
def test_two_chips_replicate_one_op(buffers: int) -> None:
    graph, target = chain(2000), package(2, buffers=buffers)
    alone, both = (
        simulate_plan(graph, target, replicated_plan(graph, target, np.array([0]), np.array([size])))
        for size in (1, 2)
    )
    # 20 us computed, and 1000 bytes to the host, 5 us: one buffer waits for them before the next.
    assert alone.interval_s == in_us(25 if buffers == 1 else 20)
    assert both.interval_s == in_us(12.5 if buffers == 1 else 10)
    assert both.makespan_s == alone.makespan_s == in_us(25)
    assert both.compute_s == in_us([10, 10])
    assert both.link_s == in_us([0, 0, 0, 5])


def test_three_stages_of_one_three_and_two_chips() -> None:
    graph, target = chain(1000, 3000, 2000, elements=250), package(6)
    plan = replicated_plan(graph, target, np.arange(3), SIZES)
    metrics = simulate_plan(graph, target, plan, without=("packets",))
    assert metrics.interval_s == in_us(10)
    assert metrics.compute_s == in_us([10] * 6)
    # 500 bytes, 5 us: behind the first of the three two thirds go on, and a third has left.
    assert metrics.link_s == in_us([5, 5, 5, 5, 2.5, 0, 0, 2.5])
    assert metrics.makespan_s == in_us(10 + 5 + 30 + 5 + 20 + 2.5)
    assert metrics.simulation is not None
    assert metrics.simulation.period == 6


def test_inferences_take_turns() -> None:
    graph, target = chain(1000, 3000, 2000, elements=250), package(6)
    plan = replicated_plan(graph, target, np.arange(3), SIZES)
    timeline = simulated_timeline(graph, target, plan, 6)
    ran = sorted((span.inference, span.resource, round(span.start_s / US)) for span in timeline.kernels)
    # Chip 0 every 10 us; 5 us later one of chips 1 to 3, which computes for 30; 5 us later 4 or 5.
    assert ran == sorted(
        (i, chip, 10 * i + start)
        for i in range(6)
        for chip, start in ((0, 0), (1 + i % 3, 15), (4 + i % 2, 50))
    )
    held = simulate_plan(graph, target, plan).peak_bytes
    assert [int(most.max()) for _, most in timeline.memory] == held.tolist() == [1000] + [2000] * 5


def test_replicas_stream_for_their_own_inferences() -> None:
    b = GraphBuilder("streams")
    for i in range(2):
        b.add_tensor(f"w{i}", 2000, "float32", "weight")
        reads = [(f"w{i}", None)] + ([("t0", None)] if i else [])
        writes = [(f"t{i}", 1, "float32")]
        b.add_op(f"op{i}", "Exp", "vector", flops=3000, dtype="float32", reads=reads, writes=writes)
    graph = b.build()
    target = package(3, fields={"sram_bytes": 2}, weight_prefetch=False)  # for t0 alone
    one, two, three = (
        simulate_plan(graph, target, replicated_plan(graph, target, np.array([0, 0]), np.array([size])))
        for size in (1, 2, 3)
    )
    # 30 us each, and 4000 bytes, 20 us over the host's link, which come while the other one runs.
    assert one.interval_s == in_us(60)
    # The host's link takes 40 us an inference, however many chips take turns.
    assert two.interval_s == three.interval_s == in_us(40)
    assert three.link_s[-2] == in_us(40)
    assert three.stream_bytes.tolist() == [8000, 8000, 8000]
    assert three.weight_bytes.tolist() == [0, 0, 0]
    assert three.simulation is not None
    assert three.simulation.link_utilisation[-2] == pytest.approx(1)


@pytest.mark.skipif(not JIT_IS_ON, reason="takes half a minute interpreted")
def test_more_buffers_hide_the_way_past_replicas() -> None:
    """Two buffers at a single reader do not cover a way over links that are nearly full."""
    graph, sizes = chain(800, 5000, 5500, 1000, 7800, elements=425), np.array([2, 12, 11, 1, 10])
    intervals_s = []
    for buffers in (1, 2, 3):
        target = package(36, buffers=buffers)
        plan = replicated_plan(graph, target, np.arange(5), sizes)
        intervals_s.append(simulate_plan(graph, target, plan).interval_s)
    assert intervals_s == sorted(intervals_s, reverse=True)
    assert intervals_s[0] > 15 * US
    assert intervals_s[2] == pytest.approx(10 * US, rel=0.01)


@given(seed=seeds)
@settings(max_examples=examples(150))
def test_replicas_with_all_effects_off(seed: int) -> None:
    compare_without_effects(*random_replicated(np.random.default_rng(seed)))


@given(seed=seeds)
@settings(max_examples=examples(150))
def test_replicas_with_sequences_and_all_effects_off(seed: int) -> None:
    graph, target, plan = random_replicated(np.random.default_rng(seed), sequences=True)
    compare_without_effects(graph, target, plan)


@given(seed=seeds)
@settings(max_examples=examples(150))
def test_replicas_anywhere_with_all_effects_off(seed: int) -> None:
    compare_without_effects(*random_replicated_anywhere(np.random.default_rng(seed), forward=True))


def compare_without_effects(graph: Graph, target: Target, plan: Plan) -> None:
    plain = replace(target, analytical_effects=())
    ideal, model = simulate_plan(graph, target, plan, without=EFFECTS), evaluate_plan(graph, plain, plan)
    assert ideal.valid == model.valid
    if model.valid:
        for name in ("peak_bytes", "weight_bytes", "stream_bytes"):
            assert getattr(ideal, name).tolist() == getattr(model, name).tolist(), name
        for name in ("compute_s", "link_s"):
            assert getattr(ideal, name) == pytest.approx(getattr(model, name), rel=1e-9, abs=1e-18), name
        if graph.states:  # sequences wait for each other, and no link has a latency here
            assert ideal.interval_s >= max(ideal.compute_s.max(), ideal.makespan_s / graph.sequences) * (
                1 - 1e-9
            )
        else:
            assert ideal.interval_s == pytest.approx(model.interval_s, rel=1e-9, abs=1e-18)


@pytest.mark.skipif(not JIT_IS_ON, reason="takes half a minute interpreted")
@pytest.mark.parametrize("sizes", [[11, 5, 3, 9, 7, 1], [5, 7, 8, 9, 7]])
def test_a_cycle_of_thousands_of_inferences(sizes: list[int]) -> None:
    """Nothing repeats in the 3,465 or 2,520 inferences it takes, but what never rests sets the pace."""
    graph = chain(*(900 * size + size for size in sizes), elements=250)
    target = package(36)
    plan = replicated_plan(graph, target, np.arange(len(sizes)), np.array(sizes))
    metrics = simulate_plan(graph, target, plan, without=EFFECTS)
    assert metrics.simulation is not None
    assert metrics.simulation.period == 0
    assert metrics.interval_s == pytest.approx(evaluate_plan(graph, target, plan).interval_s, rel=1e-9)
    assert simulate_plan(graph, target, plan).interval_s == pytest.approx(metrics.interval_s, rel=0.02)


def test_stages_that_overlap_are_cut_short() -> None:
    placement, replication = np.array([0, 0, 2, 4], np.int32), np.array([3, 3, 1, 9], np.int32)
    assert replicas_by_chip(small_mcm(6), placement, replication).tolist() == [2, 1, 1, 1, 2, 1]
    mesh = small_mcm(6, topology="mesh2d")
    assert replicas_by_chip(mesh, placement, replication).tolist() == [2, 1, 1, 1, 2, 1]
