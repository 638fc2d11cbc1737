"""Labels: the plans that the policy learns to propose, the best of those that were tried.

Beside the policy's own samples, those of a rule are tried: equal shares of work, cut where little
crosses. Without them an untrained policy has seldom a good sample on many chips. The exact slicer's
placements teach less: they fill the first chips up to the slowest, so any deviation costs.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from go_opt.agents.decoding.decode import Decisions, Decoded, decode
from go_opt.agents.inputs.config import TYPICAL_OPS
from go_opt.agents.inputs.features import CHIP_MIDDLE, OP_COLUMNS, OP_MIDDLE, STORED
from go_opt.agents.inputs.padding import rows_to_ops
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.problems.lessons import Lesson
from go_opt.agents.training.problems.rollout import LIKELIEST, Episodes, judged
from go_opt.agents.training.problems.settings import TAUGHT
from go_opt.common.arrays import LongArray

# Smaller gains are noise: graphs on which all plans are alike teach nothing.
LEAST_GAIN: Final = 0.01
# Of the rule, by the validation split.
_SHARPNESS: Final = 2.0
_LINK: Final = 3.0
_MEMORY: Final = 30.0
_ARRAYS: Final = ("schedule_key", "fusion_key", "interval_s", "reward")
_DECODED: Final = tuple(field.name for field in fields(Decoded))


def labels(played: Episodes, taught: Episodes | None) -> Episodes | None:
    """The lesson's ``elites``, best first, of ``played`` and ``taught``; None if they gain nothing."""
    every = played if taught is None else _joined(played, taught)
    best = np.argsort(-every.reward, kind="stable")[: played.lesson.elites]
    if every.reward[best[0]] < np.median(played.reward) + LEAST_GAIN:
        return None
    return _chosen(every, best[every.reward[best] > np.median(played.reward)])


def taught(case: Case, lesson: Lesson, session: Session, seed: int) -> Episodes | None:
    """Placements by a rule, judged; None for lessons that decide more than the placement.

    They are slicings drawn around equal shares of work, with cuts where little crosses. For
    placements op by op they begin with the equal shares themselves, which may be no slicing.
    """
    if lesson.draws_keys:
        return None
    neutral = np.zeros((1, case.features.num_ops))
    by_op = rows_to_ops(case.features, case.features.ops)
    apart = (by_op[:, OP_MIDDLE, None] - case.features.chips[:, CHIP_MIDDLE]) * (case.features.num_chips / 2)
    near = (1.0 - np.sqrt(1.0 + apart**2)) * (_SHARPNESS * TYPICAL_OPS / case.features.num_ops)
    link, memory = by_op[:, OP_COLUMNS.index(STORED[2])], by_op[:, OP_COLUMNS.index(STORED[3])]
    cost = _LINK * 10.0**link + _MEMORY * np.maximum(memory + 1.0, 0.0) ** 2
    rule = Decisions(neutral, neutral, near, -cost)
    drawn = [decode(case.instance, rule, "slice_sampled", seed=seed, draws=TAUGHT - 1)]
    drawn.insert(0, decode(case.instance, rule, LIKELIEST[lesson.mode]))
    placement = np.concatenate([each.placement for each in drawn])
    words = np.zeros(drawn[0].open_chips.shape[-1], dtype=np.uint64)
    for chip in range(case.instance.target.num_chips):
        words[chip // 64] |= np.uint64(1) << np.uint64(chip % 64)
    decoded = replace(
        Decoded(*(np.concatenate([getattr(each, name) for each in drawn]) for name in _DECODED)),
        placement=placement,
        drawn=placement,
        open_chips=np.broadcast_to(words, (*placement.shape, len(words))).copy(),
    )
    keys = np.zeros((TAUGHT, case.features.num_ops))
    return judged(case, lesson, session, keys, keys, decoded)


def _joined(first: Episodes, second: Episodes) -> Episodes:
    decoded = Decoded(
        *(np.concatenate([getattr(each.decoded, name) for each in (first, second)]) for name in _DECODED)
    )
    both: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in (first, second)]) for name in _ARRAYS
    }
    return replace(first, decoded=decoded, **both)


def _chosen(episodes: Episodes, samples: LongArray) -> Episodes:
    decoded = Decoded(*(getattr(episodes.decoded, name)[samples] for name in _DECODED))
    arrays: dict[str, Any] = {name: getattr(episodes, name)[samples] for name in _ARRAYS}
    return replace(episodes, decoded=decoded, **arrays)
