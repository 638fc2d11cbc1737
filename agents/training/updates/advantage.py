"""Advantages of samples over the others of their graph, for the best of k.

The search uses the best of k proposals, so training maximises its expected reward. The
gradient of E[max of k samples] gives sample i the weight

    A_i = E_K[(r_i - max_{j in K} r_j)^+],    K: k - 1 of the other samples at random,

its mean gain over a random set. The estimate is unbiased, because the subtracted maximum
does not depend on i. Walder and Karkhanis, "Pass@K policy optimization", 2025, section 4. For
k = 1 the weight is that of REINFORCE with the others' mean as baseline.
"""

from __future__ import annotations

from math import comb
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray

# Smaller deviations are noise: graphs on which all plans are alike teach nothing.
LEAST_DEVIATION: Final = 0.01


def best_of_k_gain(rewards: FloatArray, k: int) -> FloatArray:
    """[S] gain of each of ``rewards`` [S] over k - 1 of the others; ``k`` is at most S."""
    num_samples = len(rewards)
    if k == 1:
        over_the_others: FloatArray = (rewards - rewards.mean()) * (num_samples / max(1, num_samples - 1))
        return over_the_others
    ascending = np.argsort(rewards, kind="stable")
    sorted_rewards = rewards[ascending]
    # The chance that the j-th smallest is the maximum of k - 1 others drawn at random. Only smaller
    # samples count, and leaving sample i out does not change their ranks.
    chance = np.array([comb(j, k - 2) for j in range(num_samples)], dtype=np.float64)
    chance /= comb(num_samples - 1, k - 1)
    below = np.cumsum(chance) - chance
    below_reward = np.cumsum(chance * sorted_rewards) - chance * sorted_rewards
    gain = np.empty(num_samples)
    gain[ascending] = np.maximum(sorted_rewards * below - below_reward, 0.0)
    return gain


def advantage(rewards: FloatArray, k: int) -> FloatArray:
    """[S] the gain, centred and divided by its standard deviation on this graph.

    The subtracted mean depends on each sample through the gains of the others. With ``g_k`` the
    gradient of E[max of k], the gradient per sample before scaling is not ``g_k / k``, but
    ``(1 - k / S) g_k / k + g_{k-1} / S``: a little weight goes to the best of k - 1.
    """
    gain = best_of_k_gain(rewards, min(k, len(rewards)))
    centred = gain - gain.mean()
    scaled: FloatArray = centred / max(float(gain.std()), LEAST_DEVIATION)
    return scaled


def expected_best(rewards: FloatArray, k: int) -> float:
    """Mean of the largest of k of ``rewards`` [S] drawn without replacement: E[max of k], unbiased."""
    chance = np.array([comb(j, k - 1) for j in range(len(rewards))], dtype=np.float64)
    return float(np.sort(rewards) @ chance / comb(len(rewards), k))
