"""Segmented attention against its twin, its reach, and the gradient that stops at the cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from go_opt.agents.networks import AttentionSizes, SegmentedAttention, by_segments
from tests.agents.networks import numpy_twin

SEGMENT = 4


def layer() -> SegmentedAttention:
    return SegmentedAttention(6, 8, 2, rngs=nnx.Rngs(1))


def attend(attention: SegmentedAttention, ops: jax.Array, op_mask: jax.Array, chunk: int = 2) -> jax.Array:
    sizes = AttentionSizes(num_heads=2, segment_ops=SEGMENT, chunk_segments=chunk)
    return by_segments(attention, ops, op_mask, sizes)


def draw(num_ops: int, num_real: int) -> tuple[np.ndarray, np.ndarray]:
    ops = np.random.default_rng(2).standard_normal((num_ops, 6)).astype(np.float32)
    return ops, np.arange(num_ops) < num_real


@pytest.mark.parametrize("num_real", [1, 4, 5, 16, 30, 32])
@pytest.mark.parametrize("chunk_segments", [1, 2, 64])
def test_attention_is_that_of_its_twin(num_real: int, chunk_segments: int) -> None:
    ops, op_mask = draw(32, num_real)
    attention = layer()
    weights = {
        name: np.asarray(getattr(attention, name).kernel[...]) for name in ("query", "key", "value", "output")
    }
    expected = numpy_twin.segmented_attention(
        ops,
        op_mask,
        **weights,
        bias=np.asarray(attention.output.bias[...]),
        num_heads=2,
        segment_ops=SEGMENT,
    )
    got = attend(attention, jnp.asarray(ops), jnp.asarray(op_mask), chunk_segments)
    np.testing.assert_allclose(got[:num_real], expected[:num_real], atol=1e-5)
    assert np.isfinite(got).all()


def test_an_op_sees_its_segment_and_the_one_before() -> None:
    ops, op_mask = draw(16, 16)
    # [N, N] how op i's output changes as op j's input does.
    graphdef, state = nnx.split(layer())
    attention = jax.jit(lambda ops: attend(nnx.merge(graphdef, state), ops, jnp.asarray(op_mask)))
    moved = [np.asarray(attention(ops * (1 + np.eye(16)[j])[:, None].astype(np.float32))) for j in range(16)]
    before = np.asarray(attention(ops))
    sees = np.array([np.abs(after - before).max(axis=1) > 0 for after in moved]).T
    segment = np.arange(16) // SEGMENT
    gap = segment[:, None] - segment[None, :]
    np.testing.assert_array_equal(sees, (gap == 0) | (gap == 1))


def test_no_gradient_passes_through_the_cached_segment() -> None:
    ops, op_mask = draw(16, 16)
    attention = layer()

    def of_third_segment(ops: jax.Array) -> jax.Array:
        return jnp.sum(attend(attention, ops, jnp.asarray(op_mask))[2 * SEGMENT : 3 * SEGMENT] ** 2)

    by_op = np.abs(np.asarray(jax.grad(of_third_segment)(jnp.asarray(ops)))).max(axis=1)
    np.testing.assert_array_equal(by_op > 0, np.arange(16) // SEGMENT == 2)


def test_the_cache_still_teaches_the_keys() -> None:
    # Only op 4, the first of the second segment, is asked, and all it sees but itself is cached:
    # alone in its segment its keys would not matter, for it would attend to itself whatever they are.
    ops, op_mask = draw(8, 5)
    graphdef, state = nnx.split(layer())

    def of_op_4(state: nnx.State, op_mask: jax.Array) -> jax.Array:
        return jnp.sum(attend(nnx.merge(graphdef, state), jnp.asarray(ops), op_mask)[4] ** 2)

    with_cache = jax.grad(of_op_4)(state, jnp.asarray(op_mask))
    alone = jax.grad(of_op_4)(state, jnp.arange(8) == 4)
    assert np.abs(np.asarray(with_cache["key"]["kernel"][...])).max() > 1e-4
    np.testing.assert_allclose(alone["key"]["kernel"][...], 0.0, atol=1e-6)
