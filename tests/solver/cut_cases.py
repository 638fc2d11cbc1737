"""Random short sequences of kernels, with every cut sequence and its weight."""

from __future__ import annotations

import itertools

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray


class Case:
    """A random short sequence and policy, with every slicing and its log-weight."""

    def __init__(self, seed: int, *, max_kernels: int = 8, max_chips: int = 5) -> None:
        rng = np.random.default_rng(seed)
        num_kernels = int(rng.integers(1, max_kernels + 1))
        num_chips = int(rng.integers(1, max_chips + 1))
        self.reach = random_reach(rng, num_kernels)
        self.log_probs = rng.normal(size=(num_kernels, num_chips)) * rng.choice([0.0, 1.0, 30.0])
        if rng.random() < 0.5:
            self.log_probs[rng.random(self.log_probs.shape) < 0.3] = -np.inf
        self.levels = min(num_kernels, num_chips)
        self.cuts = all_cuts(self.reach, self.levels)
        self.weights = np.array([log_weight(self.log_probs, cuts) for cuts in self.cuts])
        self.log_total = float(np.logaddexp.reduce(self.weights))


def random_reach(rng: np.random.Generator, num_kernels: int) -> LongArray:
    """[M + 1] the next cut, or further on; never falling."""
    further = rng.integers(0, 3, num_kernels + 1) * (rng.random(num_kernels + 1) < 0.4)
    reach = np.maximum.accumulate(np.arange(1, num_kernels + 2) + further)
    return np.append(np.minimum(reach[:-1], num_kernels), num_kernels + 1)


def all_cuts(reach: LongArray, levels: int) -> LongArray:
    """[B, L + 1] every legal cut sequence on at most ``levels`` chips, M behind the last segment."""
    num_kernels = len(reach) - 1
    found = []
    for used in range(1, levels + 1):
        for inner in itertools.combinations(range(1, num_kernels), used - 1):
            cuts = [0, *inner, num_kernels]
            if all(reach[a] <= b for a, b in itertools.pairwise(cuts)):
                found.append(cuts + [num_kernels] * (levels - used))
    return np.array(found, dtype=np.int64)


def log_weight(log_probs: FloatArray, cuts: LongArray) -> float:
    """Sum over kernels of their log-probability on the chip of their segment."""
    return sum(log_probs[a:b, d].sum() for d, (a, b) in enumerate(itertools.pairwise(cuts)) if a < b)
