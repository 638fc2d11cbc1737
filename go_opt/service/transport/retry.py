"""Asking again where a service was not there or had no room: later each time, never all at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc

from go_opt.errors import ExhaustedError, GoOptError, InvalidInputError

_T = TypeVar("_T")


@dataclass(frozen=True)
class Retry:
    """How often a call is tried, and how long it waits in between.

    The defaults wait 11 s in all, which outlasts the restart of a service. The wait before
    try n + 1 is drawn from the upper half of ``first_s * 2**(n - 1)``, at most ``longest_s``;
    what a service that has no room asks for comes on top.

    Args:
      tries: the first one included; 1 never asks again.
      first_s, longest_s: seconds.
    """

    tries: int = 8
    first_s: float = 0.1
    longest_s: float = 5.0

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise InvalidInputError(f"tries must be 1 or more, not {self.tries}.", field="tries")
        if not 0 < self.first_s <= self.longest_s:
            raise InvalidInputError(
                f"first_s must be above zero and at most longest_s, not {self.first_s}.", field="first_s"
            )

    def wait_s(self, tried: int, draw: Callable[[], float]) -> float:
        """How long to wait after this many tries; ``draw`` is uniform in [0, 1)."""
        longest_s = min(self.first_s * 2.0 ** (tried - 1), self.longest_s)
        return longest_s * (1 + draw()) / 2


class Failure(Exception):
    """A try that failed: the status of the call, and what a caller must see in the end."""

    def __init__(self, code: grpc.StatusCode, error: GoOptError) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error


def with_retries(
    attempt: Callable[[float | None], _T],
    retry: Retry,
    timeout_s: float | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    draw: Callable[[], float] = random.random,
) -> _T:
    """What ``attempt`` answers, which gets the seconds left and raises :class:`Failure`.

    Only a service that is not there (UNAVAILABLE), or says when it will have room
    (RESOURCE_EXHAUSTED with a RetryInfo), is asked again, and only within ``timeout_s``.

    Raises:
      GoOptError: what the last try failed with.
    """
    deadline_s = None if timeout_s is None else clock() + timeout_s
    for tried in range(1, retry.tries + 1):
        left_s = None if deadline_s is None else max(deadline_s - clock(), 0.0)
        try:
            return attempt(left_s)
        except Failure as failure:
            asked_s = _asked_s(failure)
            if asked_s is None or tried == retry.tries:
                raise failure.error from None
            wait_s = asked_s + retry.wait_s(tried, draw)
            if deadline_s is not None and clock() + wait_s >= deadline_s:
                raise failure.error from None
            sleep(wait_s)
    raise AssertionError("the last try returns or raises.")


def _asked_s(failure: Failure) -> float | None:
    """How long the service asks to wait; None where asking again is of no use."""
    if failure.code is grpc.StatusCode.UNAVAILABLE:
        return 0.0
    # Without a RetryInfo it is a message too large, which no room will be made for.
    return failure.error.retry_s if isinstance(failure.error, ExhaustedError) else None
