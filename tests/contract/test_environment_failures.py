"""Every way an environment may fail a trainer: one sentence, which says which and at which batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from go_opt.agents.training.environment import Evaluations, LocalEnvironment, Session, open_session
from go_opt.env import Target
from go_opt.errors import EnvironmentFailedError, ServiceError
from go_opt.graph import Graph
from tests.strategies import small_mcm, toy_graph

Answer = Callable[[NDArray[np.float64], NDArray[np.bool_]], Any]


class Bench:
    """Hardware on a bench: well until its batch ``fails_at``, which ``answer`` makes."""

    def __init__(self, answer: Answer, fails_at: int = 3) -> None:
        self._answer = answer
        self._left = fails_at

    def open(self, graph: Graph, target: Target) -> Session:
        self._session = LocalEnvironment().open(graph, target)
        return self

    def evaluate(self, *plans: NDArray[np.int32]) -> Any:
        answer = self._session.evaluate(*plans)
        self._left -= 1
        return answer if self._left else self._answer(answer.interval_s, answer.valid)

    def close(self) -> None:
        self._session.close()


def raising(error: BaseException) -> Answer:
    def answer(interval_s: NDArray[np.float64], valid: NDArray[np.bool_]) -> Any:
        raise error

    return answer


def with_first(value: float) -> Answer:
    return lambda interval_s, valid: Evaluations(np.r_[value, interval_s[1:]], valid)


NONSENSE: dict[str, tuple[Answer, str]] = {
    "nan": (with_first(np.nan), "interval_s of plan 0 is nan, must be positive and finite where valid"),
    "infinite": (with_first(np.inf), "interval_s of plan 0 is inf, must be positive and finite where valid"),
    "negative": (with_first(-1.0), "interval_s of plan 0 is -1.0, must be positive and finite where valid"),
    "zero": (with_first(0.0), "interval_s of plan 0 is 0.0, must be positive and finite where valid"),
    "too short": (lambda t, v: Evaluations(t[1:], v[1:]), "interval_s has shape (1,), must be (2,)"),
    "too long": (lambda t, v: Evaluations(t, np.r_[v, v]), "valid has shape (4,), must be (2,)"),
    "a column": (lambda t, v: Evaluations(t[:, None], v), "interval_s has shape (2, 1), must be (2,)"),
    "a number": (lambda t, v: Evaluations(t[0], v), "interval_s has shape (), must be (2,)"),
}
FAILURES: dict[str, tuple[Answer, str]] = {
    "error": (raising(RuntimeError("the bench lost power.")), "RuntimeError: the bench lost power"),
    "error without words": (raising(TimeoutError()), "TimeoutError"),
    "error of many lines": (raising(OSError("no\n  route\nto host")), "OSError: no route to host"),
    "one of ours": (raising(ServiceError("the service at x is gone.")), "the service at x is gone"),
    "end of an iterator": (raising(StopIteration()), "StopIteration"),
    "no answer": (lambda t, v: None, "AttributeError: 'NoneType' object has no attribute 'interval_s'"),
    "valid of numbers": (lambda t, v: Evaluations(t, v * 0.5), "TypeError: Cannot cast"),
    "complex interval": (lambda t, v: Evaluations(t * 1j, v), "TypeError: Cannot cast"),
    "words": (lambda t, v: Evaluations(np.array(["fast", "slow"]), v), "TypeError: Cannot cast"),
}


def two_plans() -> tuple[Graph, Target, list[NDArray[np.int32]]]:
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
    assert answer.interval_s[1] == np.inf
    assert answer.valid.tolist() == [True, False]


def test_numbers_of_other_types_are_as_good() -> None:
    graph, target, plans = two_plans()
    bench = Bench(lambda t, v: Evaluations([1, 2], [True, True]), fails_at=1)  # type: ignore[arg-type]
    with open_session(bench, graph, target) as session:
        answer = session.evaluate(*plans)
    np.testing.assert_array_equal(answer.interval_s, [1.0, 2.0], strict=True)


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
