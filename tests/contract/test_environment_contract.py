"""One contract for every environment a trainer may use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from go_opt.agents.training.problems.cases import Variation, varied_target
from go_opt.agents.training.problems.environment import (
    Environment,
    LocalEnvironment,
    open_session,
)
from go_opt.common.arrays import IntArray
from go_opt.env import Target, evaluate_plan, load_target
from go_opt.errors import EnvironmentFailedError, InvalidInputError
from go_opt.hardware import HardwareEnvironment, Measured
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Candidate, Plan
from go_opt.model.states import with_host_states
from go_opt.service.environment.environment_service import EnvironmentService
from go_opt.service.environment.remote_environment import RemoteEnvironment
from go_opt.solver.verify.verifier import verify
from tests.copies import with_legal_relays
from tests.env.test_states import decoder
from tests.replicated import random_stages, replicated_plan
from tests.serving import serve_in_thread
from tests.strategies import make_plan, random_graph, random_order, random_plan, small_mcm, toy_graph

Batch = tuple[IntArray, IntArray, IntArray]


LOCAL = {
    "analytical": LocalEnvironment(),
    "analytical, 3 workers": LocalEnvironment(workers=3),
    "simulated": LocalEnvironment("simulated"),
    "simulated, 3 workers": LocalEnvironment("simulated", workers=3),
    "makespan": LocalEnvironment(objective="latency"),
    "makespan, 3 workers": LocalEnvironment(workers=3, objective="latency"),
    "simulated makespan": LocalEnvironment("simulated", objective="latency"),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a service whose batches hold three plans, so that those of the tests are cut."""
    with serve_in_thread([EnvironmentService(max_batch_plans=3)], workers=3) as served_at:
        yield served_at


@pytest.fixture(params=[*LOCAL, *(f"remote {name}" for name in LOCAL if "workers" not in name)])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def here(name: str) -> LocalEnvironment:
    """What the environment must answer as."""
    return LOCAL[name.removeprefix("remote ")]


@pytest.fixture
def environment(name: str, here: LocalEnvironment, address: str) -> Environment:
    return here if name in LOCAL else RemoteEnvironment(address, here.fidelity, objective=here.objective)


def wanted_s(here: LocalEnvironment, graph: Graph, target: Target, plan: Plan) -> float:
    """The interval or the makespan; infinite where the plan is not valid."""
    metrics = evaluate_plan(graph, target, plan, fidelity=here.fidelity)
    if not metrics.valid:
        return np.inf
    return metrics.makespan_s if here.objective == "latency" else metrics.interval_s


def case(seed: int = 0, num_plans: int = 8) -> tuple[Graph, Target, list[Plan]]:
    """Plans that keep every static rule, of which some run out of memory."""
    rng = np.random.default_rng(seed)
    target = small_mcm(3, sram_bytes=30_000)
    graph = random_graph(rng, num_ops=12)
    plans: list[Plan] = []
    while len(plans) < num_plans:
        plan = random_plan(rng, graph, target, monotone=True, fusion="legal")
        if {violation.constraint for violation in verify(graph, target, plan)} <= {"memory"}:
            plans.append(plan)
    return graph, target, plans


def stacked(plans: list[Plan]) -> Batch:
    placement, order, fusion_group = (
        np.array([getattr(plan, name) for plan in plans], dtype=np.int32)
        for name in ("placement", "order", "fusion_group")
    )
    return placement, order, fusion_group


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_answered_plan_by_plan(
    environment: Environment, here: LocalEnvironment, seed: int
) -> None:
    graph, target, plans = case(seed)
    with open_session(environment, graph, target) as session:
        answer = session.evaluate(*stacked(plans))
    want_s = [wanted_s(here, graph, target, plan) for plan in plans]
    np.testing.assert_array_equal(answer.valid, np.isfinite(want_s), strict=True)
    np.testing.assert_array_equal(answer.objective_s, want_s, strict=True)


def test_the_cases_hold_valid_and_invalid_plans() -> None:
    for here in (LOCAL["analytical"], LOCAL["simulated"]):
        valid = {
            np.isfinite(wanted_s(here, graph, target, plan))
            for graph, target, plans in map(case, range(4))
            for plan in plans
        }
        assert valid == {True, False}


@pytest.mark.parametrize("package", ["mcm-2x2", "gpu-4"])
def test_packages_of_other_rates(environment: Environment, here: LocalEnvironment, package: str) -> None:
    """As pretraining varies them; no file of such a package exists."""
    graph = random_graph(np.random.default_rng(3), num_ops=12)
    target = varied_target(load_target(package), Variation(5, 1.37, 0.61, 1.9))
    whole = Candidate("by hand", np.zeros(12), np.arange(12), np.arange(12)).plan(graph, target)
    with open_session(environment, graph, target) as session:
        (reached_s,) = session.evaluate(*stacked([whole])).objective_s
    assert reached_s == wanted_s(here, graph, target, whole)


