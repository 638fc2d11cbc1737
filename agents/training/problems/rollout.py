"""Samples of one graph: drawn from the policy's outputs, decoded, judged by an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.agents.decoding.decode import Decisions, Decoded, Outputs, decode
from go_opt.agents.decoding.exploration import antithetic_normals, draw_keys
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Evaluations, Session
from go_opt.agents.training.problems.settings import Lesson
from go_opt.common.arrays import FloatArray, LongArray
from go_opt.env.reward import reward


@dataclass(frozen=True, eq=False)
class Episodes:
    """One batch of one graph. Axes: ``S`` samples, ``N`` ops; keys are zero where not decided."""

    lesson: Lesson
    schedule_key: FloatArray  # [S, N]
    fusion_key: FloatArray  # [S, N]
    decoded: list[Decoded]  # [S]
    interval_s: FloatArray  # [S] infinite where invalid
    reward: FloatArray  # [S]

    def labels(self) -> Episodes:
        """The lesson's ``elites``, best first; none if they gain nothing."""
        best = labels(self.reward, self.lesson.elites)
        rows = (self.schedule_key[best], self.fusion_key[best])
        decoded = [self.decoded[s] for s in best]
        return Episodes(self.lesson, *rows, decoded, self.interval_s[best], self.reward[best])


def play(
    case: Case,
    outputs: Outputs,
    lesson: Lesson,
    session: Session,
    seed: int,
    misses: int | None = None,
) -> Episodes:
    """Draw, decode and evaluate the samples of ``lesson``; the same for the same ``seed``.

    ``misses``: see :meth:`~go_opt.agents.decoding.walk_case.WalkCase.draw`.
    """
    keys = _keys(case, outputs, lesson, seed)
    # Without keys of their own all samples are draws of one order.
    rows, draws = (lesson.samples, 1) if lesson.draws_keys else (1, lesson.samples)
    decisions = Decisions(keys[0][:rows], keys[1][:rows], outputs.walk_weights, outputs.walk_head)
    decoded, _ = decode(case.instance, decisions, lesson.mode, seed=seed, draws=draws, misses=misses)
    parts = ("placement", "order", "fusion_group")
    answer = session.evaluate(*(np.stack([getattr(each.plan, part) for each in decoded]) for part in parts))
    return Episodes(
        lesson,
        *keys,
        decoded,
        np.where(answer.valid, answer.objective_s, np.inf),
        _reward(answer, case.reference_s),
    )


def _reward(answer: Evaluations, reference_s: float) -> FloatArray:
    """[S] that of the plans; below the floor of invalid ones by how far they miss the memory, if known."""
    rewards = reward(answer.objective_s, answer.valid, reference_s)
    if answer.memory_share is not None:
        rewards -= np.where(answer.valid, 0.0, np.log(np.maximum(answer.memory_share, 1.0)))
    return rewards


def _keys(case: Case, outputs: Outputs, lesson: Lesson, seed: int) -> tuple[FloatArray, FloatArray]:
    """[S, N] schedule and fusion keys."""
    rng = np.random.default_rng((seed, 0))
    num_features = outputs.exploration_log_std.shape[1]
    means = {"schedule": outputs.schedule_key, "fusion": outputs.fusion_key}
    keys = []
    for (task, mean), log_std in zip(means.items(), outputs.exploration_log_std, strict=True):
        normals = antithetic_normals(rng, lesson.samples, num_features)
        # Antithetic within each task only: the pairs of the second task are shuffled.
        normals = normals[rng.permutation(lesson.samples)]
        decided = task in lesson.tasks
        drawn = draw_keys(case.key_space, mean, log_std, normals) if decided else None
        keys.append(np.zeros((lesson.samples, len(mean))) if drawn is None else drawn)
    return keys[0], keys[1]


# Smaller gains are noise: graphs on which all plans are alike teach nothing.
LEAST_GAIN: Final = 0.01


def labels(reward: FloatArray, elites: int) -> LongArray:
    """At most ``elites`` of the samples whose ``reward`` [S] is above the median, best first.

    None where the best gains less than ``LEAST_GAIN`` over the median.
    """
    median = np.median(reward)
    best = np.argsort(-reward, kind="stable")[:elites]
    return best[reward[best] > median] if reward[best[0]] >= median + LEAST_GAIN else best[:0]
