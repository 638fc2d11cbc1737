"""Sessions of clients: limited in number, usable only by their client, closed when idle."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from go_opt.errors import ExhaustedError, InvalidInputError, NotFoundError, ServiceError

_ID_BYTES: Final = 16
_SWEEPS_PER_TIMEOUT: Final = 4
_RETRY_RANGE_S: Final = (1.0, 10.0)


class Closes(Protocol):
    """The resource of a session."""

    def close(self) -> None:
        """Free the resource."""


_S = TypeVar("_S", bound=Closes)


@dataclass(frozen=True)
class SessionLimits:
    """Limits on the number, size and idle time of sessions."""

    sessions: int = 256
    sessions_per_client: int = 128  # pretraining has one session per validation graph
    held_bytes: int = 2**30  # of the requests that opened them, and of the routes of their targets
    idle_timeout_s: float = 900.0  # a session without calls for this long is closed

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise InvalidInputError(f"{name} is {value}, must be above zero.", field=name)


@dataclass(eq=False)
class _Entry(Generic[_S]):
    client: str
    size_bytes: int
    used_s: float
    held: _S | None = None  # None while it is being opened
    users: int = 0
    is_gone: bool = False  # close once nobody uses it


class Sessions(Generic[_S]):
    """Open sessions by id; thread-safe.

    Args:
      clock: monotonic seconds, so that setting the wall clock expires no session.
    """

    def __init__(self, limits: SessionLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._entries: dict[str, _Entry[_S]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sweeper: threading.Thread | None = None

    @property
    def num_sessions(self) -> int:
        """The number of open sessions."""
        with self._lock:
            return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """The total bytes of the open sessions, as given to :meth:`open`."""
        with self._lock:
            return sum(entry.size_bytes for entry in self._entries.values())

    def open(self, client: str, size_bytes: int, make: Callable[[], _S]) -> tuple[str, _S]:
        """Opens a session for the result of ``make``; returns the session's id and that result.

        Raises:
          ExhaustedError: a limit on sessions or bytes is reached.
        """
        self.expire()
        session_id, entry = secrets.token_hex(_ID_BYTES), _Entry[_S](client, size_bytes, self._clock())
        with self._lock:
            self._check_room(client, size_bytes)
            self._entries[session_id] = entry
            if self._sweeper is None:
                self._sweeper = threading.Thread(target=self._sweep, name="go-opt-sessions", daemon=True)
                self._sweeper.start()
        try:
            held = make()
        except BaseException:
            with self._lock:
                self._entries.pop(session_id, None)
            raise
        with self._lock:
            entry.held, entry.used_s = held, self._clock()
            is_gone = entry.is_gone
        if is_gone:
            held.close()
            raise ServiceError("the service is draining.")
        return session_id, held

    @contextmanager
    def use(self, session_id: str, client: str) -> Iterator[_S]:
        """The resource of a session, which is not closed during the block.

        Raises:
          NotFoundError: the client has no such open session.
        """
        self.expire()
        with self._lock:
            entry, held = self._find(session_id, client)
            entry.users += 1
        try:
            yield held
        finally:
            with self._lock:
                entry.users -= 1
                entry.used_s = self._clock()
                is_last = entry.is_gone and not entry.users
            if is_last:
                held.close()

    def remove(self, session_id: str, client: str) -> _S:
        """Removes a session and returns its resource, which is closed once nobody uses it.

        Raises:
          NotFoundError: as for :meth:`use`.
        """
        self.expire()
        with self._lock:
            entry, held = self._find(session_id, client)
            del self._entries[session_id]
            entry.is_gone = True
            is_used = entry.users > 0
        if not is_used:
            held.close()
        return held

    def expire(self) -> None:
        """Close the sessions that have been idle for too long."""
        with self._lock:
            due_s = self._clock() - self.limits.idle_timeout_s
            due = {
                session_id: entry.held
                for session_id, entry in self._entries.items()
                if entry.held is not None and not entry.users and entry.used_s <= due_s
            }
            for session_id in due:
                self._entries.pop(session_id).is_gone = True
        for held in due.values():
            if held is not None:
                held.close()

    def close(self) -> None:
        """Close all sessions, and stop the sweeper."""
        self._closed.set()
        with self._lock:
            entries, self._entries = self._entries, {}
            for entry in entries.values():
                entry.is_gone = True
            unused = [entry.held for entry in entries.values() if not entry.users]
        for held in unused:
            if held is not None:
                held.close()

    def _sweep(self) -> None:
        while not self._closed.wait(self.limits.idle_timeout_s / _SWEEPS_PER_TIMEOUT):
            self.expire()

    def _find(self, session_id: str, client: str) -> tuple[_Entry[_S], _S]:
        entry = self._entries.get(session_id)
        # The message must not reveal that another client's session exists.
        if entry is None or entry.held is None or entry.client != client:
            raise NotFoundError(
                f"session {session_id[:40]!r} is not open: it was closed, had no call for "
                f"{self.limits.idle_timeout_s:g} s, or never was.",
                field="session_id",
            )
        return entry, entry.held

    def _check_room(self, client: str, size_bytes: int) -> None:
        limits, entries = self.limits, self._entries.values()
        held_bytes = sum(entry.size_bytes for entry in entries)
        if len(entries) >= limits.sessions:
            raise self._full(f"{len(entries)} sessions are open already, the limit is {limits.sessions}")
        if sum(entry.client == client for entry in entries) >= limits.sessions_per_client:
            raise self._full(
                f"{limits.sessions_per_client} sessions of this client are open already, which is the limit"
            )
        if held_bytes + size_bytes > limits.held_bytes:
            raise self._full(
                f"sessions hold {held_bytes} bytes already and this one asks for {size_bytes}, "
                f"the limit is {limits.held_bytes}"
            )

    def _full(self, reason: str) -> ExhaustedError:
        oldest_s = min((entry.used_s for entry in self._entries.values()), default=self._clock())
        least_s, most_s = _RETRY_RANGE_S
        left_s = oldest_s + self.limits.idle_timeout_s - self._clock()
        retry_s = min(max(left_s, least_s), most_s)
        return ExhaustedError(f"{reason}; close one, or try again in {retry_s:.0f} s.", retry_s=retry_s)
