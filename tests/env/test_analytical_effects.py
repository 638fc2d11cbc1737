"""Effects of the simulator that a target asks the analytical model to take too."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.env import Target, cost_tables, evaluate_plan, load_target, load_zoo, parse_target, target_text
from go_opt.env.simulator import simulate_batch
from go_opt.env.simulator_parameters import EFFECTS
from go_opt.errors import TargetError
from tests.zoo import first_plans


def mcm(effects: str) -> Target:
    return parse_target(target_text("mcm-6x6") + f"\n[analytical]\neffects = {effects}\n", "mine")


def test_none_is_stated_by_default() -> None:
    plain, none = load_target("mcm-6x6"), mcm("[]")
    assert plain.analytical_effects == none.analytical_effects == ()
    graph = load_zoo("squeezenet")
    for ours, theirs in zip(cost_tables(graph, plain), cost_tables(graph, none), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("effects", ["shapes", "packets"])
def test_the_model_is_then_the_simulator_with_those_effects(effects: str) -> None:
    graph, target = load_zoo("squeezenet"), mcm(f'["{effects}"]')
    plan = first_plans(graph, target)[1]
    assert plan is not None
    others = [effect for effect in EFFECTS if effect != effects]
    rows = plan.placement[None], plan.order[None], plan.fusion_group[None]
    simulated = simulate_batch(graph, target, *rows, without=others)
    analytical = evaluate_plan(graph, target, plan)
    plain = evaluate_plan(graph, load_target("mcm-6x6"), plan)
    np.testing.assert_allclose(analytical.compute_s, simulated.compute_s[0], rtol=1e-12)
    # The host's links have no packets.
    np.testing.assert_allclose(analytical.link_s, simulated.link_s[0], rtol=1e-12)
    assert analytical.interval_s >= plain.interval_s
    slower = analytical.compute_s if effects == "shapes" else analytical.link_s
    assert slower.sum() > (plain.compute_s if effects == "shapes" else plain.link_s).sum()


@pytest.mark.parametrize("effects", ['"shapes"', '["dma"]', "[1]"])
def test_bad_effects(effects: str) -> None:
    with pytest.raises(TargetError, match=r"analytical\.effects must be a list of shapes, packets, not"):
        mcm(effects)
