"""Retries with exponential backoff and jitter, for services that are unavailable or full.

gRPC's own ``retryPolicy`` stops after five tries, which do not outlast a restart that begins at once.
It does not retry a call that has received headers, such as one whose worker was killed, and cannot
open a lost session again.
"""

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
    """How often to try a call, and how long to wait between tries.

    The defaults wait 11 s in all, which outlasts the restart of a service. The wait before
    try n + 1 is drawn from the upper half of ``min(first_s * 2**(n - 1), longest_s)``. The delay
    that a full service requests is added.

    Args:
      tries: including the first; 1 never retries.
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
        """Seconds to wait after ``tried`` tries; ``draw`` is uniform in [0, 1)."""
        longest_s = min(self.first_s * 2.0 ** (tried - 1), self.longest_s)
        return longest_s * (1 + draw()) / 2


class Failure(Exception):
    """A failed try: its status, and the error to raise if there is no further try."""

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
    """Returns the result of ``attempt``, which takes the seconds left and may raise :class:`Failure`.

    Retries only if the service is unavailable (UNAVAILABLE) or says when it will have room
    (RESOURCE_EXHAUSTED with a RetryInfo), and only within ``timeout_s``.

    Raises:
      GoOptError: the error of the last try.
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
    """The delay that the service requests; None if a retry is useless."""
    if failure.code is grpc.StatusCode.UNAVAILABLE:
        return 0.0
    # Without a RetryInfo the message is too large, so a retry cannot succeed.
    return failure.error.retry_s if isinstance(failure.error, ExhaustedError) else None
