"""The forward pass in NumPy against the network that JAX trains."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.agents.decoding.decode import Outputs
from go_opt.agents.inputs.config import PolicyConfig
from go_opt.agents.inputs.features import GraphFeatures, graph_features
from go_opt.agents.inputs.padding import Bucket, pad, smallest_bucket
from go_opt.agents.networks import initial_parameters, policy_outputs
from go_opt.agents.policy.forward import WALK_WEIGHTS, parameter_shapes
from go_opt.agents.policy.network import Policy, to_ops
from go_opt.model.graph import Graph
from go_opt.solver.walk.walk import NUM_FEATURES
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
    return Policy(config, moved, rng.standard_normal(NUM_FEATURES).astype(np.float32).astype(np.float64))


POLICIES = {name: policy_of(config) for name, config in CONFIGS.items()}


def arrays_of(policy: Policy) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(policy.parameters)
    of_network = {".".join(map(str, key)): np.asarray(leaf[...], np.float32) for key, leaf in flat}
    return of_network | {WALK_WEIGHTS: policy.walk_weights.astype(np.float32)}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_shapes_are_those_of_the_network(name: str) -> None:
    shapes = {key: array.shape for key, array in arrays_of(POLICIES[name]).items()}
    assert parameter_shapes(CONFIGS[name]) == shapes


def by_jax(policy: Policy, graph: Graph, features: GraphFeatures) -> Outputs:
    """What the network says that JAX trains."""
    least = smallest_bucket(graph)
    padded = pad(features, Bucket(least.ops, max(least.edges, 2 * least.ops)))
    rows = policy_outputs(policy.config, policy.parameters, padded)
    return to_ops(features, rows, policy.walk_weights, np.zeros(graph.num_ops))


@pytest.mark.parametrize("name", ["small", "alike", "one round"])
@settings(max_examples=examples(15))
@given(seed=seeds, num_ops=st.integers(1, 60), num_chips=st.integers(1, 9))
def test_both_say_the_same(name: str, seed: int, num_ops: int, num_chips: int) -> None:
    policy = POLICIES[name]
    graph = random_graph(np.random.default_rng(seed), num_ops)
    features = graph_features(graph, small_mcm(num_chips))
    expected = by_jax(policy, graph, features)
    for got, wanted in zip(policy(features), expected, strict=True):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(wanted).max()))


def test_the_default_network_says_the_same_of_many_segments() -> None:
    policy = POLICIES["default"]
    graph = random_graph(np.random.default_rng(1), 1_500)
    features = graph_features(graph, small_mcm(6))
    for got, wanted in zip(policy(features), by_jax(policy, graph, features), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * max(1.0, np.abs(wanted).max()))
