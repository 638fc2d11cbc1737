"""``go_opt.v1.Environment`` as another language meets it: what is answered, and each refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest

from go_opt.agents.training.problems.environment import Evaluations, LocalEnvironment, Plans
from go_opt.env import INVALID_REWARD, Target, evaluate_plan
from go_opt.errors import (
    ExhaustedError,
    GoOptError,
    GraphError,
    InvalidInputError,
    NotFoundError,
    PlanError,
    TargetError,
    UnsupportedError,
)
from go_opt.model.codecs.wire import graph_to_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Relay
from go_opt.proto import environment_pb2, environment_pb2_grpc, plan_pb2
from go_opt.service.environment.environment_service import EnvironmentService, SessionLimits
from go_opt.service.environment.remote_environment import RemoteEnvironment
from go_opt.service.messages.errors import error_from_call
from go_opt.solver import greedy_slicing
from go_opt.solver.orders.instance import instance
from go_opt.solver.verify.verifier import verify
from tests.replicated import replicated_plan
from tests.serving import serve_in_thread
from tests.strategies import make_plan, small_mcm, target_toml, toy_graph

GRAPH = toy_graph()
TARGET = small_mcm()
LIMITS = SessionLimits(sessions_per_client=3, held_bytes=20_000)


@pytest.fixture(scope="module")
def service() -> EnvironmentService:
    return EnvironmentService(limits=LIMITS, max_batch_plans=4)


@pytest.fixture(scope="module")
def address(service: EnvironmentService) -> Iterator[str]:
    with serve_in_thread([service], workers=2) as served_at:
        yield served_at


@pytest.fixture
def stub(address: str) -> Iterator[Any]:
    with grpc.insecure_channel(address) as channel:
        yield environment_pb2_grpc.EnvironmentStub(channel)  # type: ignore[no-untyped-call]


@pytest.fixture
def opened(stub: Any) -> Iterator[environment_pb2.CreateSessionResponse]:
    response = stub.CreateSession(creation())
    yield response
    with suppress(grpc.RpcError):  # the test may have closed it
        stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=response.session_id))


def creation(**fields: Any) -> environment_pb2.CreateSessionRequest:
    target = plan_pb2.Target(toml=target_toml(), toml_source="small.toml")
    return environment_pb2.CreateSessionRequest(
        **{"graph": graph_to_proto(GRAPH), "target": target, "fidelity": "FIDELITY_ANALYTICAL", **fields}
    )


def batch(
    opened: environment_pb2.CreateSessionResponse, *plans: Plan, number: int = 7
) -> environment_pb2.EvaluateBatchRequest:
    return environment_pb2.EvaluateBatchRequest(
        session_id=opened.session_id, batch_id=number, plans=map(plan_to_proto, plans)
    )


def plan(*placement: int, **fields: Any) -> Plan:
    return make_plan(GRAPH, TARGET, placement, **fields)


def refusal(call: Callable[[], Any]) -> tuple[GoOptError, grpc.StatusCode]:
    with pytest.raises(grpc.RpcError) as error:
        list(call()) if hasattr(answer := call(), "__next__") else answer
    return error_from_call(error.value, "here"), error.value.code()


def test_a_session_says_what_plans_must_be(opened: environment_pb2.CreateSessionResponse) -> None:
    assert len(opened.session_id) == 32
    assert opened.max_batch_plans == 4
    assert opened.idle_timeout_s == LIMITS.idle_timeout_s
    assert opened.graph_fingerprint == GRAPH.fingerprint
    assert opened.target_fingerprint == TARGET.fingerprint
    assert tuple(opened.op_names) == GRAPH.op_names
    case = instance(GRAPH, TARGET)
    greedy = greedy_slicing(case.tables, case.order, case.fusion_group, adjacent=case.is_adjacent)
    fused = plan(*greedy.placement.tolist(), fusion_group=case.fusion_group.tolist())
    assert opened.reference_interval_s == evaluate_plan(GRAPH, TARGET, fused).interval_s


def test_batches_are_answered_in_order(stub: Any, opened: environment_pb2.CreateSessionResponse) -> None:
    plans = [plan(0, 0, 0, 0, 0, 0), plan(0, 0, 0, 1, 1, 1), plan(0, 0, 0, 0, 0, 1)]
    want_s = [evaluate_plan(GRAPH, TARGET, each).interval_s for each in plans]
    requests = [batch(opened, plans[i % 3], plans[(i + 1) % 3], number=i) for i in range(9)]
    requests.append(batch(opened, number=-4))  # an empty batch, and a number of the caller's choice
    answers = list(stub.Evaluate(iter(requests)))
    assert [answer.batch_id for answer in answers] == [*range(9), -4]
    for i, answer in enumerate(answers[:-1]):
        assert [m.interval_s for m in answer.metrics] == [want_s[i % 3], want_s[(i + 1) % 3]]
        assert all(
            m.valid and not m.reason and m.throughput_per_s == 1 / m.interval_s for m in answer.metrics
        )
        wanted = [math.log(opened.reference_interval_s / m.interval_s) for m in answer.metrics]
        assert list(answer.rewards) == pytest.approx(wanted)
        assert answer.wall_s > 0
    assert (len(answers[-1].metrics), len(answers[-1].rewards)) == (0, 0)
    closed = stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=opened.session_id))
    assert closed.plans_evaluated == 18


def test_makespans_and_their_rewards(stub: Any) -> None:
    opened = stub.CreateSession(creation(objective="OBJECTIVE_LATENCY"))
    assert opened.reference_interval_s == 0
    (answer,) = stub.Evaluate(iter([batch(opened, plan(0, 0, 0, 0, 0, 0), plan(0, 0, 0, 0, 0, 1))]))
    # 2 us in, 43.4 us of kernels, 10 us out; the last op apart: 11 us for what it reads.
    assert [m.makespan_s for m in answer.metrics] == pytest.approx([55.4e-6, 66.4e-6])
    assert [m.interval_s for m in answer.metrics] == [0, 0]
    wanted = [math.log(opened.reference_makespan_s / m.makespan_s) for m in answer.metrics]
    assert list(answer.rewards) == pytest.approx(wanted)
    stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=opened.session_id))


def test_a_plan_that_breaks_a_rule_is_an_answer(
    stub: Any, opened: environment_pb2.CreateSessionResponse
) -> None:
    broken = [plan(1, 1, 1, 0, 0, 0), plan(1, 1, 1, 1, 1, 1)]
    broken.append(replace(plan(0, 0, 0, 0, 0, 0), replication=np.array([1, 1, 2, 1, 1, 1], np.int32)))
    message = batch(opened, plan(0, 0, 0, 0, 0, 0), *broken)
    (answer,) = stub.Evaluate(iter([message]))
    assert [m.valid for m in answer.metrics] == [True, False, False, False]
    reasons = [m.reason for m in answer.metrics]
    assert reasons[1:] == [verify(GRAPH, TARGET, each)[0].message for each in broken]
    for metrics, reward in list(zip(answer.metrics, answer.rewards, strict=True))[1:]:
        assert metrics.interval_s == metrics.latency_s == metrics.makespan_s == math.inf
        assert metrics.throughput_per_s == 0
        assert reward == INVALID_REWARD


@pytest.mark.parametrize("fidelity", ["analytical", "simulated"])
def test_replicated_stages_and_relays(stub: Any, fidelity: Any) -> None:
    three = plan_pb2.Target(toml=target_toml(num_chips=3))
    opened = stub.CreateSession(creation(target=three, fidelity=f"FIDELITY_{fidelity.upper()}"))
    target = small_mcm(3)
    apart = make_plan(GRAPH, target, [0, 1, 1, 1, 2, 2])
    plans = [
        replicated_plan(GRAPH, target, np.array([0, 0, 0, 0, 1, 1]), np.array([2, 1])),
        make_plan(GRAPH, target, [0, 0, 0, 0, 1, 1]),
        replace(apart, relays=(Relay("x", (1,)),)),
    ]
    (answer,) = stub.Evaluate(iter([batch(opened, *plans)]))
    want = [evaluate_plan(GRAPH, target, each, fidelity=fidelity) for each in plans]
    assert [m.interval_s for m in answer.metrics] == [m.interval_s for m in want]
    assert all(m.valid and not m.reason for m in answer.metrics)
    relay = batch(opened, *plans)
    relay.plans[2].relays[0].tensor = "nothing"
    error, _ = refusal(lambda: stub.Evaluate(iter([relay])))
    assert isinstance(error, PlanError)
    assert error.field == "plans[2]"
    assert str(error).startswith("batch 7: plan 2: ")
    assert "'nothing'" in str(error)
    relay.plans[2].relays[0].chips[0] = -1
    error, _ = refusal(lambda: stub.Evaluate(iter([relay])))
    assert isinstance(error, PlanError)
    assert error.field == "plans[2].relays[0].chips"
    old = batch(opened, *plans)
    old.plans[1].clones.add(op="embed", chip=1)
    error, _ = refusal(lambda: stub.Evaluate(iter([old])))
    assert (type(error), error.field) == (PlanError, "plans[1].clones")
    assert str(error).startswith("batch 7: plan 1: clones are no longer supported: ")
    stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=opened.session_id))


def test_a_plan_that_does_not_fit_is_an_answer(stub: Any) -> None:
    # tests/agents/training/test_environment.py: 7800 bytes hold the whole graph on one chip.
    small = plan_pb2.Target(toml=target_toml(sram_bytes=7799))
    opened = stub.CreateSession(creation(target=small))
    tight = small_mcm(sram_bytes=7799)
    (answer,) = stub.Evaluate(iter([batch(opened, make_plan(GRAPH, tight, [0] * 6))]))
    assert not answer.metrics[0].valid
    assert answer.metrics[0].reason == ("out of memory: chip 0 needs 7800 bytes for activations and has 7799")
    stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=opened.session_id))


Change = Callable[[plan_pb2.Plan], object]
MALFORMED: dict[str, tuple[Change, str, str]] = {
    "no placement": (lambda p: p.ClearField("placement"), "placement", "has 0 entries, the graph 6 ops"),
    "short order": (lambda p: p.order.pop(), "order", "has 5 entries, the graph 6 ops"),
    "long kernels": (lambda p: p.fusion_group.append(1), "fusion_group", "has 7 entries, the graph 6 ops"),
    "no replication": (lambda p: p.ClearField("replication"), "replication", "has 0 entries"),
    "chip": (lambda p: p.placement.__setitem__(3, 2), "placement", "must hold chips 0 to 1, not 2 at 3"),
    "chip below": (lambda p: p.placement.__setitem__(0, -1), "placement", "chips 0 to 1, not -1 at 0"),
    "op": (lambda p: p.order.__setitem__(5, 6), "order", "must hold ops 0 to 5, not 6 at 5"),
    "op below": (lambda p: p.order.__setitem__(0, -(2**31)), "order", "ops 0 to 5, not -2147483648 at 0"),
    "op twice": (lambda p: p.order.__setitem__(5, 4), "order", "every op once, op 5 is missing"),
    "kernel": (lambda p: p.fusion_group.__setitem__(1, -1), "fusion_group", "kernels from 0 on, not -1 at 1"),
    "replicas": (lambda p: p.replication.__setitem__(1, 0), "replication", "from 1 on, not 0 at 1"),
    "origin": (lambda p: p.op_provenance.__setitem__(1, 1), "op_provenance", "must index provenance"),
    "no origins": (lambda p: p.ClearField("provenance"), "op_provenance", "must index provenance"),
    "other graph": (
        lambda p: setattr(p, "graph_fingerprint", "x"),
        "graph_fingerprint",
        "is of another graph than the session",
    ),
    "other target": (
        lambda p: p.ClearField("target_fingerprint"),
        "target_fingerprint",
        "is of another target than the session",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_plan_is_named(
    stub: Any, opened: environment_pb2.CreateSessionResponse, case: str
) -> None:
    change, field, words = MALFORMED[case]
    good = plan(0, 0, 0, 0, 0, 0)
    message = batch(opened, good, good, good)
    change(message.plans[2])
    error, code = refusal(lambda: stub.Evaluate(iter([message])))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, PlanError)
    assert error.field == f"plans[2].{field}"
    assert str(error).startswith(f"batch 7: plan 2: {field} ")
    assert words in str(error)
    (answer,) = stub.Evaluate(iter([batch(opened, good)]))  # the session stays
    assert answer.metrics[0].valid


def test_the_batches_before_a_malformed_one_are_answered(
    stub: Any, opened: environment_pb2.CreateSessionResponse
) -> None:
    good = plan(0, 0, 0, 0, 0, 0)
    bad = batch(opened, good, number=2)
    bad.plans[0].placement[0] = 9
    call = stub.Evaluate(iter([batch(opened, good, number=1), bad]))
    assert next(call).batch_id == 1
    error, _ = refusal(lambda: call)
    assert str(error) == "batch 2: plan 0: placement must hold chips 0 to 1, not 9 at 0."


def test_too_many_plans(stub: Any, opened: environment_pb2.CreateSessionResponse) -> None:
    message = batch(opened, *[plan(0, 0, 0, 0, 0, 0)] * 5)
    error, code = refusal(lambda: stub.Evaluate(iter([message])))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(error, ExhaustedError)
    assert str(error) == "batch 7: plans has 5 entries, the limit is 4."
    assert error.retry_s is None  # it is too large at any time


def test_a_session_that_is_not_there(stub: Any, opened: environment_pb2.CreateSessionResponse) -> None:
    close = environment_pb2.CloseSessionRequest(session_id=opened.session_id)
    stub.CloseSession(close)
    message = batch(opened, plan(0, 0, 0, 0, 0, 0))
    for call in (lambda: stub.Evaluate(iter([message])), lambda: stub.CloseSession(close)):
        error, code = refusal(call)
        assert code is grpc.StatusCode.NOT_FOUND
        assert isinstance(error, NotFoundError)
        assert error.field == "session_id"
    for unknown in ("", "0" * 32, "../../etc/passwd"):
        request = environment_pb2.CloseSessionRequest(session_id=unknown)
        error, code = refusal(partial(stub.CloseSession, request))
        assert code is grpc.StatusCode.NOT_FOUND


def test_closing_ends_a_stream(stub: Any, opened: environment_pb2.CreateSessionResponse) -> None:
    good, requests = plan(0, 0, 0, 0, 0, 0), SimpleQueue[Any]()
    requests.put(batch(opened, good, number=1))
    answers = stub.Evaluate(iter(requests.get, None))
    assert next(answers).batch_id == 1
    stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=opened.session_id))
    requests.put(batch(opened, good, number=2))
    error, code = refusal(lambda: answers)
    requests.put(None)
    assert code is grpc.StatusCode.NOT_FOUND
    assert isinstance(error, NotFoundError)


REFUSED: dict[str, tuple[dict[str, Any], type[GoOptError], grpc.StatusCode, str]] = {
    "no graph": ({"graph": None}, GraphError, grpc.StatusCode.INVALID_ARGUMENT, "no ops"),
    "no target": ({"target": None}, TargetError, grpc.StatusCode.INVALID_ARGUMENT, "target"),
    "unknown target": (
        {"target": plan_pb2.Target(name="moon")},
        TargetError,
        grpc.StatusCode.INVALID_ARGUMENT,
        "moon",
    ),
    "a path as target": (
        {"target": plan_pb2.Target(name="/etc/hostname")},
        TargetError,
        grpc.StatusCode.INVALID_ARGUMENT,
        "unknown target '/etc/hostname'",
    ),
    "hardware": (
        {"fidelity": "FIDELITY_HARDWARE"},
        UnsupportedError,
        grpc.StatusCode.UNIMPLEMENTED,
        "does not serve hardware, but analytical and simulated",
    ),
    "objective": ({"objective": 9}, InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT, "9 is no number"),
    "fidelity": ({"fidelity": 9}, InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT, "9 is no number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_session_that_cannot_be_opened(stub: Any, service: EnvironmentService, case: str) -> None:
    fields, error_class, code, words = REFUSED[case]
    before = service.sessions.num_sessions
    error, got = refusal(lambda: stub.CreateSession(creation(**fields)))
    assert (type(error), got) == (error_class, code)
    assert words in str(error)
    assert service.sessions.num_sessions == before


def test_no_fidelity_is_the_analytical(stub: Any) -> None:
    by_default = stub.CreateSession(creation(fidelity=0))
    named = stub.CreateSession(creation())
    assert by_default.reference_interval_s == named.reference_interval_s
    for opened in (by_default, named):
        stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=opened.session_id))


def test_limits_of_sessions(stub: Any, service: EnvironmentService) -> None:
    assert service.sessions.num_sessions == 0
    opened = [stub.CreateSession(creation()) for _ in range(3)]
    assert service.sessions.num_sessions == 3
    error, code = refusal(lambda: stub.CreateSession(creation()))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(error, ExhaustedError)
    assert error.retry_s == 10
    for each in opened:
        stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=each.session_id))
    big = graph_to_proto(GRAPH)
    big.ops[0].name = "x" * 20_000
    routed = plan_pb2.Target(toml=target_toml(num_chips=100, topology="all_to_all"))
    for fields in ({"graph": big}, {"target": routed}):
        error, code = refusal(lambda: stub.CreateSession(creation(**fields)))  # noqa: B023
        assert "bytes" in str(error)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


class Greedy:
    """Hardware that takes nothing for valid, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Plans] = []

    def open(self, graph: Graph, target: Target) -> Greedy:
        return self

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        self.asked.append(placement)
        return Evaluations(np.full(len(placement), np.inf), np.zeros(len(placement), dtype=np.bool_))

    def close(self) -> None:
        raise RuntimeError("the door is stuck")


