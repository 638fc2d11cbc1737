"""Logits as products of embeddings, and what a round tells the next."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from go_opt.agents.inputs.config import NO_CHANCE, UNIT
from go_opt.agents.networks.conditioning import Conditioning
from go_opt.agents.networks.heads import ChipRows, Proposal, expectation, placement_logits, undecided

CHIPS = jnp.array([[2.0, 0, 0, 0], [0, 4, 0, 0], [7, 7, 7, 7]])
CHIP_MASK = jnp.array([True, True, False])


def test_logits_by_hand() -> None:
    """Products 2 and 12 over the width, 4, and 0 and 1 chips apart; the third chip is padding."""
    chips = ChipRows(CHIPS, CHIP_MASK, jnp.array([-0.5, 0.5, 0.0]), jnp.array([-0.25]))
    ops, shift = jnp.array([[1.0, 3, 5, 5]]), jnp.array([-0.25])
    logits = placement_logits(ops, shift, jnp.float32(10.0), chips)
    np.testing.assert_allclose(logits, [[0.5, 3 + 10 * (1 - np.sqrt(2)), NO_CHANCE]], rtol=1e-6)


def test_expectation_by_hand() -> None:
    # Three to one for the second chip: [0.5, 3, 0, 0].
    logits = jnp.array([[0.0, np.log(3.0), NO_CHANCE]], jnp.float32)
    decided = Proposal(logits, logits, UNIT * jnp.array([0.5]), jnp.array([-1.0]), jnp.array([100.0]))
    np.testing.assert_allclose(
        expectation(decided, CHIPS), [[0.5, 3, 0, 0, np.tanh(0.5), np.tanh(-1), 1]], atol=1e-6
    )


def test_undecided_is_the_mean_of_the_real_chips() -> None:
    told = expectation(undecided(2, CHIP_MASK), CHIPS)
    np.testing.assert_allclose(told, [[1, 2, 0, 0, 0, 0, 0]] * 2)


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
