"""How much better a sample is than the others of its graph, for the best of k.

What is used in the end is the best of k proposals, so that is what training raises. The
gradient of E[max of k samples] gives sample i the weight

    A_i = E_K[(r_i - max_{j in K} r_j)^+],    K: k - 1 of the other samples at random,

its mean gain over a set it joins: unbiased, for the subtracted maximum does not depend on
i. Walder and Karkhanis, "Pass@K policy optimization", 2025, section 4. For k = 1 it is
REINFORCE with the others' mean as baseline.
"""

from __future__ import annotations

from math import comb
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray

# Deviations below this are noise, not a lesson: graphs on which all plans are alike teach nothing.
LEAST_DEVIATION: Final = 0.01


def best_of_k_gain(rewards: FloatArray, k: int) -> FloatArray:
    """[S] gain of each of ``rewards`` [S] over k - 1 of the others; ``k`` is at most S."""
    num_samples = len(rewards)
    if k == 1:
        over_the_others: FloatArray = (rewards - rewards.mean()) * (num_samples / max(1, num_samples - 1))
        return over_the_others
    ascending = np.argsort(rewards, kind="stable")
    sorted_rewards = rewards[ascending]
    # The j-th smallest is the maximum of k - 1 others drawn at random. Only smaller ones count,
    # and leaving sample i out moves none of those.
    chance = np.array([comb(j, k - 2) for j in range(num_samples)], dtype=np.float64)
    chance /= comb(num_samples - 1, k - 1)
    below = np.cumsum(chance) - chance
    below_reward = np.cumsum(chance * sorted_rewards) - chance * sorted_rewards
    gain = np.empty(num_samples)
    gain[ascending] = np.maximum(sorted_rewards * below - below_reward, 0.0)
    return gain


def advantage(rewards: FloatArray, k: int) -> FloatArray:
    """[S] the gain, centred, in units of its deviation on this graph.

    The mean holds what a sample takes from the gains of the others. So the gradient before
    scaling, per sample, is not quite ``g_k / k``, with ``g_k`` that of E[max of k], but
    ``(1 - k / S) g_k / k + g_{k-1} / S``: the best of k - 1 is learnt a little too.
    """
    gain = best_of_k_gain(rewards, min(k, len(rewards)))
    centred = gain - gain.mean()
    scaled: FloatArray = centred / max(float(gain.std()), LEAST_DEVIATION)
    return scaled


def expected_best(rewards: FloatArray, k: int) -> float:
    """Mean of the largest of k of ``rewards`` [S] drawn without replacement: E[max of k], unbiased."""
    chance = np.array([comb(j, k - 1) for j in range(len(rewards))], dtype=np.float64)
    return float(np.sort(rewards) @ chance / comb(len(rewards), k))
