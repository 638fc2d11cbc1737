"""One call of a service, and how it went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import grpc


class Stop(threading.Event):
    """Tells work to end."""

    # Until the process of a search that does not end is ended: one that nobody waits for takes the
    # place of others, and with two polls its place is free 100 ms after its caller left.
    grace_s = 0.08

    def set_within(self, grace_s: float) -> None:
        """End, with this long to answer what there is: the caller still waits."""
        self.grace_s = grace_s
        self.set()


@dataclass(eq=False)
class Call:
    """One open call, shared by the event loop and the thread that works on it."""

    method: str  # "go_opt.v1.Optimizer/Optimize"
    client: str  # token's or certificate's name, else the peer's host: what fairness counts
    request_id: str  # of the caller, or made
    deadline_s: float | None  # on the monotonic clock
    owner: str = ""  # token's or certificate's name: whose jobs these are; empty: of nobody named
    # Set where nobody waits any longer, or the service stops.
    stop: Stop = field(default_factory=Stop)


@dataclass
class Outcome:
    """How a call went, for those who watch."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    received_bytes: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0  # for a slot
    start_s: float = field(default_factory=time.monotonic)
    wall_s: float = 0.0


class Observer(Protocol):
    """Watches calls, from the event loop: metrics, the log, traces."""

    def started(self, call: Call, metadata: Mapping[str, str | bytes]) -> None:
        """A call came in; nothing of it is read yet."""

    def finished(self, call: Call, outcome: Outcome) -> None:
        """Its status is known."""


class ServiceMetric(NamedTuple):
    """A gauge or counter of a service: sessions open, jobs running."""

    name: str  # of the metric, without "go_opt_"
    help: str  # one sentence
    read: Callable[[], float]  # called from any thread, at once
    is_total: bool = False  # only ever grows
