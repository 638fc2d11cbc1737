"""The queue before replicas: by hand, its slow twin, and theory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from go_opt.serving.rate.queueing import (
    Server,
    answer,
    arrivals_s,
    first_token_p99_s,
    sequence_tokens,
    take_places,
)


def answered(arrived: list[float], server: Server) -> list[float]:
    times, answered_s = np.array(arrived, float), np.zeros(len(arrived))
    answer(times, server, np.zeros(server.replicas), answered_s)
    return answered_s.tolist()


def test_a_queue_by_hand() -> None:
    # Two at a time, a batch each 2 s, answered after 3 s. The first leaves alone after its window of 1 s;
    # those of 1.5 and 1.6 are full at 1.6, but the replica is free at 3.
    server = Server(2, 1.0, 1, 2.0, 3.0)
    assert answered([0.0, 1.5, 1.6, 9.0, 9.5], server) == [4.0, 6.0, 6.0, 12.5, 12.5]
    # A second replica takes them at once.
    assert answered([0.0, 1.5, 1.6], server._replace(replicas=2)) == pytest.approx([4.0, 4.6, 4.6])


def slow_twin(arrived: list[float], server: Server) -> list[float]:
    """Steps through the moments at which something may happen."""
    waiting: list[int] = []
    free, done = [0.0] * server.replicas, [math.nan] * len(arrived)
    moments = sorted({*arrived, *(t + server.window_s for t in arrived)})
    left = 0
    while moments:
        now = moments.pop(0)
        while left < len(arrived) and arrived[left] <= now:
            waiting.append(left)
            left += 1
        while waiting:
            is_due = len(waiting) >= server.batch or now >= arrived[waiting[0]] + server.window_s
            if not is_due or min(free) > now:
                if is_due:
                    moments = sorted({*moments, min(free)})
                break
            for i in waiting[: server.batch]:
                done[i] = now + server.latency_s
            del waiting[: server.batch]
            free[free.index(min(free))] = now + server.interval_s
    return done


@pytest.mark.parametrize("seed", range(20))
def test_the_queue_is_its_slow_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    arrived = np.cumsum(random.exponential(1.0, 60)).tolist()
    server = Server(
        int(random.integers(1, 5)),
        float(random.uniform(0, 3)),
        int(random.integers(1, 4)),
        float(random.uniform(0.5, 4)),
        float(random.uniform(1, 5)),
    )
    assert answered(arrived, server) == pytest.approx(slow_twin(arrived, server))


def test_arrivals_have_the_rate_and_the_variation() -> None:
    for name, variation in (("poisson", 1.0), ("bursty", 2.0)):
        gaps = np.diff(arrivals_s(50.0)[name])
        assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_one_server_of_fixed_time_has_the_p99_of_theory() -> None:
    # M/D/1 at half load: the mean wait is service / 2.
    arrived = arrivals_s(0.5)["poisson"]
    answered_s = np.zeros(len(arrived))
    answer(arrived, Server(1, 0.0, 1, 1.0, 1.0), np.zeros(1), answered_s)
    assert (answered_s - arrived).mean() == pytest.approx(1.5, rel=0.05)


def test_places_of_sequences_by_hand() -> None:
    # Two places, a token each second, half a second until a place begins. The third sequence waits for the
    # shorter of the first two, which has two tokens: free at 2.5.
    first = np.zeros(4)
    arrived = np.array([0.0, 0.0, 1.0, 9.0])
    take_places(arrived, np.array([2, 3, 1, 1]), 0.5, 1.0, np.zeros(2), first)
    assert first.tolist() == [1.5, 1.5, 4.0, 10.5]


def test_sequences_end_with_the_mean_number_of_tokens() -> None:
    tokens = sequence_tokens(20.0)
    assert tokens.min() == 1
    assert tokens.mean() == pytest.approx(20.0, rel=0.02)


def test_one_place_has_the_wait_of_theory() -> None:
    # M/M/1 at half load, about: sequences of 100 tokens of 5 ms, one a second; the mean wait is their time.
    arrived, tokens = arrivals_s(1.0)["poisson"], sequence_tokens(100.0)
    first = np.zeros(len(arrived))
    take_places(arrived, tokens, 0.0, 5e-3, np.zeros(1), first)
    assert (first - arrived).mean() == pytest.approx(0.5, rel=0.1)
    more = Server(8, 0.0, 1, 8 * 5e-3, 5e-3)
    assert first_token_p99_s(arrived, tokens, more) < 0.1 < np.quantile(first - arrived, 0.99)