def test_hardware_that_runs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    hardware = Greedy()
    with (
        serve_in_thread([EnvironmentService({("hardware", "throughput"): hardware})]) as address,
        grpc.insecure_channel(address) as channel,
    ):
        stub = environment_pb2_grpc.EnvironmentStub(channel)  # type: ignore[no-untyped-call]
        opened = stub.CreateSession(creation(fidelity="FIDELITY_HARDWARE"))
        assert opened.reference_interval_s == math.inf
        before = len(hardware.asked)
        good, backwards = plan(0, 0, 0, 0, 0, 0), plan(1, 1, 1, 0, 0, 0)
        twice = replicated_plan(GRAPH, TARGET, np.zeros(6, int), np.array([2]))
        (answer,) = stub.Evaluate(iter([batch(opened, backwards, good, twice)]))
        assert [len(asked) for asked in hardware.asked[before:]] == [1]  # never what breaks a rule
        assert [m.reason for m in answer.metrics][1:] == [
            "the environment could not run the plan.",
            "the environment evaluates no replicated stages and relays.",
        ]
        stub.CloseSession(environment_pb2.CloseSessionRequest(session_id=opened.session_id))
    assert "failed to close: RuntimeError: the door is stuck." in caplog.text


def test_several_streams_of_a_session(address: str) -> None:
    rng = np.random.default_rng(0)
    placement = np.sort(rng.integers(2, size=(40, 6)).astype(np.int32), axis=1)
    ops = np.tile(np.arange(6, dtype=np.int32), (40, 1))
    want = LocalEnvironment().open(GRAPH, TARGET).evaluate(placement, ops, ops)
    is_kept = placement[:, 0] == 0  # chip 0 must not be skipped
    session = RemoteEnvironment(address, "analytical").open(GRAPH, TARGET)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: session.evaluate(placement, ops, ops), range(12)))
    session.close()
    for answer in answers:
        np.testing.assert_array_equal(answer.valid, want.valid & is_kept)
        np.testing.assert_array_equal(answer.objective_s[is_kept], want.objective_s[is_kept])
