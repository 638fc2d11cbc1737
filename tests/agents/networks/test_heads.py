"""What a round tells the next, and how the graph conditions a layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from go_opt.agents.networks import Conditioning, Proposal, expectation, undecided


def test_expectation_by_hand() -> None:
    decided = Proposal(jnp.array([-1.0]), jnp.array([100.0]))
    np.testing.assert_allclose(expectation(decided), [[np.tanh(-1), 1]], atol=1e-6)
    np.testing.assert_array_equal(expectation(undecided(2)), np.zeros((2, 2)))


def test_conditioning_scales_features_and_begins_at_one() -> None:
    layer = Conditioning(2, 3, superposition=True, rngs=nnx.Rngs(0))
    assert layer.scale is not None
    ops, graph = jnp.array([[1.0, 2, 3]]), jnp.array([1.0, 10])
    np.testing.assert_array_equal(layer(ops, graph), ops)
    layer.scale.kernel[...] = jnp.array([[1.0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(layer(ops, graph), [[2, 22, 3]])


def test_without_superposition_features_are_left_as_they_are() -> None:
    layer = Conditioning(2, 3, superposition=False, rngs=nnx.Rngs(0))
    assert not jax.tree.leaves(nnx.state(layer, nnx.Param))
    ops = jnp.array([[1.0, 2, 3]])
    np.testing.assert_array_equal(layer(ops, jnp.array([1.0, 10])), ops)
