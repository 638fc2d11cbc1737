"""Timelines: the engine's spans with names, arrows that go forward, memory as the metrics say."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env.analytical_timeline import analytical_timeline
from go_opt.env.model.timeline import Span, Timeline
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.env.simulator.timeline import WEIGHTS_WAIT, simulated_timeline
from tests.env.simulator.replicas import random_replicated
from tests.env.simulator.test_by_hand import US, chain, package
from tests.env.simulator.test_deadlock import detour
from tests.env.simulator.test_deadlock import package as deadlock_package
from tests.strategies import (
    JIT_IS_ON,
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


def times_us(spans: list[Span]) -> list[tuple[int, str, int, float, float]]:
    """Resource, name, inference, start and end, by time."""
    rows = [
        (s.resource, s.name, s.inference, round(s.start_s / US, 9), round(s.end_s / US, 9)) for s in spans
    ]
    return sorted(rows, key=lambda row: (row[3], row[0]))


def test_the_chain_by_hand() -> None:
    graph, target = chain(1000, 2000), package(2)
    timeline = simulated_timeline(graph, target, make_plan(graph, target, [0, 1]), 3)
    # Chip 0 takes 10 us, the link 10 us, chip 1 20 us and the host's link 5 us. The third tensor
    # finds both buffers of chip 1 taken until the first is read.
    assert times_us([*timeline.kernels]) == [
        (0, "Exp", 0, 0, 10), (0, "Exp", 1, 10, 20), (0, "Exp", 2, 20, 30), (1, "Exp", 0, 20, 40),
        (1, "Exp", 1, 40, 60), (1, "Exp", 2, 60, 80),
    ]  # fmt: skip
    host_out = len(target.link_names) - 1
    assert times_us([*timeline.transfers]) == [
        (0, "t0", 0, 10, 20), (0, "t0", 1, 20, 30), (0, "t0", 2, 40, 50),
        (host_out, "t1", 0, 40, 45), (host_out, "t1", 1, 60, 65), (host_out, "t1", 2, 80, 85),
    ]  # fmt: skip
    first = [arrow for arrow in timeline.arrows if arrow.source.inference == 0]
    assert [(a.name, a.source_kind, a.source.end_s, a.destination_kind) for a in first] == [
        ("t0", "chip", pytest.approx(10 * US), "link"),
        ("t0", "link", pytest.approx(20 * US), "chip"),
        ("t1", "chip", pytest.approx(40 * US), "link"),
    ]
    assert [held.tolist() for _, held in timeline.memory] == [[2000] * 7, [4000] * 7]


def test_a_wait_for_weights() -> None:
    graph = toy_graph()
    target = package(1, fields={"sram_bytes": 12_000}, weight_prefetch=False)
    timeline = simulated_timeline(graph, target, make_plan(graph, target, [0] * 6), 4)
    assert timeline.metrics.stream_bytes[0] > 0
    waits = [wait for wait in timeline.waits if wait.inference == 3]
    assert all(wait.name == WEIGHTS_WAIT for wait in waits)
    assert timeline.metrics.simulation is not None
    assert sum(w.end_s - w.start_s for w in waits) == pytest.approx(timeline.metrics.simulation.stall_s[0, 3])
    streamed = [arrow for arrow in timeline.arrows if arrow.destination in waits]
    assert [arrow.source.end_s for arrow in streamed] == [wait.end_s for wait in waits]


def test_a_deadlock_ends_the_timeline() -> None:
    graph, target = detour(2), deadlock_package(4)
    timeline = simulated_timeline(graph, target, make_plan(graph, target, range(4)), 16)
    assert timeline.is_deadlocked
    assert timeline.kernels
    assert "deadlock" in timeline.metrics.reason
    assert max(span.inference for span in timeline.kernels) < 15


def test_nothing_runs_where_memory_does_not_suffice() -> None:
    graph, target = chain(100, 100), package(2, fields={"sram_bytes": 100})
    plan = make_plan(graph, target, [0, 1])
    for timeline in (simulated_timeline(graph, target, plan, 2), analytical_timeline(graph, target, plan, 2)):
        assert timeline.kernels == timeline.transfers == ()
        assert "out of memory" in timeline.metrics.reason


@pytest.mark.parametrize("is_replicated", [False, True])
@settings(max_examples=examples(60))
@given(seed=seeds)
def test_simulated_timelines_are_consistent(is_replicated: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    if is_replicated:
        graph, target, plan = random_replicated(rng)
    else:
        target = random_simulated_target(rng)
        graph = random_graph(rng, int(rng.integers(3, 20)))
        plan = random_plan(rng, graph, target, monotone=True)
    metrics = simulate_plan(graph, target, plan)
    if not metrics.valid or not np.isfinite(metrics.interval_s):
        return
    assert metrics.simulation is not None
    inferences = metrics.simulation.inferences
    timeline = simulated_timeline(graph, target, plan, inferences)
    check_consistent(timeline, target.num_chips)
    stages = set(zip(plan.placement.tolist(), plan.replication.tolist(), strict=True))
    sizes = {chip: size for first, size in stages for chip in range(first, first + size)}
    for chip in range(target.num_chips):
        of_chip = [span for span in timeline.kernels if span.resource == chip]
        assert all(before.end_s <= after.start_s for before, after in pairwise(of_chip))
        ran = len({span.inference for span in of_chip})
        stage = sizes.get(chip, 1)
        assert len(of_chip) == 0 or ran in (inferences // stage, inferences // stage + 1)
        busy_s = sum(span.end_s - span.start_s for span in of_chip)
        assert busy_s == pytest.approx(ran * stage * metrics.compute_s[chip])
    for link in range(len(target.link_names)):
        on_link = sorted((s for s in timeline.transfers if s.resource == link), key=lambda s: s.end_s)
        assert all(b.end_s <= a.start_s + 1e-15 for b, a in pairwise(on_link) if a.end_s > a.start_s)
    peaks = [held.max() for _, held in timeline.memory]
    np.testing.assert_array_equal(peaks, metrics.peak_bytes + metrics.weight_bytes)
    assert (np.array(peaks) <= target.chip_sram_bytes).all()


def check_consistent(timeline: Timeline, num_chips: int) -> None:
    """Durations and arrows go forward, and memory is back at rest in the end."""
    spans = (*timeline.kernels, *timeline.waits, *timeline.transfers)
    assert all(0 <= span.start_s <= span.end_s for span in spans)
    known = {id(span) for span in spans}
    for arrow in timeline.arrows:
        assert {id(arrow.source), id(arrow.destination)} <= known
        assert arrow.source.inference == arrow.destination.inference
        assert arrow.source.start_s <= arrow.destination.end_s
        assert arrow.source.start_s <= arrow.destination.start_s or arrow.destination in timeline.waits
    assert len(timeline.memory) == num_chips
    for times_s, held in timeline.memory:
        assert (np.diff(times_s) >= 0).all()
        assert held[0] == held[-1] == held.min()


@pytest.mark.skipif(not JIT_IS_ON, reason="many inferences")
@settings(max_examples=40)
@given(seed=seeds)
def test_the_last_inferences_are_one_interval_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng)
    graph = random_graph(rng, int(rng.integers(3, 12)))
    plan = random_plan(rng, graph, target, monotone=True)
    metrics = simulate_plan(graph, target, plan)
    assert metrics.simulation is not None
    period = metrics.simulation.period
    if not metrics.valid or not period:
        return
    inferences = metrics.simulation.inferences + 4 * period
    timeline = simulated_timeline(graph, target, plan, inferences + 100)
    last_s: dict[tuple[str, int], float] = defaultdict(float)
    spans = (*timeline.kernels, *timeline.waits, *timeline.transfers)
    kinds = ["chip"] * (len(spans) - len(timeline.transfers)) + ["link"] * len(timeline.transfers)
    steps = []
    for inference in (inferences - period, inferences):
        last_s.clear()
        for kind, span in zip(kinds, spans, strict=True):
            if span.inference == inference:
                last_s[kind, span.resource] = max(last_s[kind, span.resource], span.end_s)
        steps.append(dict(last_s))
    slowest_s = max(steps[1][key] - steps[0][key] for key in steps[1]) / period
    assert slowest_s == pytest.approx(metrics.interval_s, rel=1e-6)


# --------------------------------------------------------------------------- analytical


def test_the_toy_graph_by_hand() -> None:
    graph, target = toy_graph(), small_mcm(6)
    timeline = analytical_timeline(graph, target, make_plan(graph, target, (0, 0, 1, 1, 2, 2)), 2)
    # embed 3.4 us from 2 us on (ids over the host's link), dense 9; h takes 10 + 1 us to chip 1;
    # relu 6, mix 5; s takes 11 us to chip 2; add 6, logits 14; out 10 us over the host's link.
    first = [(s.name, round(s.start_s / US, 9)) for s in timeline.kernels if s.inference == 0]
    assert sorted(first, key=lambda row: row[1]) == [
        ("Gather", 2), ("MatMul", 5.4), ("Relu", 25.4), ("MatMul", 31.4), ("Add", 47.4), ("MatMul", 53.4),
    ]  # fmt: skip
    rows = [(s.resource, s.name, round(s.start_s / US, 9), round(s.end_s / US, 9))
            for s in timeline.transfers if s.inference == 0]  # fmt: skip
    assert sorted(rows, key=lambda row: row[2:]) == [
        (6, "ids", 0, 2), (0, "x", 5.4, 15.4), (1, "x", 6.4, 16.4), (0, "h", 14.4, 24.4),
        (1, "s", 36.4, 46.4), (7, "out", 67.4, 77.4),
    ]  # fmt: skip
    assert timeline.metrics.latency_s == pytest.approx(77.4 * US)


@pytest.mark.parametrize("is_replicated", [False, True])
@settings(max_examples=examples(60))
@given(seed=seeds, has_effects=st.booleans())
def test_analytical_timelines_add_up_to_the_latency(
    is_replicated: bool, seed: int, has_effects: bool
) -> None:
    rng = np.random.default_rng(seed)
    some_target = partial(random_simulated_target, rates_differ=False) if has_effects else random_target
    if is_replicated:
        target = some_target(rng, topology="ring")
        graph, target, plan = random_replicated(rng, legal=True, target=target)
    else:
        target = some_target(rng)
        graph = random_graph(rng, int(rng.integers(3, 20)), kinds=kind_names(target))
        plan = random_plan(rng, graph, target, monotone=True)
    inferences = 1 + int(plan.replication.max())
    timeline = analytical_timeline(graph, target, plan, inferences)
    metrics = timeline.metrics
    if not metrics.valid:
        return
    check_consistent(timeline, target.num_chips)
    spans = (*timeline.kernels, *(s for s in timeline.transfers if s.resource == len(metrics.link_s) - 1))
    for inference in range(1 if is_replicated else inferences):
        end_s = max(span.end_s for span in spans if span.inference == inference)
        assert end_s == pytest.approx(metrics.latency_s + inference * metrics.interval_s, rel=1e-9)
    peaks = [held.max() for _, held in timeline.memory]
    np.testing.assert_array_equal(peaks, metrics.peak_bytes + metrics.weight_bytes)
