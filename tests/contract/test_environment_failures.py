"""Every way an environment may fail a trainer: one sentence, which says which and at which batch."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from go_opt.agents.training.problems.environment import Evaluations, LocalEnvironment, Session, open_session
from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.env import Target
from go_opt.errors import EnvironmentFailedError, ServiceError
from go_opt.model.graph import Graph
from go_opt.proto import environment_pb2, environment_pb2_grpc, plan_pb2
from go_opt.service.environment.environment_service import EnvironmentService, SessionLimits
from go_opt.service.environment.remote_environment import RemoteEnvironment
from go_opt.service.transport.retry import Retry
from tests.serving import serve_in_thread
from tests.strategies import small_mcm, toy_graph

Answer = Callable[[FloatArray, BoolArray], Any]


class Bench:
    """Hardware on a bench: well until its batch ``fails_at``, which ``answer`` makes."""

    def __init__(self, answer: Answer, fails_at: int = 3) -> None:
        self._answer = answer
        self._left = fails_at

    def open(self, graph: Graph, target: Target) -> Session:
        self._session = LocalEnvironment().open(graph, target)
        return self

    def evaluate(self, *plans: IntArray) -> Any:
        answer = self._session.evaluate(*plans)
        self._left -= 1
        return answer if self._left else self._answer(answer.objective_s, answer.valid)

    def close(self) -> None:
        self._session.close()


def raising(error: BaseException) -> Answer:
    def answer(interval_s: FloatArray, valid: BoolArray) -> Any:
        raise error

    return answer


def with_first(value: float) -> Answer:
    return lambda interval_s, valid: Evaluations(np.r_[value, interval_s[1:]], valid)


NONSENSE: dict[str, tuple[Answer, str]] = {
    "nan": (with_first(np.nan), "objective_s of plan 0 is nan, must be positive and finite where valid"),
    "infinite": (with_first(np.inf), "objective_s of plan 0 is inf, must be positive and finite where valid"),
    "negative": (with_first(-1.0), "objective_s of plan 0 is -1.0, must be positive and finite where valid"),
    "zero": (with_first(0.0), "objective_s of plan 0 is 0.0, must be positive and finite where valid"),
    "too short": (lambda t, v: Evaluations(t[1:], v[1:]), "objective_s has shape (1,), must be (2,)"),
    "too long": (lambda t, v: Evaluations(t, np.r_[v, v]), "valid has shape (4,), must be (2,)"),
    "a column": (lambda t, v: Evaluations(t[:, None], v), "objective_s has shape (2, 1), must be (2,)"),
    "chips below zero": (
        lambda t, v: Evaluations(t, v, np.array([[1.0, -1.0]] * 2)),
        "chip_s must be seconds of every plan and chip",
    ),
    "chips of one plan": (
        lambda t, v: Evaluations(t, v, np.ones((1, 2))),
        "chip_s must be seconds of every plan and chip",
    ),
    "a number": (lambda t, v: Evaluations(t[0], v), "objective_s has shape (), must be (2,)"),
}
FAILURES: dict[str, tuple[Answer, str]] = {
    "error": (raising(RuntimeError("the bench lost power.")), "RuntimeError: the bench lost power"),
    "error without words": (raising(TimeoutError()), "TimeoutError"),
    "error of many lines": (raising(OSError("no\n  route\nto host")), "OSError: no route to host"),
    "one of ours": (raising(ServiceError("the service at x is gone.")), "the service at x is gone"),
    "end of an iterator": (raising(StopIteration()), "StopIteration"),
    "no answer": (lambda t, v: None, "AttributeError: 'NoneType' object has no attribute 'objective_s'"),
    "valid of numbers": (lambda t, v: Evaluations(t, v * 0.5), "TypeError: Cannot cast"),
    "complex interval": (lambda t, v: Evaluations(t * 1j, v), "TypeError: Cannot cast"),
    "words": (lambda t, v: Evaluations(np.array(["fast", "slow"]), v), "TypeError: Cannot cast"),
}


def two_plans() -> tuple[Graph, Target, list[IntArray]]:
    placement = np.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]], dtype=np.int32)
    ops = np.tile(np.arange(6, dtype=np.int32), (2, 1))
    return toy_graph(), small_mcm(), [placement, ops, ops]


@pytest.mark.parametrize("how", [*NONSENSE, *FAILURES])
def test_what_fails_is_one_sentence_that_names_the_batch(how: str) -> None:
    answer, reason = (NONSENSE | FAILURES)[how]
    graph, target, plans = two_plans()
    did = "answered nonsense" if how in NONSENSE else "failed"
    sentence = f"Bench for 'toy' on 'small-mcm' {did} at batch 3: {reason}"
    with open_session(Bench(answer), graph, target) as session:
        for _ in range(2):
            session.evaluate(*plans)
        with pytest.raises(EnvironmentFailedError, match=f"^{re.escape(sentence)}") as error:
            session.evaluate(*plans)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 4


@pytest.mark.parametrize("how", [*NONSENSE, *FAILURES])
def test_a_service_says_the_same_of_what_it_serves(how: str) -> None:
    answer, reason = (NONSENSE | FAILURES)[how]
    graph, target, plans = two_plans()
    did = "answered nonsense" if how in NONSENSE else "failed"
    # The service's own batch 1 is the greedy plan, so its third is our second.
    with serve_in_thread([EnvironmentService({("hardware", "throughput"): Bench(answer)})]) as address:
        sentence = (
            f"RemoteEnvironment for 'toy' on 'small-mcm' failed at batch 2: the environment at {address} "
            f"failed: Bench for 'toy' on 'small-mcm' {did} at batch 3: {reason}"
        )
        once = RemoteEnvironment(address, retry=Retry(tries=1))
        with open_session(once, graph, target) as session:
            session.evaluate(*plans)
            with pytest.raises(EnvironmentFailedError, match=f"^{re.escape(sentence[:300])}") as error:
                session.evaluate(*plans)
            assert "\n" not in str(error.value)
            assert session.evaluate(*plans).valid.all()  # the session stays open


def test_a_fault_that_passes_is_asked_again() -> None:
    graph, target, plans = two_plans()
    bench = Bench(raising(RuntimeError("a loose contact.")), fails_at=2)
    with serve_in_thread([EnvironmentService({("hardware", "throughput"): bench})]) as address:
        patient = RemoteEnvironment(address, retry=Retry(tries=2, first_s=0.01))
        with open_session(patient, graph, target) as session:
            got = session.evaluate(*plans)
    with open_session(LocalEnvironment(), graph, target) as session:
        np.testing.assert_array_equal(got.objective_s, session.evaluate(*plans).objective_s)


Change = Callable[[environment_pb2.EvaluateBatchResponse], object]


class Stranger(environment_pb2_grpc.EnvironmentServicer):  # type: ignore[misc]
    """Another's service: every answer is right, then changed."""

    def __init__(self, change: Change = lambda answer: None, op_names: tuple[str, ...] = ()) -> None:
        self._change = change
        self._op_names = op_names

    def CreateSession(self, request: Any, context: Any) -> Any:
        return environment_pb2.CreateSessionResponse(
            session_id="s",
            max_batch_plans=8,
            op_names=self._op_names or [op.name for op in request.graph.ops],
            reference_interval_s=1.0,
        )

    def Evaluate(self, requests: Any, context: Any) -> Iterator[Any]:
        for request in requests:
            answer = environment_pb2.EvaluateBatchResponse(batch_id=request.batch_id)
            for _ in request.plans:
                answer.metrics.add(interval_s=1.0, valid=True)
                answer.rewards.append(0.0)
            if self._change(answer) != "end":
                yield answer

    def CloseSession(self, request: Any, context: Any) -> Any:
        return environment_pb2.CloseSessionResponse()


