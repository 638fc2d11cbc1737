"""Admission without threads and clocks: who runs, who waits, who is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.errors import ExhaustedError, InvalidInputError, ServiceError
from go_opt.service.calls.admission import Admission, AdmissionLimits, Ticket


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Crowd:
    """Callers of one admission, and the order in which they were let in."""

    def __init__(self, slots: int, limits: AdmissionLimits | None = None) -> None:
        self.clock = Clock()
        self.admission = Admission(slots, limits, clock=self.clock)
        self.running: list[Ticket] = []  # in the order they were let in
        self.refused: list[ServiceError] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def arrive(self, client: str, size_bytes: int = 1) -> asyncio.Task[None]:
        async def wait() -> None:
            try:
                ticket = self.admission.ticket(client)
                try:
                    await ticket.granted(size_bytes)
                except BaseException:
                    ticket.release()
                    raise
            except ServiceError as error:
                self.refused.append(error)
            else:
                self.running.append(ticket)

        task = asyncio.create_task(wait())
        self.tasks.append(task)
        await settle()
        return task

    async def end_first(self, after_s: float = 1.0) -> str:
        """The oldest running call ends; its client."""
        self.clock.now_s += after_s
        ticket = self.running.pop(0)
        ticket.release()
        await settle()
        return ticket.client

    async def end_all(self) -> list[str]:
        return [await self.end_first() for _ in iter(lambda: bool(self.running), False)]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_clients_take_turns() -> None:
    async def scenario() -> None:
        crowd = Crowd(1)
        for client in "aaaabbc":
            await crowd.arrive(client)
        assert await crowd.end_all() == list("abcabaa")

    run(scenario())


def test_a_slot_goes_to_who_has_fewest() -> None:
    async def scenario() -> None:
        crowd = Crowd(2)
        for client in "aaaab":
            await crowd.arrive(client)
        assert [ticket.client for ticket in crowd.running] == ["a", "a"]
        await crowd.end_first()
        assert [ticket.client for ticket in crowd.running] == ["a", "b"]
        crowd.running.reverse()
        await crowd.end_first()  # b's, so both slots are a's again
        assert [ticket.client for ticket in crowd.running] == ["a", "a"]
        await crowd.end_all()

    run(scenario())


def test_coming_back_one_call_at_a_time_gains_no_turns() -> None:
    async def scenario() -> None:
        crowd = Crowd(1)
        for client in "abbbcccd":
            await crowd.arrive(client)
        order = []
        for _ in range(9):
            order.append(await crowd.end_first())
            if order[-1] == "a":
                await crowd.arrive("a")
        assert order == list("abcdabcab")

    run(scenario())


def test_what_waits_is_bounded_by_client_and_in_all() -> None:
    async def scenario() -> None:
        crowd = Crowd(1, AdmissionLimits(waiting=3, waiting_per_client=2))
        for client in "aaaabcc":
            await crowd.arrive(client)
        first, second, third = map(str, crowd.refused)
        assert first == "2 calls of this client wait already, the limit is 2; try again in 3.0 s."
        assert second == "3 calls wait already, the limit is 3; try again in 4.0 s."
        assert third == second
        assert (crowd.admission.waiting, crowd.admission.running, crowd.admission.refused) == (3, 1, 3)
        assert len(await crowd.end_all()) == 4

    run(scenario())


def test_where_all_is_full_the_client_with_most_makes_room() -> None:
    async def scenario() -> None:
        crowd = Crowd(1, AdmissionLimits(waiting=4, waiting_per_client=3))
        for client in "aaaabbcde":
            await crowd.arrive(client)
        # Two of a's made room for b and c, one of b's for d; each has one now, so e finds no room.
        assert len(crowd.refused) == 4
        assert str(crowd.refused[0]).startswith("4 calls wait already, the limit is 4")
        assert crowd.admission.waiting == 4
        assert await crowd.end_all() == list("abcda")

    run(scenario())


def test_nothing_may_wait_with_a_limit_of_zero_but_free_slots_are_used() -> None:
    async def scenario() -> None:
        crowd = Crowd(2, AdmissionLimits.of(0))
        for client in "aab":
            await crowd.arrive(client)
        assert len(crowd.running) == 2
        assert len(crowd.refused) == 1
        await crowd.end_all()

    run(scenario())


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="--max-waiting is -1"):
        AdmissionLimits.of(-1)


def test_bytes_that_wait_are_bounded_yet_one_message_always_may() -> None:
    async def scenario() -> None:
        crowd = Crowd(1, AdmissionLimits(waiting_bytes=10))
        await crowd.arrive("a", 100)
        assert crowd.admission.waiting_bytes == 0  # what runs is no longer waiting
        await crowd.arrive("a", 100)
        await crowd.arrive("b", 1)
        assert "requests of 100 bytes wait already, the limit is 10" in str(crowd.refused[0])
        await crowd.end_first()
        await crowd.arrive("b", 10)
        assert crowd.admission.waiting_bytes == 10
        await crowd.end_all()
        assert crowd.admission.waiting_bytes == 0

    run(scenario())


def test_the_time_to_try_again_follows_the_mean_and_the_queue() -> None:
    async def scenario() -> None:
        crowd = Crowd(2, AdmissionLimits(waiting=2))
        for _ in range(60):  # the mean forgets what it was assumed to be
            await crowd.arrive("a")
            await crowd.end_first(4.0)
        for _ in range(5):
            await crowd.arrive("a")
        (error,) = crowd.refused
        assert isinstance(error, ExhaustedError)
        assert error.retry_s == pytest.approx(4.0 * 3 / 2, rel=0.01)

    run(scenario())


def test_the_time_to_try_again_has_bounds() -> None:
    async def scenario() -> None:
        for service_s, retry_s in ((0.0, 0.1), (1e6, 60.0)):
            crowd = Crowd(1, AdmissionLimits(waiting=0))
            for _ in range(100):
                await crowd.arrive("a")
                await crowd.end_first(service_s)
            await crowd.arrive("a")
            await crowd.arrive("a")
            assert crowd.refused[0].retry_s == retry_s  # type: ignore[attr-defined]

    run(scenario())


def test_who_leaves_while_waiting_holds_up_nobody() -> None:
    async def scenario() -> None:
        crowd = Crowd(1)
        await crowd.arrive("a")
        leaving = await crowd.arrive("b")
        await crowd.arrive("c")
        leaving.cancel()
        await settle()
        assert crowd.admission.waiting == 1
        assert await crowd.end_all() == ["a", "c"]

    run(scenario())


def test_who_leaves_in_the_moment_of_the_grant_gives_the_slot_on() -> None:
    async def scenario() -> None:
        crowd = Crowd(1)
        await crowd.arrive("a")
        leaving = await crowd.arrive("b")
        await crowd.arrive("c")
        crowd.running.pop(0).release()  # b's slot, but b has not run yet
        leaving.cancel()
        await settle()
        assert [ticket.client for ticket in crowd.running] == ["c"]
        await crowd.end_all()
        assert crowd.admission.running == 0

    run(scenario())


def test_a_place_is_held_while_a_request_is_read() -> None:
    async def scenario() -> None:
        admission = Admission(1, AdmissionLimits(waiting=0))
        reading = admission.ticket("a")
        with pytest.raises(ExhaustedError):
            admission.ticket("b")
        reading.release()
        reading.release()
        assert admission.waiting == 0
        await admission.ticket("b").granted(1)
        assert (admission.waiting, admission.running) == (0, 1)

    run(scenario())


def test_a_drain_refuses_what_waits_and_what_comes_but_not_what_runs() -> None:
    async def scenario() -> None:
        crowd = Crowd(1)
        await crowd.arrive("a")
        await crowd.arrive("b")
        reading = crowd.admission.ticket("c")
        crowd.admission.close()
        await settle()
        await crowd.arrive("d")
        with pytest.raises(ServiceError, match="draining"):
            await reading.granted(1)
        reading.release()
        assert [str(error) for error in crowd.refused] == ["the service is draining."] * 2
        assert await crowd.end_all() == ["a"]
        assert (crowd.admission.waiting, crowd.admission.running) == (0, 0)

    run(scenario())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("abcd")),
        st.tuples(st.just("leave"), st.integers(0, 50)),
        st.tuples(st.just("end"), st.integers(0, 50)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 3), STEPS)
def test_no_slot_is_lost_whatever_happens(slots: int, steps: list[tuple[str, Any]]) -> None:
    async def scenario() -> None:
        crowd = Crowd(slots, AdmissionLimits(waiting=8, waiting_per_client=4))
        for step, argument in steps:
            if step == "arrive":
                await crowd.arrive(argument)
            elif step == "leave" and crowd.tasks:  # no await: it may meet a grant under way
                crowd.tasks[argument % len(crowd.tasks)].cancel()
            elif step == "end" and crowd.running:
                crowd.running.pop(argument % len(crowd.running)).release()
            admission = crowd.admission
            assert admission.running <= slots
            assert admission.waiting <= 8 + slots
        await settle()
        assert crowd.admission.running == len(crowd.running)
        assert crowd.admission.running == slots or crowd.admission.waiting == 0  # no slot idles
        await crowd.end_all()
        assert all(task.done() for task in crowd.tasks)
        assert (crowd.admission.running, crowd.admission.waiting, crowd.admission.waiting_bytes) == (0, 0, 0)

    run(scenario())


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 3), st.lists(st.integers(1, 12), min_size=2, max_size=5))
def test_clients_that_wait_differ_by_one_turn_at_most(slots: int, calls: list[int]) -> None:
    """Calls of equal length: whoever still waits has had as many turns as any other, or one less."""

    async def scenario() -> None:
        crowd = Crowd(slots, AdmissionLimits(1000, 1000))
        for _ in range(slots):
            await crowd.arrive("earlier")
        for client, number in enumerate(calls):
            for _ in range(number):
                await crowd.arrive(str(client))
        turns: Counter[str] = Counter()
        left = {str(client): number for client, number in enumerate(calls)}
        for _ in range(slots + sum(calls)):
            before = set(map(id, crowd.running))
            await crowd.end_first()
            for ticket in crowd.running:
                if id(ticket) not in before:
                    turns[ticket.client] += 1
                    left[ticket.client] -= 1
            waiting = [turns[client] for client, number in left.items() if number]
            assert not waiting or max(turns.values()) - min(waiting) <= slots

    run(scenario())
