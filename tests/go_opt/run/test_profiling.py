"""This machine as a target: the fit by hand and on made-up machines, and a model that is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import go_opt
from go_opt import from_onnx
from go_opt.env import evaluate_plan, load_target, parse_target
from go_opt.env.cost.tables import cost_tables
from go_opt.errors import InvalidInputError
from go_opt.model.plan import Plan
from go_opt.run.profiling.profiling import (
    MOST_SEGMENTS,
    QUANTITIES,
    Rates,
    Segment,
    fit_ops,
    fit_rates,
    machine_target,
    op_quantities,
    random_cut,
    relative_error,
)
from tests.exports import info, model, node, plan_of, saved, weight


def made_up(rng: np.random.Generator, op_s: NDArray, per_byte_s: float) -> list[Segment]:
    """Segments of a machine on which ops take ``op_s``."""
    segments = []
    for _ in range(80):
        start, end = sorted(rng.choice(len(op_s) + 1, 2, replace=False))
        ops, size = np.arange(start, end), int(rng.integers(1000, 100_000))
        seconds = float(op_s[ops].sum() + size * per_byte_s)
        segments.append(Segment(ops, size, seconds, seconds))
    return segments


def test_rates_are_found_again() -> None:
    rng = np.random.default_rng(0)
    quantities = rng.uniform(0, [1e9, 1e7, 1e8, 1, 1e5], (30, len(QUANTITIES)))
    quantities[::2, 0] = 0  # these move bytes for longer
    truth = Rates(np.array([2e-11, 2e-10, 4e-11, 2e-5, 2e-8]), 2e-10)  # a machine half as fast as is typical
    op_s = truth.op_s(quantities)
    assert 3 < truth.moves(quantities).sum() < 27
    segments = made_up(rng, op_s, truth.per_cut_byte_s)
    found = fit_rates(segments, quantities)
    np.testing.assert_allclose(found.per_quantity_s, truth.per_quantity_s, rtol=1e-2)
    assert found.per_cut_byte_s == pytest.approx(truth.per_cut_byte_s, rel=1e-2)
    assert relative_error(segments, found, found.op_s(quantities)) < 1e-3


def test_quantities_that_no_segment_tells_apart_keep_typical_ratios() -> None:
    rng = np.random.default_rng(0)
    quantities = np.tile([1e7, 0, 1e5, 1, 0], (30, 1))
    segments = made_up(rng, np.full(30, 3 * (1e7 * 1e-11 + 1e-5)), 3e-10)
    found = fit_rates(segments, quantities)
    np.testing.assert_allclose(found.per_quantity_s, [3e-11, 3e-10, 6e-11, 3e-5, 3e-8], rtol=1e-6)


def test_an_op_takes_what_a_kernel_of_the_target_does(path: Path) -> None:
    rates = Rates(np.array([1e-11, 1e-10, 1e-10, 5e-6, 0.0]), 4e-11)
    on = parse_target(machine_target(rates, 2, "m"), "m")
    graph = from_onnx(path)
    found = rates.op_s(op_quantities(graph, on))
    np.testing.assert_allclose(found, cost_tables(graph, on).kernel_floor_s()[0], rtol=1e-5)
    assert rates.moves(op_quantities(graph, on)).tolist() == [False, True, True, False]


def test_ops_that_rates_do_not_explain_are_found_too() -> None:
    rng = np.random.default_rng(1)
    quantities = rng.uniform(1, [1e9, 1, 1, 1, 1], (20, len(QUANTITIES)))
    truth = quantities[:, 0] * 1e-11 * rng.uniform(0.5, 2, 20)
    segments = made_up(rng, truth, 0.0)
    rates = fit_rates(segments, quantities)
    op_s, refined = fit_ops(segments, quantities, rates)
    new = made_up(rng, truth, 0.0)
    assert relative_error(new, refined, op_s) < 0.03 < relative_error(new, rates, rates.op_s(quantities))


def test_the_error_by_hand() -> None:
    segments = [Segment(np.array([0, 1]), 100, 5.0, 5.0), Segment(np.array([1]), 0, 2.0, 5.0)]
    rates = Rates(np.zeros(5), 0.01)
    # 1 + 3 + 1 = 5 as measured; 3 instead of 2 of 5.
    assert relative_error(segments, rates, np.array([1.0, 3.0])) == pytest.approx(0.1)


def test_random_cuts_keep_the_order() -> None:
    rng = np.random.default_rng(0)
    cuts = [random_cut(rng, 40) for _ in range(200)]
    assert all((np.diff(cut) >= 0).all() and set(np.diff(cut)) <= {0, 1} and cut[0] == 0 for cut in cuts)
    assert {cut[-1] for cut in cuts} == set(range(MOST_SEGMENTS))
    assert random_cut(rng, 1).tolist() == [0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [
        node("Conv", "x k", "a", "conv", pads=[1, 1, 1, 1]),
        node("Conv", "a d", "b", "depthwise", pads=[1, 1, 1, 1], group=8),
        node("Sigmoid", "b", "c", "act"),
        node("Conv", "c k", "y", "last", pads=[1, 1, 1, 1]),
    ]
    size = [1, 8, 16, 16]
    weights = [weight("k", 8, 8, 3, 3), weight("d", 8, 1, 3, 3)]
    return saved(model(nodes, [info("x", size)], [info("y", size)], weights), tmp_path)


def test_quantities_by_hand(path: Path) -> None:
    graph = from_onnx(path)
    on = parse_target(machine_target(Rates(np.ones(5), 1.0), 2, "m"), "m")
    tensor = 8 * 16 * 16
    dense, grouped = 2 * tensor * 8 * 9, 2 * tensor * 9
    assert op_quantities(graph, on).tolist() == [
        [dense, 0, 4 * (2 * tensor + 576), 1, 0],
        [grouped, 0, 4 * (2 * tensor + 72), 1, 0],
        [0, graph.op_flops[2], 8 * tensor, 1, tensor],
        [dense, 0, 4 * (2 * tensor + 576), 1, 0],
    ]


def test_the_target_has_the_rates(path: Path) -> None:
    rates = Rates(np.array([1e-11, 1e-10, 2e-11, 5e-6, 3e-9]), 4e-11)
    on = parse_target(machine_target(rates, 3, "m"), "m")
    graph = from_onnx(path)
    tables = cost_tables(graph, on)
    np.testing.assert_allclose(tables.op_s[0], graph.op_flops * [1e-11, 1e-11, 1e-10, 1e-11], rtol=1e-5)
    assert (on.num_chips, tables.kernel_overhead_s.tolist()) == (3, [5e-6])
    ops = np.arange(4)
    plan = Plan.create(
        graph,
        "m",
        on.fingerprint,
        placement=np.array([0, 0, 1, 1]),
        order=ops,
        fusion_group=ops,
        provenance="",
    )
    metrics = evaluate_plan(graph, on, plan)
    # A chip pays for the tensor that enters and for the one that leaves, 8 kB each.
    paid_s = metrics.interval_s - metrics.compute_s.max()
    assert paid_s == pytest.approx(2 * 4 * 8 * 16 * 16 * 4e-11, rel=1e-5)


def test_a_model_is_measured_planned_and_run(path: Path, tmp_path: Path) -> None:
    target, costs = tmp_path / "machine.toml", tmp_path / "costs.csv"
    found = go_opt.profile(path, target, costs, chips=2, seconds=0.5)
    assert list(found.op_s) == ["conv", "depthwise", "act", "last"]
    assert found.segments > found.held_out >= 0
    assert 0 < sum(found.op_s.values()) < 0.1
    on = load_target(target)
    assert (on.name, on.num_chips) == ("toy-machine", 2)
    graph = go_opt.with_measured_costs(from_onnx(path), costs, on)
    assert cost_tables(graph, on).measured_s[0].sum() == pytest.approx(sum(found.op_s.values()), rel=1e-4)
    plan = plan_of(path, [0, 0, 1, 1], str(target))
    assert go_opt.run_plan(path, plan, inferences=5).workers == 2


def test_what_is_refused(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="chips must be between 1 and 256, not 0"):
        go_opt.profile(path, chips=0)
    with pytest.raises(InvalidInputError, match="seconds must be between"):
        go_opt.profile(path, seconds=-1)
