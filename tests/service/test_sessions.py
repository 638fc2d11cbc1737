"""Sessions: who may hold how many, how long, and that nothing is closed under who uses it."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from go_opt.errors import ExhaustedError, InvalidInputError, NotFoundError
from go_opt.service.environment.environment_service import SessionLimits, Sessions


class Held:
    def __init__(self) -> None:
        self.times_closed = 0

    def close(self) -> None:
        self.times_closed += 1


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


LIMITS = SessionLimits(sessions=4, sessions_per_client=2, held_bytes=100, idle_timeout_s=60)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions[Held]:
    return Sessions(LIMITS, clock=clock)


def test_a_session_is_used_and_closed(sessions: Sessions[Held]) -> None:
    session_id, held = sessions.open("ann", 10, Held)
    assert re.fullmatch("[0-9a-f]{32}", session_id)
    assert (sessions.num_sessions, sessions.held_bytes) == (1, 10)
    with sessions.use(session_id, "ann") as used:
        assert used is held
    assert sessions.remove(session_id, "ann") is held
    assert (sessions.num_sessions, sessions.held_bytes, held.times_closed) == (0, 0, 1)


def test_ids_differ(sessions: Sessions[Held]) -> None:
    ids = set()
    for _ in range(50):
        session_id, _ = sessions.open("ann", 1, Held)
        ids.add(session_id)
        sessions.remove(session_id, "ann")
    assert len(ids) == 50


@pytest.mark.parametrize("who", ["bob", ""])
def test_the_session_of_another_is_as_none(sessions: Sessions[Held], who: str) -> None:
    session_id, held = sessions.open("ann", 10, Held)
    with pytest.raises(NotFoundError) as other, sessions.use(session_id, who):
        pass
    with pytest.raises(NotFoundError):
        sessions.remove(session_id, who)
    sessions.remove(session_id, "ann")
    with pytest.raises(NotFoundError) as closed, sessions.use(session_id, "ann"):
        pass
    assert str(other.value) == str(closed.value)
    assert other.value.field == "session_id"
    assert held.times_closed == 1


def test_a_long_id_is_cut(sessions: Sessions[Held]) -> None:
    with pytest.raises(NotFoundError) as error, sessions.use("x" * 10_000, "ann"):
        pass
    assert len(str(error.value)) < 200


def test_limits(sessions: Sessions[Held]) -> None:
    for client in ("ann", "ann", "bob", "cid"):
        sessions.open(client, 20, Held)
    with pytest.raises(ExhaustedError, match=r"^4 sessions are open already, the limit is 4; close one"):
        sessions.open("dan", 1, Held)


def test_limits_of_a_client(sessions: Sessions[Held], clock: Clock) -> None:
    session_id, _ = sessions.open("ann", 20, Held)
    sessions.open("ann", 20, Held)
    with pytest.raises(ExhaustedError, match="2 sessions of this client are open already") as error:
        sessions.open("ann", 1, Held)
    assert error.value.retry_s == 10
    clock.now_s = 57
    with pytest.raises(ExhaustedError) as error:
        sessions.open("ann", 1, Held)
    assert error.value.retry_s == 3  # until the first expires
    sessions.remove(session_id, "ann")
    sessions.open("ann", 1, Held)


def test_limits_of_bytes(sessions: Sessions[Held]) -> None:
    sessions.open("ann", 60, Held)
    sentence = "sessions hold 60 bytes already and this one asks for 41, the limit is 100"
    with pytest.raises(ExhaustedError, match=sentence):
        sessions.open("bob", 41, Held)
    sessions.open("bob", 40, Held)


def test_what_cannot_be_made_takes_no_room(sessions: Sessions[Held]) -> None:
    def fail() -> Held:
        assert sessions.num_sessions == 1  # its place is taken while it is made
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        sessions.open("ann", 10, fail)
    assert (sessions.num_sessions, sessions.held_bytes) == (0, 0)


def test_idle_sessions_expire(sessions: Sessions[Held], clock: Clock) -> None:
    idle_id, idle = sessions.open("ann", 10, Held)
    used_id, used = sessions.open("ann", 10, Held)
    clock.now_s = 59
    with sessions.use(used_id, "ann"):
        clock.now_s = 118.9
    clock.now_s = 119
    sessions.expire()
    with pytest.raises(NotFoundError), sessions.use(idle_id, "ann"):
        pass
    clock.now_s = 178.8  # 59.9 s after its last use ended
    with sessions.use(used_id, "ann"):
        pass
    assert (idle.times_closed, used.times_closed) == (1, 0)


def test_a_session_in_use_does_not_expire_and_closes_last(sessions: Sessions[Held], clock: Clock) -> None:
    session_id, held = sessions.open("ann", 10, Held)
    with sessions.use(session_id, "ann"), sessions.use(session_id, "ann"):
        clock.now_s = 1000
        sessions.expire()
        assert sessions.num_sessions == 1
        sessions.remove(session_id, "ann")
        assert held.times_closed == 0
    assert held.times_closed == 1


def test_idle_sessions_expire_though_nobody_calls() -> None:
    closed = threading.Event()

    class Signals:
        def close(self) -> None:
            closed.set()

    sessions: Sessions[Signals] = Sessions(SessionLimits(idle_timeout_s=0.1))
    sessions.open("ann", 1, Signals)
    assert closed.wait(20)
    sessions.close()


def test_close(sessions: Sessions[Held]) -> None:
    session_id, idle = sessions.open("ann", 1, Held)
    used_id, used = sessions.open("ann", 1, Held)
    with sessions.use(used_id, "ann"):
        sessions.close()
        assert (idle.times_closed, used.times_closed) == (1, 0)
    assert used.times_closed == 1
    with pytest.raises(NotFoundError):
        sessions.remove(session_id, "ann")


def test_many_threads() -> None:
    sessions: Sessions[Held] = Sessions(SessionLimits())
    made: list[Held] = []

    def live(number: int) -> None:
        session_id, held = sessions.open(f"client {number % 3}", number, Held)
        made.append(held)
        for _ in range(20):
            with sessions.use(session_id, f"client {number % 3}") as used:
                assert used is held
        sessions.remove(session_id, f"client {number % 3}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, range(100)))
    assert sessions.num_sessions == 0
    assert [held.times_closed for held in made] == [1] * 100
    sessions.close()


@pytest.mark.parametrize("field", ["sessions", "sessions_per_client", "held_bytes", "idle_timeout_s"])
def test_limits_are_checked(field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{field} is 0, must be above zero"):
        SessionLimits(**{field: 0})
