"""The log-probability of episodes under a policy's outputs, and its gradient.

Design section 7: ``log p(keys) + log p(placement | order, kernels)``. Tasks that the lesson does
not include do not contribute.
"""

from __future__ import annotations

import numpy as np

from go_opt.agents.decoding.exploration import key_density
from go_opt.agents.policy.network import Outputs
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.rollout import Episodes


def mean_log_prob(case: Case, outputs: Outputs, episodes: Episodes) -> tuple[float, Outputs]:
    """The mean log-probability of ``episodes`` under ``outputs``, and its gradient by ``outputs``."""
    lesson, count = episodes.lesson, len(episodes.reward)
    weight = np.full(count, 1.0 / count)
    total, gradient = 0.0, Outputs(*(np.zeros_like(output) for output in outputs))
    drawn = (
        ("schedule", outputs.schedule_key, episodes.schedule_key, gradient.schedule_key),
        ("fusion", outputs.fusion_key, episodes.fusion_key, gradient.fusion_key),
    )
    for row, (task, mean, keys, to_mean) in enumerate(drawn):
        if task in lesson.tasks:
            density = key_density(case.key_space, mean, outputs.exploration_log_std[row], keys)
            total += float(density.log_density.mean())
            to_mean += weight @ density.to_mean
            gradient.exploration_log_std[row] += weight @ density.to_log_std
    for walk in episodes.decoded.walks:
        of_walk = walk.case.gradient(outputs.walk_weights, outputs.walk_head, walk.is_cut[None])
        total += float(of_walk.log_prob[0]) / count
        gradient.walk_weights[:] += of_walk.weights / count
        gradient.walk_head[:] += of_walk.head / count
    return total, gradient
