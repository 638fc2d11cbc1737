"""The clipped loss: worked out by hand, and its gradient by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.agents.training.updates.ppo import surrogate
from tests.strategies import examples, seeds

CLIP = 0.2


def test_by_hand() -> None:
    """Ratios within 0.8 … 1.2 and on both sides of it, for good and bad samples.

    ratio  advantage  r A    clipped r A  the less  counts  dL / d log p = -r A / 6
    1.5     2          3.0    2.4          2.4      no       0     good, likely enough by now
    1.5    -2         -3.0   -2.4         -3.0      yes      3/6   bad, and likelier than it was
    0.5     2          1.0    1.6          1.0      yes     -1/6   good, and less likely
    0.5    -2         -1.0   -1.6         -1.6      no       0     bad, unlikely enough by now
    1.1     1          1.1    1.1          1.1      yes     -1.1/6
    0.9    -1         -0.9   -0.9         -0.9      yes      0.9/6
                                    sum   -1.0
    """
    ratio = np.array([1.5, 1.5, 0.5, 0.5, 1.1, 0.9])
    advantage = np.array([2.0, -2.0, 2.0, -2.0, 1.0, -1.0])
    old = np.array([-700.0, -3.0, 0.0, 12.0, -1.0, -2.0])  # only differences count
    loss = surrogate(old + np.log(ratio), old, advantage, CLIP)
    assert loss.loss == pytest.approx(1 / 6)
    np.testing.assert_allclose(loss.to_log_prob, np.array([0, 3, -1, 0, -1.1, 0.9]) / 6, atol=1e-12)
    assert loss.clipped_share == pytest.approx(2 / 6)
    # Σ (r - 1 - ln r): 0.0945, 0.0945, 0.1931, 0.1931, 0.0047, 0.0054.
    assert loss.kl == pytest.approx(0.5853 / 6, abs=1e-4)


def test_at_the_old_policy_it_is_reinforce() -> None:
    advantage = np.array([2.0, -1.0, 0.0, 5.0])
    log_prob = np.array([-3.0, -50.0, 0.0, 1.0])
    loss = surrogate(log_prob, log_prob, advantage, CLIP)
    assert loss.loss == pytest.approx(-advantage.mean())
    np.testing.assert_allclose(loss.to_log_prob, -advantage / 4, atol=1e-12)
    assert (loss.clipped_share, loss.kl) == (0.0, 0.0)


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_gradient_is_the_slope(seed: int) -> None:
    rng = np.random.default_rng(seed)
    old, advantage = rng.standard_normal((2, 8))
    log_prob = old + 0.4 * rng.standard_normal(8)
    step = 1e-6

    def slope(direction: np.ndarray) -> float:
        ahead, behind = (
            surrogate(log_prob + sign * step * direction, old, advantage, CLIP).loss for sign in (1, -1)
        )
        return (ahead - behind) / (2 * step)

    expected = [slope(direction) for direction in np.eye(8)]
    got = surrogate(log_prob, old, advantage, CLIP).to_log_prob
    np.testing.assert_allclose(got, expected, atol=1e-7)


def test_ratios_out_of_all_bounds_stay_finite() -> None:
    log_prob = np.array([1e4, -1e4, 1e4, -np.inf])
    loss = surrogate(log_prob, np.zeros(4), np.array([1.0, 1.0, -1.0, 1.0]), CLIP)
    assert np.isfinite([loss.loss, loss.kl, *loss.to_log_prob]).all()
    assert loss.to_log_prob[0] == 0.0
