"""Samples of one graph: drawn from the policy's outputs, decoded, judged by an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from go_opt.agents.decoding.decode import Decisions, Decoded, Mode, decode
from go_opt.agents.decoding.exploration import antithetic_normals, draw_keys
from go_opt.agents.policy.network import Outputs
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.problems.lessons import Lesson
from go_opt.common.arrays import FloatArray
from go_opt.env import reward

# What a mode that draws becomes where the likeliest is wanted.
LIKELIEST: Final[Mapping[Mode, Mode]] = MappingProxyType(
    {"slice_sampled": "slice_likeliest", "sample": "fix", "sample_adjacent": "fix_adjacent"}
)


@dataclass(frozen=True, eq=False)
class Episodes:
    """One batch of one graph. Axes: ``S`` samples, ``N`` ops; keys are zero where not decided."""

    lesson: Lesson
    schedule_key: FloatArray  # [S, N]
    fusion_key: FloatArray  # [S, N]
    decoded: Decoded
    interval_s: FloatArray  # [S] infinite where invalid
    reward: FloatArray  # [S]


def play(case: Case, outputs: Outputs, lesson: Lesson, session: Session, seed: int) -> Episodes:
    """Draw, decode and evaluate the samples of ``lesson``; the same for the same ``seed``."""
    schedule_key, fusion_key = _keys(case, outputs, lesson, seed)
    decoded = _decode(case, outputs, lesson, schedule_key, fusion_key, seed)
    return judged(case, lesson, session, schedule_key, fusion_key, decoded)


def judged(
    case: Case,
    lesson: Lesson,
    session: Session,
    schedule_key: FloatArray,
    fusion_key: FloatArray,
    decoded: Decoded,
) -> Episodes:
    """Episodes with what the environment says of their plans."""
    answer = session.evaluate(decoded.placement, decoded.order, decoded.fusion_group)
    return Episodes(
        lesson,
        schedule_key,
        fusion_key,
        decoded,
        np.where(answer.valid, answer.objective_s, np.inf),
        reward(answer.objective_s, answer.valid, case.reference_s),
    )


def decide(case: Case, outputs: Outputs, lesson: Lesson) -> Decoded:
    """The single plan from the policy's means, without exploration."""
    num_ops = case.features.num_ops
    none = np.zeros((1, num_ops))
    schedule_key = outputs.schedule_key[None] if "schedule" in lesson.tasks else none
    fusion_key = outputs.fusion_key[None] if "fusion" in lesson.tasks else none
    mode = LIKELIEST.get(lesson.mode, lesson.mode)
    return decode(case.instance, _decisions(case, outputs, lesson, schedule_key, fusion_key), mode)


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


def _decode(
    case: Case, outputs: Outputs, lesson: Lesson, schedule_key: FloatArray, fusion_key: FloatArray, seed: int
) -> Decoded:
    """Without keys of their own all samples are draws of one order."""
    rows, draws = (lesson.samples, 1) if lesson.draws_keys else (1, lesson.samples)
    decisions = _decisions(case, outputs, lesson, schedule_key[:rows], fusion_key[:rows])
    return decode(case.instance, decisions, lesson.mode, seed=seed, draws=draws)


def _decisions(
    case: Case, outputs: Outputs, lesson: Lesson, schedule_key: FloatArray, fusion_key: FloatArray
) -> Decisions:
    is_placed = "placement" in lesson.tasks
    return Decisions(
        schedule_priority=schedule_key,
        fusion_priority=fusion_key,
        placement_logits=outputs.logits(lesson.mode) if is_placed else np.zeros_like(outputs.slice_logits),
        cut_score=outputs.cut_score if is_placed else np.zeros_like(outputs.cut_score),
    )
