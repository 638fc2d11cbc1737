"""The log-probability of episodes under a policy's outputs, and its gradient.

Design section 7: ``log p(keys) + log p(placement | order, kernels)``. Tasks that the lesson does
not include do not contribute.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.agents.decoding.exploration import key_density
from go_opt.agents.decoding.placement_density import placement_density
from go_opt.agents.policy.network import Outputs
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.rollout import Episodes

# Labels are likely under flatter logits than those that draw: labels differ by chance, and logits as flat as
# they differ would draw every op apart from its neighbours.
WARMTH: Final = 1.0 / 3.0


def mean_log_prob(case: Case, outputs: Outputs, episodes: Episodes) -> tuple[float, Outputs]:
    """The mean log-probability of ``episodes`` under flattened ``outputs``, and its gradient by ``outputs``.

    Episodes without a chance under ``outputs`` count as zero, and have no gradient.
    """
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
    if "placement" in lesson.tasks:
        placed = placement_density(
            case.instance,
            WARMTH * outputs.logits(lesson.mode),
            WARMTH * outputs.cut_score,
            episodes.decoded,
            lesson.mode,
            draws=1 if lesson.draws_keys else count,
        )
        total += float(np.where(np.isneginf(placed.log_prob), 0.0, placed.log_prob).mean())
        to_logits, to_cut = placed.gradient(weight)
        gradient.logits(lesson.mode)[:] += WARMTH * to_logits
        gradient.cut_score[:] += WARMTH * to_cut
    return total, gradient
