"""The gain over the others: against enumeration, and what its gradient is the gradient of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from go_opt.agents.training.updates.advantage import LEAST_DEVIATION, advantage, best_of_k_gain, expected_best
from go_opt.common.arrays import FloatArray

# Few different values, so that ties are common.
reward_lists = st.lists(st.integers(-3, 3).map(float) | st.floats(-5.0, 5.0), min_size=2, max_size=7)


def enumerated_gain(rewards: FloatArray, k: int) -> FloatArray:
    """Over all sets of k - 1 others."""
    gains = []
    for i in range(len(rewards)):
        others = np.delete(rewards, i)
        sets = list(combinations(others, k - 1))
        gains.append(np.mean([max(0.0, rewards[i] - max(each)) for each in sets]))
    return np.array(gains)


@given(rewards=reward_lists, k=st.integers(2, 7))
def test_gain_is_the_mean_over_all_sets_of_others(rewards: list[float], k: int) -> None:
    values, k = np.array(rewards), min(k, len(rewards))
    np.testing.assert_allclose(best_of_k_gain(values, k), enumerated_gain(values, k), atol=1e-9)


def test_gain_by_hand() -> None:
    """Rewards 1, 4, 2, and the best of 2: 4 gains 3 over 1 and 2 over 2, 2 gains 1 over 1 alone."""
    rewards = np.array([1.0, 4.0, 2.0])
    np.testing.assert_allclose(best_of_k_gain(rewards, 2), [0.0, 2.5, 0.5])
    # The best of all: only the best gains, over the second.
    np.testing.assert_allclose(best_of_k_gain(rewards, 3), [0.0, 2.0, 0.0])


@given(rewards=reward_lists)
def test_of_one_it_is_the_reward_less_the_mean_of_the_others(rewards: list[float]) -> None:
    values = np.array(rewards)
    others = (values.sum() - values) / (len(values) - 1)
    np.testing.assert_allclose(best_of_k_gain(values, 1), values - others, atol=1e-9)


def test_a_single_sample_has_nothing_to_be_compared_with() -> None:
    assert best_of_k_gain(np.array([3.0]), 1).tolist() == [0.0]
    assert advantage(np.array([3.0]), 8).tolist() == [0.0]


@given(rewards=reward_lists, k=st.integers(1, 7))
def test_advantage_has_mean_zero_and_deviation_one(rewards: list[float], k: int) -> None:
    values = advantage(np.array(rewards), k)
    assert values.mean() == pytest.approx(0.0, abs=1e-9)
    if best_of_k_gain(np.array(rewards), min(k, len(rewards))).std() > LEAST_DEVIATION:
        assert values.std() == pytest.approx(1.0)
    else:
        assert np.abs(values).max() <= np.sqrt(len(rewards))


def test_plans_that_are_alike_teach_nothing() -> None:
    assert np.abs(advantage(np.array([1.0, 1.0 + 1e-9, 1.0]), 2)).max() < 1e-6


@given(rewards=reward_lists, k=st.integers(1, 7))
def test_the_best_of_k_is_the_mean_over_all_sets(rewards: list[float], k: int) -> None:
    k = min(k, len(rewards))
    expected = np.mean([max(each) for each in combinations(rewards, k)])
    assert expected_best(np.array(rewards), k) == pytest.approx(expected, abs=1e-9)


NUM_SAMPLES = 4
LOGITS = np.array([0.3, -0.5, 0.9])
OUTCOMES = np.array([1.0, 4.0, 2.5])  # the reward of each


def shares(logits: FloatArray) -> FloatArray:
    exponentials: FloatArray = np.exp(logits)
    return exponentials / exponentials.sum()


def gradient_of_the_best(k: int) -> FloatArray:
    """Of E[max of k samples] by the logits of the policy, by central differences of the exact sum."""

    def best(logits: FloatArray) -> float:
        share = shares(logits)
        drawn = [np.array(each) for each in product(range(3), repeat=k)]
        return float(sum(np.prod(share[each]) * OUTCOMES[each].max() for each in drawn))

    step = 1e-5
    return np.array([best(LOGITS + step * e) - best(LOGITS - step * e) for e in np.eye(3)]) / (2 * step)


def expected_gradient(weigh: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """E of the mean over the samples of weight times ∇ log p: over everything that may be drawn."""
    share = shares(LOGITS)
    total = np.zeros(3)
    for each in product(range(3), repeat=NUM_SAMPLES):
        drawn = np.array(each)
        by_logit = np.eye(3)[drawn] - share
        total += np.prod(share[drawn]) * (weigh(OUTCOMES[drawn]) @ by_logit) / NUM_SAMPLES
    return total


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_gradient_of_the_best_of_k_is_unbiased(k: int) -> None:
    """Each of the k has an equal part in it."""
    got = expected_gradient(lambda rewards: best_of_k_gain(rewards, k))
    np.testing.assert_allclose(got, gradient_of_the_best(k) / k, atol=1e-8)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_centring_mixes_in_the_best_of_k_less_one(k: int) -> None:
    """The mean holds the sample's own rivalry: S - k parts of the best of k, k - 1 of k - 1."""

    def centred(rewards: FloatArray) -> FloatArray:
        gain = best_of_k_gain(rewards, k)
        return gain - gain.mean()

    best, second = gradient_of_the_best(k) / k, gradient_of_the_best(k - 1) / (k - 1)
    mixed = ((NUM_SAMPLES - k) * best + (k - 1) * second) / NUM_SAMPLES
    np.testing.assert_allclose(expected_gradient(centred), mixed, atol=1e-8)
