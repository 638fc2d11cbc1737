"""A transformer with a memory: each segment attends to the one before it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import Mlp, rows, softmax


class RelativeLayer(nnx.Module):
    """Attention with relative positions over memory and segment, then a feed-forward network."""

    def __init__(self, width: int, heads: int, inner_width: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.query, self.position, self.out = (
            nnx.Linear(width, width, use_bias=False, rngs=rngs) for _ in range(3)
        )
        self.key_value = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.content_bias, self.position_bias = (
            nnx.Param(jnp.zeros((heads, width // heads))) for _ in range(2)
        )
        self.attention_norm, self.inner_norm = (nnx.LayerNorm(width, rngs=rngs) for _ in range(2))
        self.inner = Mlp((width, inner_width, width), rngs)

    def __call__(self, x: jax.Array, memory: jax.Array | None) -> jax.Array:
        seen = x if memory is None else jnp.concatenate([memory, x])
        x = self.attention_norm(x + self.out(self._attend(x, seen)))
        return self.inner_norm(x + self.inner(x))

    def _attend(self, x: jax.Array, seen: jax.Array) -> jax.Array:
        length, width = x.shape
        query = self._by_head(self.query(x))
        key, value = (self._by_head(part) for part in jnp.split(self.key_value(seen), 2, axis=-1))
        # Depends on no input: a compiler stores the product instead of the weight.
        position = self._by_head(self.position(_sinusoids(len(seen), width)))
        content = jnp.einsum("qhd,khd->hqk", query + self.content_bias[...], key)
        distance = jnp.einsum("qhd,khd->hqk", query + self.position_bias[...], position)
        scores = (content + _shifted(distance)) / math.sqrt(width // self.heads)
        visible = jnp.tril(jnp.ones((length, len(seen)), bool), len(seen) - length)
        scores = jnp.where(visible, scores, -jnp.inf)
        return jnp.einsum("hqk,khd->qhd", softmax(scores), value).reshape(length, width)

    def _by_head(self, x: jax.Array) -> jax.Array:
        return x.reshape(len(x), self.heads, -1)


class TransformerXl(nnx.Module):
    """Dai et al., "Transformer-XL", with the sizes of its 12-layer enwik8 model at any depth.

    Width 512, 8 heads, inner width 2048, 204 characters. All segments of a text are
    unrolled; the first one has no memory.
    """

    _WIDTH = 512
    _CHARACTERS = 204

    def __init__(self, layers: int, segment: int, rngs: nnx.Rngs) -> None:
        self.segment = segment
        self.embedding = nnx.Embed(self._CHARACTERS, self._WIDTH, rngs=rngs)
        self.layers = nnx.List([RelativeLayer(self._WIDTH, 8, 2048, rngs) for _ in range(layers)])
        self.bias = nnx.Param(jnp.zeros(self._CHARACTERS))

    def __call__(self, characters: jax.Array) -> jax.Array:
        table = self.embedding.embedding[...]
        memories: list[jax.Array | None] = [None] * len(self.layers)
        logits = []
        for number, segment in enumerate(characters.reshape(-1, self.segment)):
            x = rows(table, segment) * math.sqrt(self._WIDTH)
            for i, layer in enumerate(self.layers):
                with jax.named_scope(f"segment_{number}/layer_{i}"):
                    memory, memories[i] = memories[i], x
                    x = layer(x, memory)
            logits.append(x @ table.T + self.bias[...])
        return jnp.concatenate(logits)


def _sinusoids(length: int, width: int) -> jax.Array:
    """[length, width] of the distances ``length - 1`` to 0."""
    rates = 10_000.0 ** -(jnp.arange(0, width, 2) / width)
    angles = jnp.arange(length - 1, -1, -1)[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _shifted(scores: jax.Array) -> jax.Array:
    """From scores by distance to scores by key: row i moves left by ``queries - 1 - i``."""
    heads, queries, keys = scores.shape
    padded = jnp.pad(scores, ((0, 0), (0, 0), (1, 0))).reshape(heads, keys + 1, queries)
    return padded[:, 1:].reshape(heads, queries, keys)
