"""The reward of a plan (design section 5): how many times faster than a reference, in logs."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray

# e^-5: an invalid plan is worth as much as one 150 times slower than the reference, which
# no valid plan on 36 chips comes near.
INVALID_REWARD: Final = -5.0


def reward(interval_s: FloatArray, valid: BoolArray, reference_s: float) -> FloatArray:
    """[B] ``log(T_reference / T)``; ``INVALID_REWARD`` where the plan is not valid.

    Args:
      interval_s: [B] interval (or makespan) of each plan.
      valid: [B] True where the plan is valid.
      reference_s: the same of the compiler's greedy heuristic.
    """
    rewards = np.full(len(interval_s), INVALID_REWARD)
    rewards[valid] = np.log(reference_s / interval_s[valid])
    return rewards
