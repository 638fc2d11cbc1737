"""Labels: the samples that the policy learns to propose, the best of those that were drawn."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, LongArray

# Smaller gains are noise: graphs on which all plans are alike teach nothing.
LEAST_GAIN: Final = 0.01


def labels(reward: FloatArray, elites: int) -> LongArray:
    """At most ``elites`` of the samples whose ``reward`` [S] is above the median, best first.

    None where the best gains less than ``LEAST_GAIN`` over the median.
    """
    median = np.median(reward)
    best = np.argsort(-reward, kind="stable")[:elites]
    return best[reward[best] > median] if reward[best[0]] >= median + LEAST_GAIN else best[:0]
