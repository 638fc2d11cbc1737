"""The network's side: what an update follows and leaves alone, on any number of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.inputs.padding import Bucket
from go_opt.agents.training.problems.rollout import Settings
from go_opt.agents.training.updates.learner import Descent, Learner, learning_rate
from go_opt.common.arrays import FloatArray
from go_opt.errors import InvalidInputError
from tests.agents.training.small import (
    BUCKET,
    CONFIG,
    SETTINGS,
    gradient_of,
    random_outputs,
    small_case,
    small_learner,
    trained_parameters,
    trained_policy,
)

CASES = [small_case(0), small_case(1)]
REPOSITORY = Path(__file__).resolve().parents[3]


def outputs_gradient(scales: tuple[float, float]) -> list[Outputs]:
    """A gradient of each case's outputs, larger or smaller."""
    return [
        random_outputs(np.random.default_rng(i), of, scale)
        for i, (of, scale) in enumerate(zip(CASES, scales, strict=True))
    ]


def flat(parameters: nnx.State) -> FloatArray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(parameters)])


def followed(gradients: list[Outputs], bucket: Bucket = BUCKET) -> tuple[FloatArray, float]:
    """The gradient of the parameters that an update follows, and the norm it reports."""
    learner = small_learner()
    state, norm = learner.update(learner.start(trained_policy()), CASES, bucket, gradients)
    return flat(gradient_of(state)), norm


def test_outputs_are_those_of_the_policy() -> None:
    learner = small_learner()
    state = learner.start(trained_policy())
    policy = learner.policy(state)
    for of, said in zip(CASES, learner.outputs(state, CASES, BUCKET), strict=True):
        for got, expected in zip(said, policy(of.features), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_each_graph_has_the_same_share() -> None:
    """The mean of both graphs' gradients, each of norm one; the norm reported is the mean before."""
    gradients = outputs_gradient((1.0, 1.0))
    none = outputs_gradient((0.0, 0.0))
    (first, first_norm), (second, second_norm) = (
        followed([gradients[0], none[1]]),
        followed([none[0], gradients[1]]),
    )
    for half in (first, second):
        assert np.linalg.norm(half) == pytest.approx(0.5, rel=1e-4)
    large = Outputs(*(5.0 * numbers for numbers in gradients[0]))
    both, norm = followed([large, gradients[1]])
    np.testing.assert_allclose(both, first + second, atol=1e-5 * np.abs(both).max())
    assert norm == pytest.approx(5.0 * first_norm + second_norm, rel=1e-4)


def test_nothing_to_learn_is_no_step() -> None:
    step, norm = followed(outputs_gradient((0.0, 0.0)))
    assert norm == 0.0
    assert not step.any()


def test_the_padding_has_no_part_in_it() -> None:
    gradients = outputs_gradient((1.0, 1.0))
    expected, expected_norm = followed(gradients)
    got, norm = followed(gradients, Bucket(256, 256))
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())
    assert norm == pytest.approx(expected_norm, rel=1e-5)


def test_what_was_handed_out_does_not_change() -> None:
    """The parameters that training started from, and policies on the way."""
    learner, parameters = small_learner(), trained_parameters()
    state = learner.start(replace(trained_policy(), parameters=parameters))
    policy = learner.policy(state)
    learner.update(state, CASES, BUCKET, outputs_gradient((1.0, 1.0)))
    np.testing.assert_array_equal(flat(parameters), flat(trained_parameters()))
    np.testing.assert_array_equal(flat(policy.parameters), flat(trained_parameters()))


def test_the_rate_rises_then_falls() -> None:
    """Thirds of it, all of it, then to the last."""
    descent = Descent(0.3, 0.1, warm_up_updates=2, updates=6)
    rates = [float(learning_rate(descent, np.array(update))) for update in range(8)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.25, 0.2, 0.15, 0.1, 0.1], rel=1e-6)


def save_update(path: str) -> None:
    """What two devices make of the update; runs in a process of its own."""
    assert len(jax.devices()) == 2
    learner = small_learner()
    said = learner.outputs(learner.start(trained_policy()), CASES, BUCKET)
    step, norm = followed(outputs_gradient((1.0, 1.0)))
    np.savez(path, step=step, norm=norm, **{f"{i}": numbers for i, numbers in enumerate(said[0] + said[1])})
    with pytest.raises(InvalidInputError, match="graphs_per_step is 3"):
        Learner(CONFIG, replace(SETTINGS, graphs_per_step=3), 1)


def test_two_devices_do_what_one_does(tmp_path: Path) -> None:
    path = tmp_path / "update.npz"
    subprocess.run(
        [sys.executable, "-c", f"from {__name__} import save_update; save_update({str(path)!r})"],
        check=True,
        cwd=REPOSITORY,
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
        },
    )
    learner = small_learner()
    said = learner.outputs(learner.start(trained_policy()), CASES, BUCKET)
    step, norm = followed(outputs_gradient((1.0, 1.0)))
    with np.load(path) as saved:
        np.testing.assert_allclose(saved["step"], step, atol=1e-5 * np.abs(step).max())
        assert float(saved["norm"]) == pytest.approx(norm, rel=1e-5)
        for i, numbers in enumerate(said[0] + said[1]):
            np.testing.assert_allclose(saved[str(i)], numbers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"graphs_per_step": 0}, "graphs_per_step"), ({"lessons": ()}, "lessons")],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Settings(**changes)  # type: ignore[arg-type]
    assert caught.value.field == field
