"""The environments in this process: by hand, as a rival's evaluator, in any layout."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from go_opt.agents.training.problems.environment import (
    LocalEnvironment,
    environment_name,
    open_session,
)
from go_opt.bench.rivals import RIVALS, Limits, compete, pose
from go_opt.env import cost_tables, evaluate_batch
from go_opt.env.evaluation import Plans
from go_opt.env.model.analytical import _evaluate_batch
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from tests.strategies import JIT_IS_ON, chip_kind, simulated_kind, simulated_package, small_mcm, toy_graph

US = 1e-6


def toy_plans(*placements: list[int]) -> tuple[Plans, Plans, Plans]:
    """The ops of the toy graph in the order of storage, a kernel each, on these chips."""
    ops = np.tile(np.arange(6, dtype=np.int32), (len(placements), 1))
    return np.array(placements, dtype=np.int32), ops, ops


def test_toy_by_hand() -> None:
    # All on one chip: the kernels, 43.4 us. The last op apart: the other five, 29.4 us.
    # Three and three: x and a, 1000 bytes each, take 10 us each over the link; 25.0 us of kernels.
    plans = toy_plans([0] * 6, [0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1])
    with open_session(LocalEnvironment(), toy_graph(), small_mcm()) as session:
        answer = session.evaluate(*plans)
    assert answer.objective_s == pytest.approx([43.4 * US, 29.4 * US, 25.0 * US])
    assert answer.valid.all()


def test_makespans_by_hand() -> None:
    # ids cross the host's link in 2 us, out in 10; the kernels take 43.4. The last op apart: 11 us more,
    # 1 for the hop and 10 for the tensor that it reads.
    plans = toy_plans([0] * 6, [0, 0, 0, 0, 0, 1])
    with open_session(LocalEnvironment(objective="latency"), toy_graph(), small_mcm()) as session:
        answer = session.evaluate(*plans)
    assert answer.objective_s == pytest.approx([55.4 * US, 66.4 * US])


def test_out_of_memory_by_hand() -> None:
    # Twice ids and out, 4800 bytes, throughout; x, h and a, 1000 each, at op "relu".
    for sram_bytes, fits in ((7800, True), (7799, False)):
        session = LocalEnvironment().open(toy_graph(), small_mcm(1, sram_bytes=sram_bytes))
        answer = session.evaluate(*toy_plans([0] * 6))
        assert answer.valid.tolist() == [fits]
        assert np.isfinite(answer.objective_s).tolist() == [fits]


def test_the_simulator_by_hand() -> None:
    # 50 bytes of header on every 100: x and a take 15 us each over the link, which the plain model
    # leaves out; to it the kernels of the second chip take longest.
    kinds = [chip_kind(count=2, simulator=simulated_kind())]
    simulator = simulated_package(packet_bytes=100, packet_header_bytes=50)
    graph = toy_graph()
    target = replace(small_mcm(kinds=kinds, simulator=simulator), analytical_effects=())
    intervals: list[tuple[Fidelity, float]] = [("analytical", 25.0 * US), ("simulated", 30.0 * US)]
    for fidelity, interval_s in intervals:
        with open_session(LocalEnvironment(fidelity), graph, target) as session:
            answer = session.evaluate(*toy_plans([0, 0, 0, 1, 1, 1]))
        assert answer.objective_s == pytest.approx([interval_s])


@pytest.mark.parametrize("workers", [1, 2])
def test_how_far_activations_miss_the_memory_is_known(workers: int) -> None:
    plans = toy_plans([0] * 6, [0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1])
    target = small_mcm(sram_bytes=8_000)
    with open_session(LocalEnvironment(workers=workers), toy_graph(), target) as session:
        answer = session.evaluate(*plans)
    needed_bytes = evaluate_batch(cost_tables(toy_graph(), target), *plans).peak_bytes.max(axis=1)
    assert answer.memory_share is not None
    np.testing.assert_allclose(answer.memory_share, needed_bytes / 8_000)
    np.testing.assert_array_equal(answer.valid, answer.memory_share <= 1.0)
    assert 0 < answer.valid.sum() < 3


def test_a_rival_reaches_the_same_through_a_session() -> None:
    problem = pose(toy_graph(), small_mcm(3), relays=False)
    want = compete(RIVALS["annealing"], problem, Limits(evaluations=64), 0, lambda: 0.0)
    with open_session(LocalEnvironment(workers=2), problem.graph, problem.target) as session:
        through = replace(problem, evaluate=lambda *plans: session.evaluate(*plans).objective_s)
        got = compete(RIVALS["annealing"], through, Limits(evaluations=64), 0, lambda: 0.0)
    assert got.curve == want.curve


def test_sessions_share_the_workers() -> None:
    environment = LocalEnvironment(workers=3)
    before = set(threading.enumerate())
    for _ in range(3):
        session = environment.open(toy_graph(), small_mcm())
        session.evaluate(*toy_plans(*[[0] * 6] * 5))
    started = set(threading.enumerate()) - before
    assert 1 <= len(started) <= 3
    assert all(thread.name.startswith("evaluate") for thread in started)


@pytest.mark.skipif(not JIT_IS_ON, reason="the kernels run interpreted")
def test_plans_of_any_layout_use_the_kernel_that_is_compiled() -> None:
    placement, order, group = toy_plans([0] * 6, [0, 0, 0, 1, 1, 1])
    read_only = placement.copy()
    read_only.setflags(write=False)
    with open_session(LocalEnvironment(), toy_graph(), small_mcm()) as session:
        want = session.evaluate(placement, order, group)
        compiled = len(_evaluate_batch.signatures)
        for other in (placement.astype(np.int64), np.asfortranarray(placement), read_only):
            got = session.evaluate(other, order, group)  # type: ignore[arg-type]
            np.testing.assert_array_equal(got.objective_s, want.objective_s)
    assert len(_evaluate_batch.signatures) == compiled


def test_workers_fidelity_and_objective_are_checked() -> None:
    with pytest.raises(InvalidInputError, match=r"^workers is 0, must be at least 1\.$"):
        LocalEnvironment(workers=0)
    with pytest.raises(InvalidInputError, match="fidelity must be one of analytical, simulated"):
        LocalEnvironment("hardware")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="objective must be one of throughput, latency"):
        LocalEnvironment(objective="energy")  # type: ignore[arg-type]


def test_records_tell_environments_apart() -> None:
    names = map(environment_name, (LocalEnvironment(), LocalEnvironment("simulated", 2, "latency")))
    assert [*names] == ["analytical", "simulated, latency"]
