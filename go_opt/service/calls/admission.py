"""Decides which calls run, wait or are refused; bounded, and fair between clients."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from go_opt.errors import ExhaustedError, InvalidInputError, ServiceError

_FIRST_SERVICE_S: Final = 1.0  # assumed before any call has run
_NEWEST_SHARE: Final = 0.1  # weight of the last call in the running mean
_TURN: Final = 2
_RETRY_RANGE_S: Final = (0.1, 60.0)


@dataclass(frozen=True)
class AdmissionLimits:
    """Limits on waiting calls; a call beyond them is refused at once."""

    waiting: int = 256
    waiting_per_client: int = 64
    waiting_bytes: int = 2**30  # of requests that are read but not started

    @classmethod
    def of(cls, waiting: int) -> AdmissionLimits:
        """Limits for ``waiting`` calls in total, and a quarter of that for one client."""
        if waiting < 0:
            raise InvalidInputError(f"--max-waiting is {waiting}, must be 0 or more.", field="max_waiting")
        return cls(waiting, -(-waiting // 4))


class _State(Enum):
    READING = auto()  # its message is being read; counted as waiting
    WAITING = auto()
    RUNNING = auto()
    GONE = auto()


class Admission:
    """Assigns slots to waiting calls, fairly between clients.

    A free slot goes to the client with the fewest running calls; among equals, to the client
    that was served longest ago. Call all methods from the thread of one event loop.

    Args:
      slots: calls that run at once.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        slots: int,
        limits: AdmissionLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = slots
        self.limits = limits or AdmissionLimits()
        self.clock = clock
        self.refused = 0
        self.waiting = 0  # includes calls whose request is still being read
        self.waiting_bytes = 0
        self.running = 0
        self._queues: dict[str, deque[Ticket]] = {}
        self._waiting_of: Counter[str] = Counter()
        self._running_of: Counter[str] = Counter()
        self._turns = 0
        self._last_turn: dict[str, int] = {}  # of clients that wait or run
        self._service_s = _FIRST_SERVICE_S
        self._is_closed = False

    def ticket(self, client: str) -> Ticket:
        """Takes a place in the queue.

        Raises:
          ExhaustedError: the limit of waiting calls is reached, for this client or in total.
          ServiceError: the service is draining.
        """
        if self._is_closed:
            raise _draining()
        limits = self.limits
        # Idle slots count as places in the queue.
        if self._waiting_of[client] >= limits.waiting_per_client + self.slots - self.running:
            raise self._refusal(
                f"{self._waiting_of[client]} calls of this client wait already, "
                f"the limit is {limits.waiting_per_client}"
            )
        if self.waiting >= limits.waiting + self.slots - self.running and not self._make_room(client):
            raise self._full()
        self.waiting += 1
        self._waiting_of[client] += 1
        # A new client comes after all clients but the one served last, so reconnecting gains nothing.
        self._last_turn.setdefault(client, self._turns - _TURN // 2)
        return Ticket(self, client)

    def close(self) -> None:
        """Refuse waiting and new calls; running calls continue."""
        self._is_closed = True
        for queue in list(self._queues.values()):
            for ticket in list(queue):
                ticket.refuse(_draining())

    def _make_room(self, client: str) -> bool:
        """Refuse the last call of the client with the most waiting calls, if ``client`` still has fewer."""
        greediest = max(self._queues, key=self._waiting_of.__getitem__, default=client)
        if self._waiting_of[greediest] <= self._waiting_of[client] + 1:
            return False
        self._queues[greediest][-1].refuse(self._full())
        return True

    def _enqueue(self, ticket: Ticket) -> None:
        if self._is_closed:
            raise _draining()
        # A single message may have any size that the transport allows, whatever the limit.
        if self.waiting_bytes and self.waiting_bytes + ticket.size_bytes > self.limits.waiting_bytes:
            raise self._refusal(
                f"requests of {self.waiting_bytes} bytes wait already, "
                f"the limit is {self.limits.waiting_bytes}"
            )
        self.waiting_bytes += ticket.size_bytes
        self._queues.setdefault(ticket.client, deque()).append(ticket)
        ticket.state = _State.WAITING
        self._grant()

    def _dequeue(self, ticket: Ticket) -> None:
        queue = self._queues[ticket.client]
        queue.remove(ticket)
        if not queue:
            del self._queues[ticket.client]
        self.waiting_bytes -= ticket.size_bytes

    def _grant(self) -> None:
        while self._queues and self.running < self.slots and not self._is_closed:
            client = min(self._queues, key=self._precedence)
            ticket = self._queues[client][0]
            self._dequeue(ticket)
            self.running += 1
            self._running_of[client] += 1
            self._turns += _TURN
            self._last_turn[client] = self._turns
            self._leave_waiting(client)
            ticket.start(self.clock())

    def _precedence(self, client: str) -> tuple[int, int]:
        return self._running_of[client], self._last_turn[client]

    def _leave_waiting(self, client: str) -> None:
        self.waiting -= 1
        self._decrement(self._waiting_of, client)

    def _finish(self, client: str, service_s: float) -> None:
        self._service_s += _NEWEST_SHARE * (service_s - self._service_s)
        self.running -= 1
        self._decrement(self._running_of, client)
        self._grant()

    def _decrement(self, counts: Counter[str], client: str) -> None:
        """Decrement a client's count; forget clients without calls."""
        counts[client] -= 1
        if not counts[client]:
            del counts[client]
        if not (self._waiting_of[client] or self._running_of[client]):
            self._last_turn.pop(client, None)

    def _full(self) -> ExhaustedError:
        return self._refusal(f"{self.waiting} calls wait already, the limit is {self.limits.waiting}")

    def _refusal(self, reason: str) -> ExhaustedError:
        self.refused += 1
        least_s, most_s = _RETRY_RANGE_S
        retry_s = min(max(self._service_s * (self.waiting + 1) / self.slots, least_s), most_s)
        return ExhaustedError(f"{reason}; try again in {retry_s:.1f} s.", retry_s=retry_s)


class Ticket:
    """One call in an :class:`Admission`; the holder must always release it."""

    def __init__(self, admission: Admission, client: str) -> None:
        self.client = client
        self.size_bytes = 0
        self.state = _State.READING
        self._admission = admission
        self._turn: asyncio.Future[None] | None = None
        self._start_s = 0.0

    async def granted(self, size_bytes: int) -> None:
        """Wait for a slot with a request of this size.

        Raises:
          ExhaustedError: the waiting requests have too many bytes.
          ServiceError: the service is draining.
        """
        self.size_bytes = size_bytes
        self._turn = asyncio.get_running_loop().create_future()
        self._admission._enqueue(self)
        await self._turn

    def start(self, now_s: float) -> None:
        """Give this ticket a slot."""
        self.state, self._start_s = _State.RUNNING, now_s
        self._settle(None)

    def refuse(self, error: ServiceError) -> None:
        """End the wait with an error."""
        self.release()
        self._settle(error)

    def release(self) -> None:
        """Give back the ticket's place or slot; repeated calls do nothing."""
        state, self.state = self.state, _State.GONE
        if state is _State.RUNNING:
            self._admission._finish(self.client, self._admission.clock() - self._start_s)
        elif state is not _State.GONE:
            if state is _State.WAITING:
                self._admission._dequeue(self)
            self._admission._leave_waiting(self.client)

    def _settle(self, error: ServiceError | None) -> None:
        if self._turn is None or self._turn.done():  # its caller has just left
            return
        if error is None:
            self._turn.set_result(None)
        else:
            self._turn.set_exception(error)


def _draining() -> ServiceError:
    return ServiceError("the service is draining.")
