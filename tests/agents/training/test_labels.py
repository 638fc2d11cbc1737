"""Labels: which samples they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from go_opt.agents.training.problems.rollout import labels, play
from tests.agents.training.small import JOINT, Answers, random_outputs, small_case


@pytest.mark.parametrize(
    ("rewards", "best"),
    [
        ([0.1, 0.5, -5.0, 0.3, 0.2], [1, 3]),
        ([0.0, 0.0, 0.0, 0.5], [3]),  # a label is better than most samples
        ([-5.0, -5.0, 0.5], [2]),
        ([0.1, 0.105, 0.1], []),  # plans that are alike teach nothing
        ([-np.inf, -np.inf], []),
        ([-np.inf, 2.0], [1]),
    ],
)
def test_the_best_are_labels(rewards: list[float], best: list[int]) -> None:
    assert labels(np.array(rewards), 2).tolist() == best


def test_labels_are_whole_samples() -> None:
    case = small_case(0)
    outputs = random_outputs(np.random.default_rng(0), case)
    played = play(case, outputs, JOINT, Answers(lambda placement, order: np.ones(len(placement))), 0)
    played = replace(played, reward=np.arange(8) / 8.0)
    found = played.labels()
    assert found.reward.tolist() == [7 / 8, 6 / 8, 5 / 8]
    for name in ("schedule_key", "fusion_key", "interval_s"):
        np.testing.assert_array_equal(getattr(found, name), getattr(played, name)[[7, 6, 5]])
    assert all(found.decoded[i] is played.decoded[s] for i, s in enumerate((7, 6, 5)))
