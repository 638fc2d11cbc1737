"""The reward of a plan (design section 5): the logarithm of its speed-up over a reference."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray

# e^-5: an invalid plan counts as 150 times slower than the reference; no valid plan on 36
# chips is nearly as slow.
INVALID_REWARD: Final = -5.0


def reward(interval_s: FloatArray, valid: BoolArray, reference_s: float) -> FloatArray:
    """[B] ``log(T_reference / T)``; ``INVALID_REWARD`` where the plan is not valid.

    Args:
      interval_s: [B] interval (or makespan) of each plan.
      valid: [B] True where the plan is valid.
      reference_s: interval (or makespan) of the greedy heuristic's plan.
    """
    rewards = np.full(len(interval_s), INVALID_REWARD)
    rewards[valid] = np.log(reference_s / interval_s[valid])
    return rewards
