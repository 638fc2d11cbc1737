"""The clipped surrogate of PPO, and its gradient with respect to log-probabilities.

Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7: with the
ratio r_i of the current probability of sample i to that when it was drawn,

    L = -1/S Σ_i min(r_i A_i, clip(r_i, 1 - c, 1 + c) A_i),

over the episodes of one step. JAX differentiates the network, but not the distributions, which
the solver computes. By the chain rule, the gradient by the network's outputs is the sum of
dL / d log p_i (here) times d log p_i / d outputs (:mod:`go_opt.agents.training.updates.log_prob`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray

# Limits the log-ratio, which keeps the exponential finite.
_MOST_LOG_RATIO: Final = 20.0


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The loss of a batch of samples, its gradient, and PPO's diagnostics."""

    loss: float
    to_log_prob: FloatArray  # [S] dL / d log p
    clipped_share: float  # share of samples without gradient, because their ratio is clipped
    kl: float  # estimate of KL(old || new): Schulman, "Approximating KL divergence", 2020, k3


def surrogate(
    log_prob: FloatArray, old_log_prob: FloatArray, advantage: FloatArray, clip: float
) -> Surrogate:
    """The surrogate loss of samples with ``log_prob`` [S] now and ``old_log_prob`` [S] when drawn."""
    log_ratio = np.clip(log_prob - old_log_prob, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    ratio = np.exp(log_ratio)
    clipped = np.clip(ratio, 1.0 - clip, 1.0 + clip)
    gain, clipped_gain = ratio * advantage, clipped * advantage
    counts = gain <= clipped_gain
    return Surrogate(
        loss=-float(np.minimum(gain, clipped_gain).mean()),
        to_log_prob=np.where(counts, -gain, 0.0) / len(ratio),
        clipped_share=float((~counts).mean()),
        kl=float((ratio - 1.0 - log_ratio).mean()),
    )
