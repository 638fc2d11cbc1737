"""The first parameters: repeatable, of the right size, without a preference."""

from __future__ import annotations

import numpy as np
import pytest
from flax import nnx

from go_opt.agents.inputs.features import graph_features
from go_opt.agents.inputs.padding import pad, smallest_bucket
from go_opt.agents.networks import PolicyConfig, initial_parameters, policy_outputs
from tests.strategies import small_mcm, toy_graph


def by_path(parameters: nnx.State) -> dict[tuple, np.ndarray]:
    return {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(parameters)}


def test_same_seed_same_parameters() -> None:
    first, again, other = (by_path(initial_parameters(PolicyConfig(), seed)) for seed in (1, 1, 2))
    assert all((first[path] == again[path]).all() for path in first)
    assert any((first[path] != other[path]).any() for path in first)


def test_the_default_network_has_a_fifth_of_a_million_parameters() -> None:
    leaves = by_path(initial_parameters(PolicyConfig(), 0)).values()
    assert all(leaf.dtype == np.float32 for leaf in leaves)
    assert 150_000 < sum(leaf.size for leaf in leaves) < 250_000


def test_kernels_keep_the_variance_of_what_they_are_fed() -> None:
    kernels = by_path(initial_parameters(PolicyConfig(), 0))
    widen = kernels["blocks", 0, "widen", "kernel"]
    assert widen.std() == pytest.approx(1 / np.sqrt(PolicyConfig().width), rel=0.03)
    assert not kernels["blocks", 0, "condition", "scale", "kernel"].any()
    assert (kernels["heads", "norm", "scale"] == 1).all()


def test_the_first_policy_prefers_nothing() -> None:
    features = graph_features(toy_graph(), small_mcm(3))
    padded = pad(features, smallest_bucket(toy_graph()))
    config = PolicyConfig(width=16, graphsage_layers=1, attention_layers=1, num_heads=2)
    output = policy_outputs(config, initial_parameters(config, 0), padded)
    for zeros in output:
        np.testing.assert_array_equal(zeros, 0.0)
