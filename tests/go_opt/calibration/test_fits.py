"""What measured plans say of a machine: by hand, and on one whose figures are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import go_opt
from go_opt.calibration.chip_fit import ChipFigures, ChipFit, OpGroups, observe
from go_opt.calibration.package_fit import Factors, fit_package, scaled
from go_opt.calibration.samples import Sample
from go_opt.env import Target, cost_tables, evaluate_plan, load_target, parse_target
from go_opt.env.cost.shapes import product_shapes
from go_opt.env.target.kinds import KindParameters, OpFactor
from go_opt.env.target.toml import target_to_toml
from go_opt.model.graph import Graph
from tests.copies import with_legal_relays
from tests.replicated import random_stages, replicated_plan
from tests.strategies import examples, make_plan, random_graph, simulated_package, small_mcm, toy_graph

US = 1e-6
IDEAL = KindParameters()


def sample(graph: Graph, target: Target, placement: list[int], chip_s: list[float] | None = None) -> Sample:
    seconds = None if chip_s is None else np.array(chip_s)
    return Sample(make_plan(graph, target, placement), 50 * US, seconds)


def test_figures_by_hand() -> None:
    """Twice the seconds of products and 3 us more for each, half the bandwidth, 2 us of overhead.

    By their work dense 2 * 8 + 3 and relu 5 us; by their bytes embed 2 * 2.4, mix 2 * 4, add 2 * 3 and
    logits 2 * 13 us.
    """
    graph, target = toy_graph(), small_mcm()
    seen = observe(graph, target, [sample(graph, target, [0, 0, 0, 1, 1, 1])])
    fit = ChipFit(graph, target, seen)
    figures = ChipFigures(IDEAL, np.array([2.0, 1.0, 3 * US, 2.0, 2 * US]))
    by_hand = np.array([4.8 + 19 + 5 + 6, 8 + 6 + 26 + 6]) * US
    assert fit.predicted_s(figures, seen) == pytest.approx(by_hand)
    kind = figures.kind(target.kinds[0])
    assert (kind.matrix_flops_per_s["bfloat16"], kind.sram_bytes_per_s) == (0.5e9, 0.5e9)
    assert (kind.simulator.fill_s, kind.kernel_overhead_s) == (3 * US, 2 * US)
    # Without overlap chips also transfer x and a, 20 us; an interval alone is that of the busier chip.
    alone = observe(graph, small_mcm(overlap=False), [sample(graph, target, [0, 0, 0, 1, 1, 1])])
    assert fit.predicted_s(figures, alone) == pytest.approx(by_hand + 20 * US)
    np.testing.assert_array_equal(seen.measured_s(by_hand), [np.nan, 50 * US])


def test_predictions_are_those_of_the_model() -> None:
    """Replicated stages, relays: what figures predict, the target made of them costs."""
    sizes = KindParameters(tile_rows=4, tile_inner=2, tile_columns=8, vector_lanes=64)
    figures = ChipFigures(sizes, np.array([2.0, 1.5, 3 * US, 1.2, 2 * US]))
    for seed in range(examples(50)):
        rng = np.random.default_rng(seed)
        graph, target = random_graph(rng, 12), small_mcm(4)
        order = np.arange(graph.num_ops, dtype=np.int32)
        plan = replicated_plan(graph, target, *random_stages(rng, order, order, 4))
        plan = with_legal_relays(graph, target, plan)
        seen = observe(graph, target, [Sample(plan, 1.0)])
        machine = replace(target, kinds=(figures.kind(target.kinds[0]),), analytical_effects=("shapes",))
        machine = parse_target(target_to_toml(machine), "machine")
        compute_s = evaluate_plan(graph, machine, plan).compute_s
        relayed = (chip for relay in plan.relays for chip in relay.chips)
        chips = np.unique([*plan.placement.tolist(), *relayed])
        predicted_s = ChipFit(graph, target, seen).predicted_s(figures, seen)
        assert predicted_s == pytest.approx(compute_s[chips])


@pytest.mark.parametrize("shown", ["chips", "interval"])
def test_a_slower_machine_is_recognised(shown: str) -> None:
    """All work takes three times as long; so say the chips, or the busiest alone."""
    graph, target = toy_graph(), small_mcm()
    slow = ChipFigures(IDEAL, np.array([3.0, 3.0, 0.0, 3.0, 3 * US]))
    placements = [[0] * cut + [1] * (6 - cut) for cut in range(1, 6)]
    samples = []
    for plan in (make_plan(graph, target, placement) for placement in placements):
        seen = observe(graph, target, [Sample(plan, 1.0)])
        chip_s = ChipFit(graph, target, seen).predicted_s(slow, seen)
        samples.append(Sample(plan, float(chip_s.max()), chip_s if shown == "chips" else None))
    fit = ChipFit(graph, target, observe(graph, target, samples))
    fit.run(seed=0)
    seen = observe(graph, target, samples)
    measured_s = seen.measured_s(fit.predicted_s(slow, seen))
    known = ~np.isnan(measured_s)
    assert fit.predicted_s(fit.best()[0][1], seen)[known] == pytest.approx(measured_s[known], rel=0.1)


def test_tiles_are_found_from_one_plan_of_a_real_model() -> None:
    graph, target = go_opt.load("zoo:mobilenet_v2"), load_target("mcm-6x6")
    sizes = {"tile_rows": 64, "tile_inner": 32, "tile_columns": 64, "tiles_at_once": 2, "vector_lanes": 512}
    kind = replace(target.kinds[0], simulator=KindParameters(**sizes, fill_s=0.2 * US))
    machine = replace(target, kinds=(kind,), simulator=replace(target.simulator, kinds=(kind.simulator,)))
    placement = (np.arange(graph.num_ops) * 36 // graph.num_ops).tolist()
    plan = make_plan(graph, target, placement)
    chip_s = evaluate_plan(graph, machine, plan).compute_s
    fit = ChipFit(graph, target, observe(graph, target, [Sample(plan, 1.0, chip_s)]))
    fit.run(seed=0)
    found = replace(target, kinds=(fit.best()[0][1].kind(target.kinds[0]),))
    found = replace(found, simulator=replace(target.simulator, kinds=(found.kinds[0].simulator,)))
    op_s, true_s, sheet_s = (cost_tables(graph, on).op_s[0] for on in (found, machine, target))
    assert np.abs(op_s - true_s).sum() < 0.1 * np.abs(sheet_s - true_s).sum()


def test_hidden_efficiencies_are_found_and_written() -> None:
    """Convolutions take longer than tiles and rates explain, those of one shape less long."""
    graph, target = go_opt.load("zoo:mobilenet_v2"), load_target("mcm-6x6")
    shape = (1, 784, 32, 192)
    hidden = (OpFactor("Conv", 1.3), OpFactor("Conv", 0.8, shape))
    kind = replace(target.kinds[0], simulator=replace(target.kinds[0].simulator, op_factors=hidden))
    machine = replace(target, kinds=(kind,), simulator=replace(target.simulator, kinds=(kind.simulator,)))
    samples = []
    for seed in range(4):
        cuts = np.sort(np.random.default_rng(seed).integers(0, 36, graph.num_ops))
        placement = np.unique(cuts, return_inverse=True)[1].tolist()
        plan = make_plan(graph, target, placement)
        samples.append(Sample(plan, 1.0, evaluate_plan(graph, machine, plan).compute_s))
    fit = ChipFit(graph, target, observe(graph, target, samples))
    fit.run(seed=0)
    kind = fit.best()[0][1].kind(target.kinds[0])
    found = replace(target, kinds=(kind,), simulator=replace(target.simulator, kinds=(kind.simulator,)))
    found = parse_target(target_to_toml(found), "found")
    assert found.kinds[0].simulator.op_factors == kind.simulator.op_factors
    op_s, true_s, sheet_s = (cost_tables(graph, on).op_s[0] for on in (found, machine, target))
    assert np.abs(op_s - true_s).sum() < 0.1 * np.abs(sheet_s - true_s).sum()


def test_groups_by_hand() -> None:
    """Both products are of one type, and ops of a type and shape are one group."""
    graph = toy_graph()
    groups = OpGroups(graph)
    assert groups.of_op.tolist() == [0, 1, 2, 3, 4, 5, 0]
    covariance = groups.root @ groups.root.T
    assert np.diag(covariance) == pytest.approx(np.ones(6))
    shapes = np.log2(np.stack(product_shapes(graph), axis=1))
    near = 0.5 + 0.5 * np.exp(-((shapes[1] - shapes[3]) ** 2).sum() / 8)
    assert covariance[1, 3] == pytest.approx(near)
    assert (covariance[0, 1], covariance[2, 4]) == pytest.approx((0.0, 0.5))
    factors = {(one.op_type, one.shape): one.factor for one in groups.factors(np.log([1, 2, 3, 8, 1, 1]))}
    assert factors[("Relu", ())] == pytest.approx(3)
    assert factors[("MatMul", ())] == pytest.approx(2 * 2 ** (1 / 3))
    assert ("Add", ()) not in factors
    assert groups.factors(np.zeros(6)) == ()


def test_links_and_memory_by_hand() -> None:
    """The link takes 200 us in place of 100; a plan that holds too many activations does not run."""
    graph, target = toy_graph(), small_mcm(link_bytes_per_s=1e7)
    cut = make_plan(graph, target, [0, 0, 0, 0, 0, 1])
    assert evaluate_plan(graph, target, cut).interval_s == pytest.approx(100 * US)
    assert fit_package(graph, target, [Sample(cut, 200 * US)]) == Factors(links=0.5)
    small = small_mcm(sram_bytes=8000)
    whole = make_plan(graph, small, [0] * 6)
    as_modelled = evaluate_plan(graph, small, whole)
    assert as_modelled.valid
    found = scaled(small, fit_package(graph, small, [Sample(whole, np.inf)]))
    assert not evaluate_plan(graph, found, whole).valid
    assert fit_package(graph, small, [Sample(whole, as_modelled.interval_s)]) == Factors()


def test_whether_weights_stream_ahead() -> None:
    """Weights and input take the host 48 us; where weights come one kernel ahead, the chip waits 1/3 us."""
    graph = toy_graph()
    package = simulated_package(weight_prefetch=False)
    target = small_mcm(simulator=package, sram_bytes=7_800, host_in_bytes_per_s=3e8)
    plan = make_plan(graph, target, [0] * 6)
    for prefetch, interval_s in ((False, 48 * US + US / 3), (True, 48 * US)):
        ran = evaluate_plan(graph, scaled(target, Factors(prefetch=prefetch)), plan)
        assert ran.interval_s == pytest.approx(interval_s)
        assert fit_package(graph, target, [Sample(plan, interval_s)]).prefetch is None
        assert fit_package(graph, target, [Sample(plan, interval_s)] * 4).prefetch is prefetch


def test_waiting_is_not_taken_for_slow_links() -> None:
    """A plan takes 42.7 us as weights come one kernel ahead; a link at 0.8 of its rate would take 41.7 us."""
    graph, package = toy_graph(), simulated_package(weight_prefetch=False)
    rates = {"link_bytes_per_s": 3e7, "host_in_bytes_per_s": 3e8}
    target = small_mcm(simulator=package, sram_bytes=7_800, **rates)
    waits = Factors(prefetch=False)
    samples = []
    for last, interval_s in ((0, 48 * US + US / 3), (1, 128 / 3 * US)):
        plan = make_plan(graph, target, [0] * 5 + [last])
        assert evaluate_plan(graph, scaled(target, waits), plan).interval_s == pytest.approx(interval_s)
        samples += [Sample(plan, interval_s)] * 4
    assert evaluate_plan(graph, scaled(target, Factors(links=0.8, prefetch=True)), plan).interval_s == (
        pytest.approx(125 / 3 * US)
    )
    assert fit_package(graph, target, samples) == waits
