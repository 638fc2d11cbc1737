"""Chips chosen unit by unit: by hand, across words of a set, and the gradient as a slope."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.solver.propagation.choices import Choices, choice_gradient, choice_log_prob
from go_opt.solver.propagation.propagators.domains import pack_chips


def test_by_hand() -> None:
    """70 chips. Unit 0 takes chip 69 of {1, 69}, weights 1 : 3; unit 1 chip 2 of three without mass."""
    log_probs = np.zeros((2, 70))
    log_probs[0, [0, 69]] = np.log([100.0, 3.0])
    log_probs[1, :3] = -np.inf
    is_open = np.zeros((1, 2, 70), np.bool_)
    is_open[0, 0, [1, 69]] = True
    is_open[0, 1, :3] = True
    choices = Choices(log_probs, np.array([[69, 2]], np.int32), pack_chips(is_open))
    log_prob, log_mass = choice_log_prob(choices)
    assert np.exp(log_prob) == pytest.approx([3 / 4 * 1 / 3])
    assert np.exp(log_mass[0]) == pytest.approx([4.0, 0.0])
    gradient = choice_gradient(choices, log_mass, np.array([8.0]))
    expected = np.zeros((2, 70))
    expected[0, [1, 69]] = -2.0, 2.0
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradient_is_the_slope(scale: float) -> None:
    rng = np.random.default_rng(0)
    log_probs = rng.standard_normal((9, 5)) * scale
    is_open = rng.random((4, 9, 5)) < 0.6
    is_open[:, :, 3] = True
    drawn = np.where(is_open, rng.random(is_open.shape), -1.0).argmax(axis=2).astype(np.int32)
    weight, along = rng.standard_normal(4), rng.standard_normal((9, 5))

    def value(step: float) -> float:
        moved = Choices(log_probs + step * along, drawn, pack_chips(is_open))
        return float(weight @ choice_log_prob(moved)[0])

    choices = Choices(log_probs, drawn, pack_chips(is_open))
    gradient = choice_gradient(choices, choice_log_prob(choices)[1], weight)
    assert (gradient * along).sum() == pytest.approx((value(1e-5) - value(-1e-5)) / 2e-5, abs=1e-4)
