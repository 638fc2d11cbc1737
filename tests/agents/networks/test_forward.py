"""The forward pass in NumPy against the network that JAX trains."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.agents.inputs.config import PolicyConfig
from go_opt.agents.inputs.features import graph_features
from go_opt.agents.networks import initial_parameters
from go_opt.agents.policy.forward import forward, parameter_shapes
from go_opt.agents.policy.network import Policy
from tests.strategies import examples, random_graph, seeds, small_mcm

SMALL = PolicyConfig(
    width=16, graphsage_layers=2, attention_layers=2, num_heads=2, segment_ops=8, chunk_segments=2, rounds=2
)
CONFIGS = {
    "small": SMALL,
    "alike": replace(SMALL, superposition=False),
    "one round": replace(SMALL, rounds=1, attention_layers=0, graphsage_layers=0),
    "default": PolicyConfig(),
}


def policy_of(config: PolicyConfig) -> Policy:
    """With parameters of which none is zero."""
    rng = np.random.default_rng(0)
    parameters = initial_parameters(config, 0)
    moved = jax.tree.map(lambda leaf: leaf + 0.03 * rng.standard_normal(leaf.shape, np.float32), parameters)
    return Policy(config, moved)


POLICIES = {name: policy_of(config) for name, config in CONFIGS.items()}


def arrays_of(policy: Policy) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(policy.parameters)
    return {".".join(map(str, key)): np.asarray(leaf[...], np.float32) for key, leaf in flat}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_shapes_are_those_of_the_network(name: str) -> None:
    shapes = {key: array.shape for key, array in arrays_of(POLICIES[name]).items()}
    assert parameter_shapes(CONFIGS[name]) == shapes


@pytest.mark.parametrize("name", ["small", "alike", "one round"])
@settings(max_examples=examples(15))
@given(seed=seeds, num_ops=st.integers(1, 60), num_chips=st.integers(1, 9))
def test_both_say_the_same(name: str, seed: int, num_ops: int, num_chips: int) -> None:
    rng, policy = np.random.default_rng(seed), POLICIES[name]
    features = graph_features(random_graph(rng, num_ops), small_mcm(num_chips))
    for numpy, jax_ in zip(
        forward(policy.config, arrays_of(policy), features), policy(features), strict=True
    ):
        assert numpy.dtype == np.float64
        np.testing.assert_allclose(numpy, jax_, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(jax_).max()))


def test_the_default_network_says_the_same_of_many_segments() -> None:
    policy = POLICIES["default"]
    features = graph_features(random_graph(np.random.default_rng(1), 1_500), small_mcm(6))
    for numpy, jax_ in zip(
        forward(policy.config, arrays_of(policy), features), policy(features), strict=True
    ):
        np.testing.assert_allclose(numpy, jax_, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(jax_).max()))
