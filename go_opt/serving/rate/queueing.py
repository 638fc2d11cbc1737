"""Arrivals, and how long each waits for its batch: a queue before replicas that are pipelines.

A replica takes a batch each interval and answers it one latency later; a batch with fewer inputs costs as
much as a full one. A batch leaves when a replica is free and it is full, or its first input has waited the
window.

Sequences of tokens wait for one of the places that replicas have, and keep it until their last token.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.common.compiling import uncounted

ARRIVALS: Final = 40_000  # of a simulation; the first tenth is left out
VARIATION: Final = 2.0  # standard deviation of the times between bursty arrivals over their mean


class Server(NamedTuple):
    """Replicas and how they batch."""

    batch: int
    window_s: float
    replicas: int
    interval_s: float  # of batches into one replica
    latency_s: float  # of a batch


def arrivals_s(rate_per_s: float, seed: int = 0) -> dict[str, FloatArray]:
    """``[ARRIVALS]`` times of each process: Poisson, and bursty with gamma-distributed times between.

    Gamma arrivals are those of Symphony (Chen et al., 2023).
    """
    random = np.random.default_rng(seed)
    shape = VARIATION**-2
    between = {
        "poisson": random.exponential(1.0, ARRIVALS),
        "bursty": random.gamma(shape, 1.0 / shape, ARRIVALS),
    }
    return {name: np.cumsum(gaps) / rate_per_s for name, gaps in between.items()}


def p99_s(arrived_s: FloatArray, server: Server) -> float:
    """The 99th percentile of the seconds from arrival to answer."""
    answered_s = np.zeros(len(arrived_s))
    answer(arrived_s, server, np.zeros(server.replicas), answered_s)
    taken_s = (answered_s - arrived_s)[len(arrived_s) // 10 :]
    return float(np.quantile(taken_s, 0.99, method="higher"))


def sequence_tokens(mean: float, seed: int = 0) -> LongArray:
    """``[ARRIVALS]`` tokens of sequences, one or more, geometric."""
    return np.random.default_rng([seed, 1]).geometric(1.0 / mean, ARRIVALS)


def first_token_p99_s(arrived_s: FloatArray, tokens: LongArray, server: Server) -> float:
    """The 99th percentile of the seconds from the arrival of a sequence to its first token.

    A replica has ``batch`` places; a sequence there gets a token each ``latency_s``, and begins when the next
    interval of one place does.
    """
    first_s = np.zeros(len(arrived_s))
    places_s = np.zeros(server.replicas * server.batch)
    take_places(arrived_s, tokens, server.interval_s / server.batch, server.latency_s, places_s, first_s)
    taken_s = (first_s - arrived_s)[len(arrived_s) // 10 :]
    return float(np.quantile(taken_s, 0.99, method="higher"))


@uncounted
def take_places(
    arrived_s: FloatArray,
    tokens: LongArray,
    begin_s: float,
    token_s: float,
    free_s: FloatArray,
    first_s: FloatArray,
) -> None:
    """Fills in when the first token of each sequence is there.

    Args:
      begin_s: at most, until a place's first step.
      token_s: of each token.
      free_s: ``[places]`` zeros: when each is free.
    """
    for i in range(arrived_s.size):
        place = 0
        for other in range(1, free_s.size):
            if free_s[other] < free_s[place]:
                place = other
        begins_s = max(arrived_s[i], free_s[place]) + begin_s
        first_s[i] = begins_s + token_s
        free_s[place] = begins_s + tokens[i] * token_s


@uncounted
def answer(arrived_s: FloatArray, server: Server, free_s: FloatArray, answered_s: FloatArray) -> None:
    """Fills in when each arrival is answered.

    Args:
      free_s: ``[replicas]`` zeros: when each takes its next batch.
    """
    first, number = 0, arrived_s.size
    while first < number:
        replica = 0
        for other in range(1, free_s.size):
            if free_s[other] < free_s[replica]:
                replica = other
        leaves_s = arrived_s[first] + server.window_s
        full = first + server.batch - 1
        if full < number:
            leaves_s = min(leaves_s, arrived_s[full])
        leaves_s = max(leaves_s, free_s[replica])
        last = first
        while last < number and last < first + server.batch and arrived_s[last] <= leaves_s:
            answered_s[last] = leaves_s + server.latency_s
            last += 1
        free_s[replica] = leaves_s + server.interval_s
        first = last
