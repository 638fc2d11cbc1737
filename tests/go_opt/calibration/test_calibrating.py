"""The loop: plans are measured once, the target is written, and the file of samples goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import go_opt
from go_opt.agents.training.problems.environment import LocalEnvironment
from go_opt.calibration.calibrating import Calibration
from go_opt.calibration.samples import Sample, fastest, noise
from go_opt.env import Target, evaluate_plan
from go_opt.errors import InvalidInputError
from go_opt.hardware import HardwareEnvironment
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from tests.strategies import chip_kind, simulated_kind, simulated_package, small_mcm, toy_graph

TARGET = small_mcm(4)
MACHINE = small_mcm(
    4,
    simulator=simulated_package(),
    kinds=[chip_kind(count=4, simulator=simulated_kind(tile=[4, 4, 8], vector_lanes=64))],
)


def calibration(folder: Path, machine: Target = MACHINE, target: Target = TARGET) -> Calibration:
    environment = LocalEnvironment("simulated")
    return Calibration(toy_graph(), target, environment, folder / "samples", machine=machine, seed=1)


def test_it_goes_on_from_its_samples(tmp_path: Path) -> None:
    assert [learned.num_samples for learned in calibration(tmp_path).run(2)] == [1, 2]
    again = calibration(tmp_path)
    assert len(again.samples) == 2
    assert [learned.num_samples for learned in again.run(5)] == [2, 3, 4, 5]
    assert [learned.num_samples for learned in calibration(tmp_path).run(9, lambda: True)] == [5]
    assert again.best.interval_s == min(sample.interval_s for sample in again.samples)
    assert again.best.interval_s <= again.samples[0].interval_s
    assert len({sample.key for sample in again.samples}) >= 2  # the toy has few good plans
    error = again.error()
    assert error is not None
    assert error < 0.05


def test_the_target_is_one_that_optimize_takes(tmp_path: Path) -> None:
    one = calibration(tmp_path)
    *_, learned = one.run(4)
    path = tmp_path / "target.toml"
    path.write_text(one.text(learned))
    found = go_opt.optimize(toy_graph(), path, max_evaluations=10, policy=None)
    assert go_opt.verify(toy_graph(), path, found.plan) == []
    assert found.plan.target == str(path)
    assert go_opt.verify(toy_graph(), TARGET, one.best.plan) == []


def test_what_is_refused(tmp_path: Path) -> None:
    two = small_mcm(kinds=[chip_kind("a"), chip_kind("b")])
    with pytest.raises(InvalidInputError, match="has 2 kinds of chips"):
        calibration(tmp_path, two, two)
    for _ in calibration(tmp_path).run(1):
        pass
    with pytest.raises(InvalidInputError, match="is for another target"):
        calibration(tmp_path, MACHINE, small_mcm(4, link_bytes_per_s=1e7))
    (tmp_path / "samples").write_text("[1]\n")
    with pytest.raises(InvalidInputError, match="are no samples of a calibration"):
        calibration(tmp_path)


def test_plans_that_do_not_run_show_how_much_memory_there_is(tmp_path: Path) -> None:
    target, machine = small_mcm(4, sram_bytes=9_000), small_mcm(4, sram_bytes=7_200)
    one = calibration(tmp_path, machine, target)
    (learned,) = one.run(1)
    assert (learned.chips, one.error()) == (None, None)
    assert learned.target.kinds[0].sram_bytes == 7_200
    for _ in one.run(3):
        pass
    assert [np.isfinite(sample.interval_s) for sample in one.samples] == [False, True, True]


def test_the_fastest_plan_is_not_one_that_was_lucky_once() -> None:
    """Logarithms of intervals 0, 0.2 of one plan and 0.05 of another: the spread is 0.1 sqrt(2) = 0.141.

    The upper ends are 0.1 + 0.141 / sqrt(2) = 0.2 and 0.05 + 0.141 = 0.191; then 0.16 + 0.141.
    """
    each = np.arange(6)
    twice, once = (Candidate("by hand", each >= cut, each, each).plan(toy_graph(), TARGET) for cut in (2, 3))
    samples = [Sample(twice, 1.0), Sample(twice, float(np.exp(0.2)))]
    assert noise(samples[:1]) is None
    assert noise(samples) == pytest.approx(0.1 * np.sqrt(2))
    assert fastest([*samples, Sample(once, float(np.exp(0.05)))]).plan is once
    found = fastest([*samples, Sample(once, float(np.exp(0.16)))])
    assert found.plan is twice
    assert found.interval_s == pytest.approx(np.exp(0.1))
    assert fastest([Sample(twice, np.inf), Sample(once, 9.0)]).plan is once
    assert fastest([Sample(twice, np.inf)]).interval_s == np.inf


class Noisy:
    """Hardware whose measurements are the target's intervals, up to 10 % off."""

    def __init__(self, spread: float) -> None:
        self.rng, self.spread = np.random.default_rng(0), spread

    def evaluate(self, graph: Graph, target: Target, plan: Plan) -> float:
        return evaluate_plan(graph, target, plan).interval_s * (1 + self.spread * self.rng.random())


@pytest.mark.parametrize("spread", [0.1, 0.0])
def test_the_fastest_plan_is_measured_again_where_there_is_noise(tmp_path: Path, spread: float) -> None:
    """Every fourth sample repeats the fastest plan; without noise only the first of them does."""
    graph, target = go_opt.load("zoo:squeezenet"), go_opt.target("mcm-6x6")
    one = Calibration(graph, target, HardwareEnvironment(Noisy(spread)), tmp_path / "samples")
    fastest_before = [one.best.key for _ in one.run(8)]
    again = [one.samples[at].key == fastest_before[at - 1] for at in (3, 7)]
    assert again == [True, spread > 0]
