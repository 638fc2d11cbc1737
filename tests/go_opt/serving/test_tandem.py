"""Prompts and steps through chips and links: by hand, a slow twin, and queueing theory."""

from __future__ import annotations

import heapq
from collections.abc import Generator

import numpy as np
import pytest

from go_opt.serving.rate.queueing import HANDOVER, PROMPT, STEP, Passes, pass_through, simulated


def passed(
    arrived: list[float], tokens: list[int], passes: Passes, places: int
) -> tuple[list[float], list[float]]:
    first_s, last_s = np.zeros(len(arrived)), np.zeros(len(arrived))
    rows = np.zeros((4, places), np.int64), np.zeros(places), np.zeros((2, passes.is_link.size))
    pass_through(np.array(arrived, float), np.array(tokens, np.int64), passes, *rows, first_s, last_s)
    return first_s.tolist(), last_s.tolist()


def passes_of(holds: list[list[float]], latencies: list[float], links: tuple[int, ...] = ()) -> Passes:
    is_link = np.isin(np.arange(len(holds[0])), links)
    return Passes.of(np.array(holds), np.array(latencies), is_link)


def test_beside_by_hand() -> None:
    # Two chips: a prompt takes 4 s on each, a step 1 s.
    passes = passes_of([[4.0, 4.0], [0.0, 0.0], [1.0, 1.0]], [8.0, 0.0, 2.0])
    # The first is there at 8, its steps at 10 and 12. The second has the first chip at 4 and ends at 12; the
    # steps of the first wait for the second chip until then: the first ends at 13, and the next at 15.
    assert passed([0.0, 0.0], [3, 1], passes, 2) == ([8.0, 12.0], [15.0, 12.0])
    # With one place the second begins when the first has ended.
    assert passed([0.0, 0.0], [3, 1], passes, 1) == ([8.0, 20.0], [12.0, 20.0])
    assert passes.capacity_per_s(3.0, 1) == pytest.approx(1 / 12)
    assert passes.capacity_per_s(3.0, 9) == pytest.approx(1 / 6)


def test_apart_by_hand() -> None:
    # A chip for prompts, a link that takes 2 s, two chips for steps, which take 1 s more at the end.
    holds = [[4.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    passes = passes_of(holds, [4.0, 2.0, 3.0])
    # Steps of the first begin at 6 and 9; those of the second, there at 8, at 10: none waits for a prompt.
    assert passed([0.0, 0.0], [3, 2], passes, 2) == ([4.0, 8.0], [12.0, 13.0])
    # Latencies below the sum of holds: a pass goes on after half of each, while the chip stays busy.
    # On a link the step, ready at 8, does not wait, though the second prompt has it from 8 to 14.
    link = passes_of([[2.0, 6.0], [0.0, 0.0], [0.0, 1.0]], [8.0, 0.0, 1.0], links=(1,))
    assert passed([0.0, 0.0], [2, 1], link, 2) == ([8.0, 14.0], [9.0, 14.0])
    early = passes_of([[4.0, 4.0], [0.0, 0.0], [0.0, 0.0]], [4.0, 0.0, 0.0])
    assert passed([0.0, 0.0], [1, 1], early, 2) == ([4.0, 8.0], [4.0, 8.0])


def slow_twin(
    arrived: list[float], tokens: list[int], passes: Passes, places: int
) -> tuple[list[float], list[float]]:
    """Generators that wait for chips and links, on a heap."""
    first, last = [0.0] * len(arrived), [0.0] * len(arrived)
    free: dict[tuple[int, bool], float] = {}
    waiting = list(enumerate(arrived))

    def on_the_way(kind: int, now: float) -> Generator[float, None, float]:
        for i, hold in enumerate(passes.hold_s[kind]):
            if hold > 0:
                yield now
                is_first = bool(kind == STEP and passes.is_link[i])
                begin = max(now, free.get((i, is_first), 0.0))
                if is_first:
                    free[i, False] = max(free.get((i, False), 0.0), begin) + hold
                free[i, is_first] = begin + hold
                now = begin + passes.move_s[kind, i]
        return now + float(passes.rest_s[kind])

    def place() -> Generator[float, None, None]:
        now = 0.0
        while waiting:
            comes = max(now, waiting[0][1])
            yield comes
            if not waiting:
                return
            if max(now, waiting[0][1]) > comes:  # another place took the sequence
                continue
            number, _ = waiting.pop(0)
            now = first[number] = yield from on_the_way(PROMPT, comes)
            if tokens[number] > 1:
                now = yield from on_the_way(HANDOVER, now)
            for _ in range(tokens[number] - 1):
                now = yield from on_the_way(STEP, now)
            last[number] = now

    running = [place() for _ in range(places)]
    todo = [(next(one), i) for i, one in enumerate(running)]
    while todo:
        _, i = heapq.heappop(todo)
        for goes in running[i]:
            heapq.heappush(todo, (goes, i))
            break
    return first, last


@pytest.mark.parametrize("seed", range(8))
def test_against_the_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    resources, places, number = int(random.integers(1, 6)), int(random.integers(1, 5)), 60
    holds = random.random((3, resources)) * (random.random((3, resources)) < 0.7)
    passes = Passes.of(holds, random.random(3) * 4.0 + 0.1, random.random(resources) < 0.4)
    arrived = np.cumsum(random.exponential(2.0, number)).tolist()
    tokens = random.geometric(0.3, number).tolist()
    for found, slow in zip(
        passed(arrived, tokens, passes, places), slow_twin(arrived, tokens, passes, places), strict=True
    ):
        assert found == pytest.approx(slow)


def test_a_queue_of_prompts_alone_waits_as_theory_says() -> None:
    # One token each, one chip: M/D/1. At 70 % the wait is above t services by a chance of 0.81 exp(-0.67 t),
    # so the p99 is 6.56 and a service; of 7,200 arrivals.
    passes = passes_of([[1.0], [0.0], [0.0]], [1.0, 0.0, 0.0])
    answered = simulated(passes, 30, 0.7, 1.0, 0)
    assert answered["poisson"].first_s == pytest.approx(7.56, rel=0.2)
    assert answered["bursty"].first_s > answered["poisson"].first_s
    assert answered["poisson"].last_s == answered["poisson"].first_s
    assert answered["poisson"].token_s == 0.0