def test_replicated_stages_and_relays(environment: Environment, here: LocalEnvironment) -> None:
    rng = np.random.default_rng(7)
    graph, target = random_graph(rng, 12), small_mcm(5, sram_bytes=100_000)
    plans = []
    while len(plans) < 8:
        order = random_order(rng, graph)
        stage_of_op, sizes = random_stages(rng, order, order, target.num_chips)
        plan = replicated_plan(graph, target, stage_of_op, sizes, order=order)
        plans.append(with_legal_relays(graph, target, plan))
    with open_session(environment, graph, target) as session:
        answer = session.evaluate_plans(plans)
    want_s = [wanted_s(here, graph, target, plan) for plan in plans]
    assert {*np.isfinite(want_s).tolist()} == {True, False}
    np.testing.assert_array_equal(answer.objective_s, want_s, strict=True)
    np.testing.assert_array_equal(answer.valid, np.isfinite(want_s), strict=True)
    assert answer.chip_s is not None
    for i in np.flatnonzero(answer.valid).tolist():
        seen = evaluate_plan(graph, target, plans[i], fidelity=here.fidelity).compute_s
        np.testing.assert_array_equal(answer.chip_s[i], seen, strict=True)


def test_chips_that_hardware_has_seen_come_with_its_answer() -> None:
    class Board:
        def evaluate(self, graph: Graph, target: Target, plan: Plan) -> float | Measured:
            return Measured(3e-6, [2e-6, 3e-6]) if plan.placement.any() else 5e-6

    graph, target = toy_graph(), small_mcm()
    plans = [make_plan(graph, target, [0] * 6), make_plan(graph, target, [0] * 5 + [1])]
    service = EnvironmentService({("hardware", "throughput"): HardwareEnvironment(Board(), repeats=3)})
    with (
        serve_in_thread([service]) as address,
        open_session(RemoteEnvironment(address), graph, target) as session,
    ):
        answer = session.evaluate(*stacked(plans))
    assert answer.objective_s.tolist() == [5e-6, 3e-6]
    np.testing.assert_array_equal(answer.chip_s, [[np.nan, np.nan], [2e-6, 3e-6]])


@pytest.mark.parametrize("num_plans", [0, 1, 2, 7])
def test_a_batch_is_the_sum_of_its_parts(environment: Environment, num_plans: int) -> None:
    graph, target, plans = case()
    whole = stacked(plans)
    with open_session(environment, graph, target) as session:
        want = session.evaluate(*whole)
        got = session.evaluate(*(array[:num_plans] for array in whole))
    np.testing.assert_array_equal(got.objective_s, want.objective_s[:num_plans], strict=True)
    np.testing.assert_array_equal(got.valid, want.valid[:num_plans], strict=True)


def test_threads_and_sessions_do_not_disturb_each_other(environment: Environment) -> None:
    cases = [case(seed) for seed in range(3)]
    sessions = [open_session(environment, graph, target) for graph, target, _ in cases]
    batches = [stacked(plans) for _, _, plans in cases]
    alone = [session.evaluate(*batch) for session, batch in zip(sessions, batches, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        together = [pool.submit(sessions[i % 3].evaluate, *batches[i % 3]) for i in range(24)]
    for i, answer in enumerate(together):
        np.testing.assert_array_equal(answer.result().objective_s, alone[i % 3].objective_s)
    for session in sessions:
        session.close()


def test_plans_are_left_as_they_are_and_answers_are_the_callers(environment: Environment) -> None:
    graph, target, plans = case()
    batch = stacked(plans)
    before = [array.copy() for array in batch]
    with open_session(environment, graph, target) as session:
        first = session.evaluate(*batch)
        want_s = first.objective_s.copy()
        first.objective_s[:], first.valid[:] = 0.0, False
        again = session.evaluate(*batch)
    np.testing.assert_array_equal(again.objective_s, want_s)
    for array, was in zip(batch, before, strict=True):
        np.testing.assert_array_equal(array, was)


def test_plans_of_another_shape_are_refused(environment: Environment) -> None:
    graph, target, plans = case()
    placement, order, group = stacked(plans)
    with open_session(environment, graph, target) as session:
        with pytest.raises(InvalidInputError, match=r"order has shape \(7, 12\), must be \(8, 12\)\."):
            session.evaluate(placement, order[1:], group)
        with pytest.raises(InvalidInputError, match=r"placement has shape \(8, 11\), must be \(8, 12\)\."):
            session.evaluate(placement[:, 1:], order, group)


def test_a_closed_session_says_so(environment: Environment) -> None:
    graph, target, plans = case()
    session = open_session(environment, graph, target)
    session.evaluate(*stacked(plans))
    session.close()
    session.close()
    with pytest.raises(EnvironmentFailedError, match=r"on 'small-mcm' was closed before batch 2\.$"):
        session.evaluate(*stacked(plans))


def test_plans_of_sequences_are_answered_for_their_number(
    environment: Environment, here: LocalEnvironment
) -> None:
    graph, target = decoder(), small_mcm(2)
    graphs = [with_sequences(graph, number) for number in (1, 2, 5)]
    graphs.append(with_host_states(graphs[1], ("past",)))
    plans = [make_plan(on_graph, target, (0, 0, 0, 1)) for on_graph in graphs]
    with open_session(environment, graph, target) as session:
        answer = session.evaluate_plans(plans)
    want_s = [wanted_s(here, on, target, plan) for on, plan in zip(graphs, plans, strict=True)]
    np.testing.assert_array_equal(answer.objective_s, want_s)
    if here.objective == "throughput":
        assert want_s[0] > want_s[1]
