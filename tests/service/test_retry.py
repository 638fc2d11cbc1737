"""Retries on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import pytest

from go_opt.errors import ExhaustedError, GoOptError, InvalidInputError, ServiceError
from go_opt.service.transport.retry import Failure, Retry, with_retries

RETRY = Retry(tries=4, first_s=0.1, longest_s=0.3)
GONE = (grpc.StatusCode.UNAVAILABLE, ServiceError("it is gone."))
FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, ExhaustedError("it is full.", retry_s=2.0))
TOO_LARGE = (grpc.StatusCode.RESOURCE_EXHAUSTED, ServiceError("the message is too large."))


@dataclass
class Service:
    """Fails as told, then answers; each try takes a second of a clock that only it moves."""

    failures: list[tuple[grpc.StatusCode, GoOptError]]
    now_s: float = 100.0
    left_s: list[float | None] = field(default_factory=list)  # of each try
    slept_s: list[float] = field(default_factory=list)

    def attempt(self, left_s: float | None) -> str:
        self.left_s.append(left_s)
        self.now_s += 1.0
        if self.failures:
            raise Failure(*self.failures.pop(0))
        return "an answer"

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def ask(self, timeout_s: float | None = None, *, drawn: float = 1.0) -> str:
        return with_retries(
            self.attempt,
            RETRY,
            timeout_s,
            clock=lambda: self.now_s,
            sleep=self.sleep,
            draw=lambda: drawn,
        )


def test_an_answer_at_once() -> None:
    service = Service([])
    assert service.ask() == "an answer"
    assert (service.left_s, service.slept_s) == ([None], [])


def test_waits_double_up_to_the_longest() -> None:
    service = Service([GONE] * 3)
    assert service.ask() == "an answer"
    assert service.slept_s == pytest.approx([0.1, 0.2, 0.3])


def test_waits_are_drawn_from_the_upper_half() -> None:
    service = Service([GONE] * 3)
    service.ask(drawn=0.0)
    assert service.slept_s == pytest.approx([0.05, 0.1, 0.15])


def test_the_last_try_says_why() -> None:
    service = Service([GONE] * 9)
    with pytest.raises(ServiceError, match="it is gone"):
        service.ask()
    assert len(service.left_s) == 4


def test_a_service_without_room_says_how_long_to_wait() -> None:
    service = Service([FULL, GONE])
    assert service.ask() == "an answer"
    assert service.slept_s == pytest.approx([2.1, 0.2])


def test_the_deadline_holds_for_all_tries() -> None:
    service = Service([GONE] * 3)
    with pytest.raises(ServiceError, match="it is gone"):
        service.ask(3.25)
    # The third wait would end after the deadline, so it is not begun.
    assert service.slept_s == pytest.approx([0.1, 0.2])
    assert service.left_s == pytest.approx([3.25, 2.15, 0.95])


def test_who_is_told_to_come_too_late_gives_up_at_once() -> None:
    service = Service([FULL])
    with pytest.raises(ExhaustedError):
        service.ask(3.0)
    assert service.slept_s == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        TOO_LARGE,
        (grpc.StatusCode.CANCELLED, ServiceError("it was cancelled.")),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidInputError("it is wrong.", field="seed")),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ServiceError("it is late.")),
        (grpc.StatusCode.INTERNAL, ServiceError("it is broken.")),
        (grpc.StatusCode.UNAUTHENTICATED, ServiceError("it knows nobody.")),
    ],
)
def test_what_would_fail_again_is_not_asked_again(code: grpc.StatusCode, error: GoOptError) -> None:
    service = Service([(code, error)])
    with pytest.raises(type(error)) as raised:
        service.ask()
    assert raised.value is error
    assert service.slept_s == []


def test_the_defaults_outlast_a_restart() -> None:
    retry = Retry()
    longest_s = sum(retry.wait_s(tried, lambda: 1.0) for tried in range(1, retry.tries))
    assert 10 < longest_s < 13


@pytest.mark.parametrize(
    ("options", "field"),
    [({"tries": 0}, "tries"), ({"first_s": 0.0}, "first_s"), ({"first_s": 9.0}, "first_s")],
)
def test_a_retry_out_of_range(options: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        Retry(**options)  # type: ignore[arg-type]
    assert error.value.field == field
