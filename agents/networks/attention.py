"""Segmented recurrent attention: cost linear in the number of ops.

Dai et al., "Transformer-XL: attentive language models beyond a fixed-length context", ACL
2019, section 3.2: with the input h_s of segment s and SG the stopped gradient,

    q = h_s W_q,    k, v = [SG(h_{s-1}), h_s] W_k, W_v,    out = softmax(q kᵀ / √d) v W_o,

without positional embeddings, as in GO (Zhou et al., "Transferable graph optimizers for ML
compilers", NeurIPS 2020): the features of ops contain their positions. A segment's
memory is its predecessor's *input* to the layer, so all segments are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from go_opt.agents.inputs.config import NO_CHANCE

# (ops [C, S, …], memory [C, S, …], mask of both [C, 2 S]) -> [C, S, …]
SegmentLayer = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes that all attention layers of a network share."""

    num_heads: int
    segment_ops: int  # S
    chunk_segments: int  # C, number of segments computed at a time


class SegmentedAttention(nnx.Module):
    """Each op of a segment attends to the segment and to its memory."""

    def __init__(self, in_features: int, width: int, num_heads: int, *, rngs: nnx.Rngs) -> None:
        self.num_heads = num_heads
        # No biases: a bias on the keys would shift all scores of a query equally.
        self.query = nnx.Linear(in_features, width, use_bias=False, rngs=rngs)
        self.key = nnx.Linear(in_features, width, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(in_features, width, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, ops: jax.Array, memory: jax.Array, mask: jax.Array) -> jax.Array:
        """[C, S, width] of ``ops`` and ``memory`` [C, S, in_features] and the ``mask`` [C, 2 S] of both."""
        seen = jnp.concatenate([memory, ops], axis=1)
        query, key, value = (
            self._heads(self.query(ops)),
            self._heads(self.key(seen)),
            self._heads(self.value(seen)),
        )
        scores = jnp.einsum("cshd,cthd->chst", query, key) / jnp.sqrt(jnp.float32(query.shape[-1]))
        scores = jnp.where(mask[:, None, None, :], scores, NO_CHANCE)
        attended = jnp.einsum("chst,cthd->cshd", nnx.softmax(scores), value)
        return self.output(attended.reshape(*ops.shape[:2], -1))

    def _heads(self, rows: jax.Array) -> jax.Array:
        """[C, T, H, width of a head] of [C, T, width]."""
        return rows.reshape(*rows.shape[:2], self.num_heads, -1)


def by_segments(layer: SegmentLayer, ops: jax.Array, op_mask: jax.Array, sizes: AttentionSizes) -> jax.Array:
    """[N, …] ``layer`` on ``ops`` [N, …]; the memory is the previous segment, empty for the first.

    Segments are computed in chunks, which the backward pass recomputes. So only the layer's
    input is stored, and a chunk stays in the processor's cache.
    """
    segments = ops.reshape(-1, sizes.segment_ops, ops.shape[-1])
    mask = op_mask.reshape(-1, sizes.segment_ops)
    memory = _shifted(jax.lax.stop_gradient(segments))
    both_masks = jnp.concatenate([_shifted(mask), mask], axis=1)
    size = min(sizes.chunk_segments, len(segments))
    chunks = [x.reshape(-1, size, *x.shape[1:]) for x in (segments, memory, both_masks)]
    outputs: jax.Array = jax.lax.map(lambda chunk: jax.checkpoint(layer)(*chunk), tuple(chunks))
    return outputs.reshape(len(ops), -1)


def _shifted(segments: jax.Array) -> jax.Array:
    """[G, …] the segments shifted by one; the first becomes zero."""
    return jnp.concatenate([jnp.zeros_like(segments[:1]), segments[:-1]])