@contextmanager
def stranger(servicer: Stranger) -> Iterator[str]:
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        environment_pb2_grpc.add_EnvironmentServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def with_reward(value: float) -> Change:
    return lambda answer: answer.rewards.__setitem__(1, value)


def with_metrics(**fields: Any) -> Change:
    return lambda answer: answer.metrics[1].CopyFrom(plan_pb2.Metrics(**fields))


STRANGE: dict[str, tuple[Change, str]] = {
    "nan reward": (with_reward(np.nan), "failed at batch 1: the environment at {0} failed: the reward of "
                   "plan 1 of batch 1 is nan."),
    "infinite reward": (with_reward(np.inf), "the reward of plan 1 of batch 1 is inf."),
    "nan interval": (with_metrics(interval_s=np.nan, valid=True), "answered nonsense at batch 1: objective_s "
                     "of plan 1 is nan, must be positive and finite where valid."),
    "zero interval": (with_metrics(valid=True), "answered nonsense at batch 1: objective_s of plan 1 is 0.0"),
    "too few": (lambda answer: answer.rewards.pop(), "it answered 2 metrics and 1 rewards to the 2 plans"),
    "another batch": (lambda answer: setattr(answer, "batch_id", 7), "it answered batch 7 in place of 1."),
    "nothing": (lambda answer: "end", "it ended the stream before batch 1."),
}  # fmt: skip


