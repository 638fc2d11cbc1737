"""One call of a service, and its outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import grpc


class Stop(threading.Event):
    """Signals that a call should end."""

    # After this time a search that does not stop is killed, because it blocks a slot although nobody
    # waits for it. With two polls, the slot is free 100 ms after the caller left.
    grace_s = 0.08

    def set_within(self, grace_s: float) -> None:
        """Stop, but allow this long to answer with the best plan: the caller still waits."""
        self.grace_s = grace_s
        self.set()


@dataclass(eq=False)
class Call:
    """One open call, shared by the event loop and the thread that works on it."""

    method: str  # "go_opt.v1.Optimizer/Optimize"
    client: str  # token's or certificate's name, else the peer's host; the unit of fairness
    request_id: str  # from the caller, or generated
    deadline_s: float | None  # on the monotonic clock
    owner: str = ""  # token's or certificate's name, which owns jobs; empty: unnamed
    # Set when nobody waits any longer, or the service stops.
    stop: Stop = field(default_factory=Stop)


@dataclass
class Outcome:
    """The outcome of a call, for observers."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    received_bytes: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0  # for a slot
    start_s: float = field(default_factory=time.monotonic)
    wall_s: float = 0.0


class Observer(Protocol):
    """Observes calls for metrics, the log and traces; called from the event loop."""

    def started(self, call: Call, metadata: Mapping[str, str | bytes]) -> None:
        """A call arrived; its request is not read yet."""

    def finished(self, call: Call, outcome: Outcome) -> None:
        """The call has its status."""


class ServiceMetric(NamedTuple):
    """A gauge or counter of a service, such as open sessions or running jobs."""

    name: str  # of the metric, without "go_opt_"
    help: str  # one sentence
    read: Callable[[], float]  # called from any thread; must not block
    is_total: bool = False  # only ever grows
