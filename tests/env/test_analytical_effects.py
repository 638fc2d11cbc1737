"""Effects of the simulator that the analytical model takes too: all it has, or those of a target's list."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from go_opt.env import Target, cost_tables, evaluate_plan, load_target, load_zoo, parse_target, target_text
from go_opt.env.simulator.simulate import simulate_plan
from go_opt.env.target.kinds import ANALYTICAL_EFFECTS, EFFECTS, ideal_parameters
from go_opt.errors import TargetError
from tests.strategies import JIT_IS_ON, make_plan

TERMS = ("compute_s", "link_s", "latency_s", "peak_bytes")
MORE_OF = {
    "shapes": {"compute_s", "latency_s"},
    "dma": {"latency_s"},
    "packets": {"link_s", "latency_s"},
    "host": {"link_s"},
    "memory": {"peak_bytes"},
}


def mcm(effects: str) -> Target:
    return parse_target(target_text("mcm-6x6") + f"\n[analytical]\neffects = {effects}\n", "mine")


def test_all_are_taken_by_default() -> None:
    plain, listed = load_target("mcm-6x6"), mcm(str(list(ANALYTICAL_EFFECTS)).replace("'", '"'))
    assert plain.analytical_effects == listed.analytical_effects == ANALYTICAL_EFFECTS
    assert set(ANALYTICAL_EFFECTS) < set(EFFECTS)
    graph = load_zoo("squeezenet")
    for ours, theirs in zip(cost_tables(graph, plain), cost_tables(graph, listed), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_empty_list_is_the_plain_model() -> None:
    none = mcm("[]")
    assert none.analytical_effects == ()
    tableless = replace(none, simulator=ideal_parameters(1))
    graph = load_zoo("squeezenet")
    for ours, theirs in zip(cost_tables(graph, none), cost_tables(graph, tableless), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(not JIT_IS_ON, reason="long runs")
@pytest.mark.parametrize("effect", ANALYTICAL_EFFECTS)
def test_the_model_is_then_the_simulator_with_that_effect(effect: str) -> None:
    graph, target, none = load_zoo("egnn"), mcm(f'["{effect}"]'), mcm("[]")
    plan = make_plan(graph, target, np.arange(graph.num_ops) * 20 // graph.num_ops)
    others = [other for other in EFFECTS if other != effect]
    simulated = simulate_plan(graph, target, plan, without=others)
    analytical, plain = evaluate_plan(graph, target, plan), evaluate_plan(graph, none, plan)
    np.testing.assert_allclose(analytical.compute_s, simulated.compute_s, rtol=1e-12)
    # The host's links have no packets.
    np.testing.assert_allclose(analytical.link_s, simulated.link_s, rtol=1e-12)
    for name in ("peak_bytes", "weight_bytes", "stream_bytes"):
        assert getattr(analytical, name).tolist() == getattr(simulated, name).tolist()
    assert analytical.interval_s >= plain.interval_s
    # What it makes more of, and nothing else.
    more_of = {name for name in TERMS if np.sum(getattr(analytical, name)) > np.sum(getattr(plain, name))}
    assert more_of == MORE_OF[effect]


@pytest.mark.parametrize("effects", ['"shapes"', '["buffers"]', "[1]"])
def test_bad_effects(effects: str) -> None:
    message = r"analytical\.effects must be a list of shapes, dma, packets, host, memory, not"
    with pytest.raises(TargetError, match=message):
        mcm(effects)