@pytest.mark.parametrize("how", STRANGE)
def test_nonsense_of_another_service(how: str) -> None:
    change, sentence = STRANGE[how]
    graph, target, plans = two_plans()
    with (
        stranger(Stranger(change)) as address,
        open_session(RemoteEnvironment(address), graph, target) as session,
        pytest.raises(EnvironmentFailedError, match=re.escape(sentence.format(address))) as error,
    ):
        session.evaluate(*plans)
    assert str(error.value).startswith("RemoteEnvironment for 'toy' on 'small-mcm' ")


def test_a_service_that_holds_another_graph() -> None:
    graph, target, _ = two_plans()
    with stranger(Stranger(op_names=("a", "b"))) as address:
        sentence = f"cannot be opened: the environment at {address} failed: it holds another graph"
        with pytest.raises(EnvironmentFailedError, match=re.escape(sentence)):
            open_session(RemoteEnvironment(address), graph, target)


def test_nobody_there() -> None:
    graph, target, _ = two_plans()
    with serve_in_thread([EnvironmentService()]) as address:
        pass
    gone = RemoteEnvironment(address, retry=Retry(tries=2, first_s=0.01))
    with pytest.raises(
        EnvironmentFailedError, match=f"cannot be opened: the environment at {address} failed"
    ):
        open_session(gone, graph, target)


def test_a_service_without_hardware_says_so() -> None:
    graph, target, _ = two_plans()
    with serve_in_thread([EnvironmentService()]) as address:
        sentence = "this environment does not serve hardware, but analytical and simulated"
        with pytest.raises(EnvironmentFailedError, match=sentence):
            open_session(RemoteEnvironment(address), graph, target)


def test_hardware_that_measures_intervals_alone_says_so() -> None:
    graph, target, _ = two_plans()
    bench = Bench(raising(OSError()))
    with (
        serve_in_thread([EnvironmentService({("hardware", "throughput"): bench})]) as address,
        pytest.raises(EnvironmentFailedError, match="does not serve latency, but throughput"),
    ):
        open_session(RemoteEnvironment(address, objective="latency"), graph, target)


def test_a_service_that_knows_no_makespans() -> None:
    graph, target, _ = two_plans()
    with (
        stranger(Stranger()) as address,
        pytest.raises(EnvironmentFailedError, match="of a version that serves no objective latency"),
    ):
        open_session(RemoteEnvironment(address, objective="latency"), graph, target)


