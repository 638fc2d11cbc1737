"""Arrivals at models that take turns on a package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray


class Turn(NamedTuple):
    """A model alone on the package."""

    interval_s: float
    latency_s: float
    most: int  # inferences of a turn while another model has arrivals


def turns_p99_s(arrived_s: Sequence[FloatArray], turns: Sequence[Turn], switch_s: float) -> float:
    """The 99th percentile of the seconds from arrival to answer, of the model where it is longest.

    A turn ends when its model has no arrivals, or after its most inferences; the next model that has some
    follows after ``switch_s``. Without arrivals the package keeps its model.
    """
    answered_s = [np.zeros(len(times_s)) for times_s in arrived_s]
    done, now_s, model, served = [0] * len(turns), 0.0, 0, 0

    def next_s(other: int) -> float:
        return arrived_s[other][done[other]] if done[other] < len(arrived_s[other]) else np.inf

    while any(np.isfinite(next_s(other)) for other in range(len(turns))):
        others = [(model + step) % len(turns) for step in range(1, len(turns))]
        waiting = next((other for other in others if next_s(other) <= now_s), None)
        if next_s(model) <= now_s and (served < turns[model].most or waiting is None):
            answered_s[model][done[model]] = now_s + turns[model].latency_s
            done[model] += 1
            served += 1
            now_s += turns[model].interval_s
        elif waiting is not None:
            model, served = waiting, 0
            now_s += switch_s
        else:
            now_s = min(next_s(other) for other in range(len(turns)))
    taken_s = [
        (end_s - begin_s)[len(begin_s) // 10 :] for begin_s, end_s in zip(arrived_s, answered_s, strict=True)
    ]
    return max(float(np.quantile(one, 0.99, method="higher")) for one in taken_s)
