"""What fills a chip's memory: by hand, and against the peak that the analytical model counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from go_opt.env import evaluate_plan
from go_opt.env.peak_memory import Held, PeakMemory, peak_memory
from go_opt.model.plan import Clone, Relay
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


def test_relays_and_clones() -> None:
    graph, target = toy_graph(), small_mcm(3, triangle="adjacent")
    plan = make_plan(graph, target, [0, 1, 1, 1, 2, 2])
    relayed = replace(plan, relays=(Relay("x", (1,)),))
    # The copy of x on chip 1 leaves from the buffer in which x came.
    assert peak_memory(graph, target, relayed, 1).held[:2] == (
        Held("x", 2000, crosses=True),
        Held("s", 2000, crosses=True),
    )
    cloned = replace(plan, clones=(Clone("embed", 2),))
    names = [held.tensor for held in peak_memory(graph, target, cloned, 2).held]
    assert sorted(names) == ["ids", "out", "s", "x/clone 2", "y"]


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