def test_a_service_that_hangs_is_given_up() -> None:
    graph, target, plans = two_plans()
    hangs = Bench(lambda t, v: hang.wait(20), fails_at=2)
    hang = threading.Event()
    with serve_in_thread([EnvironmentService({("hardware", "throughput"): hangs})]) as address:
        hasty = RemoteEnvironment(address, timeout_s=0.5)
        try:
            with (
                open_session(hasty, graph, target) as session,
                pytest.raises(EnvironmentFailedError, match="did not answer within the time limit"),
            ):
                session.evaluate(*plans)
        finally:
            hang.set()


def test_a_session_that_expired_is_opened_again() -> None:
    graph, target, plans = two_plans()
    service = EnvironmentService(limits=SessionLimits(idle_timeout_s=0.5))
    with serve_in_thread([service]) as address:
        patient = RemoteEnvironment(address, "analytical", retry=Retry(tries=2, first_s=0.01))
        with open_session(patient, graph, target) as session:
            want = session.evaluate(*plans)
            give_up_s = time.monotonic() + 20
            while service.sessions.num_sessions and time.monotonic() < give_up_s:
                time.sleep(0.02)
            assert service.sessions.num_sessions == 0
            got = session.evaluate(*plans)
        np.testing.assert_array_equal(got.objective_s, want.objective_s)
        assert service.sessions.num_sessions == 0


def test_a_long_error_is_cut() -> None:
    graph, target, plans = two_plans()
    with (
        open_session(Bench(raising(RuntimeError("x" * 10_000)), fails_at=1), graph, target) as session,
        pytest.raises(EnvironmentFailedError, match=r"xxx….$") as error,
    ):
        session.evaluate(*plans)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("interval_s", [np.nan, 0.0, -1.0, 5.0])
def test_the_interval_of_an_invalid_plan_is_infinite(interval_s: float) -> None:
    graph, target, plans = two_plans()
    bench = Bench(lambda t, v: Evaluations(np.array([t[0], interval_s]), np.array([True, False])), fails_at=1)
    with open_session(bench, graph, target) as session:
        answer = session.evaluate(*plans)
    assert answer.objective_s[1] == np.inf
    assert answer.valid.tolist() == [True, False]


def test_numbers_of_other_types_are_as_good() -> None:
    graph, target, plans = two_plans()
    bench = Bench(lambda t, v: Evaluations([1, 2], [True, True]), fails_at=1)  # type: ignore[arg-type]
    with open_session(bench, graph, target) as session:
        answer = session.evaluate(*plans)
    np.testing.assert_array_equal(answer.objective_s, [1.0, 2.0], strict=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_no_failure_passes(error: BaseException) -> None:
    graph, target, plans = two_plans()
    with (
        open_session(Bench(raising(error), fails_at=1), graph, target) as session,
        pytest.raises(type(error)) as got,
    ):
        session.evaluate(*plans)
    assert got.value is error


class Unopened:
    def open(self, graph: Graph, target: Target) -> Session:
        raise ConnectionRefusedError(111, "Connection refused")


def test_what_cannot_be_opened_is_named() -> None:
    graph, target, _ = two_plans()
    sentence = (
        "Unopened for 'toy' on 'small-mcm' cannot be opened: "
        "ConnectionRefusedError: [Errno 111] Connection refused."
    )
    with pytest.raises(EnvironmentFailedError, match=f"^{re.escape(sentence)}$"):
        open_session(Unopened(), graph, target)


class Stuck(Bench):
    def close(self) -> None:
        raise RuntimeError("the door is stuck")


def test_a_failure_to_close_never_hides_what_failed_first() -> None:
    graph, target, plans = two_plans()
    sentence = "Stuck for 'toy' on 'small-mcm' failed to close: RuntimeError: the door is stuck."
    with (
        pytest.raises(EnvironmentFailedError, match=re.escape(sentence)),
        open_session(Stuck(with_first(0.0)), graph, target),
    ):
        pass
    with (
        pytest.raises(EnvironmentFailedError, match="nonsense at batch 1"),
        open_session(Stuck(with_first(0.0), fails_at=1), graph, target) as session,
    ):
        session.evaluate(*plans)
