"""The log-probability of the executed plans under any outputs, and its gradient.

Design section 7: ``log p(keys) + log p(placement | order, kernels)``. Tasks that the lesson does
not include do not contribute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from go_opt.agents.decoding.exploration import KeyDensity, key_density
from go_opt.agents.decoding.placement_density import PlacementDensity, placement_density
from go_opt.agents.inputs.features import NUM_EXPLORED
from go_opt.agents.policy.network import Outputs
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.rollout import Episodes
from go_opt.common.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class EpisodeDensity:
    """The density of a batch of episodes. Axes: ``S`` samples, ``N`` ops, ``D`` chips, ``F`` features."""

    keys: tuple[KeyDensity | None, KeyDensity | None]  # schedule, fusion
    placement: PlacementDensity | None
    shape: tuple[int, int]  # N, D

    @property
    def log_prob(self) -> FloatArray:
        """[S]."""
        parts = [density.log_density for density in self.keys if density is not None]
        if self.placement is not None:
            parts.append(self.placement.log_prob)
        total: FloatArray = np.sum(parts, axis=0)
        return total

    @property
    def key_entropy(self) -> float:
        """Entropy of the drawn keys, in nats."""
        return sum(density.entropy for density in self.keys if density is not None)

    def gradient(self, weight: FloatArray, *, key_entropy: float, placement_entropy: float) -> Outputs:
        """Gradient of ``Σ_s weight[s] log_prob[s]`` less the weighted entropies, by the outputs.

        The gradient of the placement entropy is estimated as ``-E[log p ∇ log p]``. It is divided
        by the number of ops, so that one weight suits graphs of all sizes.
        """
        num_ops, num_chips = self.shape
        (to_schedule, to_schedule_log_std), (to_fusion, to_fusion_log_std) = (
            _key_gradient(density, weight, key_entropy, num_ops) for density in self.keys
        )
        to_placement, to_cut = np.zeros((num_ops, num_chips)), np.zeros(num_ops)
        if self.placement is not None:
            surprise = self.placement.log_prob - self.placement.log_prob.mean()
            entropy_weight = placement_entropy * surprise / (len(surprise) * num_ops)
            to_placement, to_cut = self.placement.gradient(weight + entropy_weight)
        to_log_std = np.stack([to_schedule_log_std, to_fusion_log_std])
        return Outputs(to_placement, to_cut, to_schedule, to_fusion, to_log_std)


def episode_density(case: Case, outputs: Outputs, episodes: Episodes) -> EpisodeDensity:
    """The density of ``episodes`` under ``outputs``."""
    lesson = episodes.lesson
    drawn = {
        "schedule": (outputs.schedule_key, episodes.schedule_key),
        "fusion": (outputs.fusion_key, episodes.fusion_key),
    }
    keys = [
        key_density(case.key_space, mean, log_std, key) if task in lesson.tasks else None
        for (task, (mean, key)), log_std in zip(drawn.items(), outputs.exploration_log_std, strict=True)
    ]
    placement = None
    if "placement" in lesson.tasks:
        placement = placement_density(
            case.instance,
            outputs.placement_logits,
            outputs.cut_score,
            episodes.decoded,
            lesson.mode,
            draws=1 if lesson.draws_keys else lesson.samples,
        )
    return EpisodeDensity((keys[0], keys[1]), placement, outputs.placement_logits.shape)


def _key_gradient(
    density: KeyDensity | None, weight: FloatArray, key_entropy: float, num_ops: int
) -> tuple[FloatArray, FloatArray]:
    """[N] gradient with respect to the mean, and [F] to the log standard deviation."""
    if density is None:
        return np.zeros(num_ops), np.zeros(NUM_EXPLORED)
    to_log_std = weight @ density.to_log_std - key_entropy * density.entropy_to_log_std
    return weight @ density.to_mean, to_log_std
