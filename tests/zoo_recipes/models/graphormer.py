"""A transformer on molecules."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import rows, softmax


class GraphormerLayer(nnx.Module):
    """Attention with a bias for each pair of atoms, then a feed-forward network; normalised first."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.query, self.key, self.value, self.out, self.inner_in, self.inner_out = (
            nnx.Linear(width, width, rngs=rngs) for _ in range(6)
        )
        self.attention_norm, self.inner_norm = (nnx.LayerNorm(width, rngs=rngs) for _ in range(2))

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        x = x + self.out(self._attend(self.attention_norm(x), bias))
        return x + self.inner_out(nnx.gelu(self.inner_in(self.inner_norm(x)), approximate=False))

    def _attend(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        batch, count, width = x.shape
        query, key, value = (
            part(x).reshape(batch, count, self.heads, -1) for part in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(width // self.heads) + bias
        return jnp.einsum("bhqk,bkhd->bqhd", softmax(scores), value).reshape(batch, count, width)


class Graphormer(nnx.Module):
    """Ying et al., "Do Transformers Really Perform Badly for Graph Representation?": the base model.

    12 layers of width 768, 32 heads (47 M weights on PCQM4M). Atoms are embedded with their
    degrees; pairs have a bias by distance and by the bonds, up to five, between them.
    """

    _WIDTH = 768
    _HEADS = 32
    _LAYERS = 12
    _HOPS = 5
    _CODES = 512 * 9  # values of nine features of atoms
    _BOND_CODES = 512 * 3

    def __init__(self, rngs: nnx.Rngs) -> None:
        width, heads = self._WIDTH, self._HEADS
        self.atoms = nnx.Embed(self._CODES + 1, width, rngs=rngs)
        self.degrees_in, self.degrees_out = (nnx.Embed(512, width, rngs=rngs) for _ in range(2))
        self.distances = nnx.Embed(512, heads, rngs=rngs)
        self.bonds = nnx.Embed(self._BOND_CODES + 1, heads, rngs=rngs)
        self.hops = nnx.Param(jnp.zeros((self._HOPS, heads, heads)))
        self.graph = nnx.Param(jnp.zeros((1, 1, width)))
        self.graph_distance = nnx.Param(jnp.zeros(heads))
        self.layers = nnx.List([GraphormerLayer(width, heads, rngs) for _ in range(self._LAYERS)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.out = nnx.Linear(width, 1, use_bias=False, rngs=rngs)

    def __call__(
        self, atoms: jax.Array, degrees: jax.Array, distances: jax.Array, bonds: jax.Array
    ) -> jax.Array:
        """``atoms`` [batch, atoms, 9], ``distances`` [batch, atoms, atoms], ``bonds`` [..., hops, 3]."""
        x = jnp.sum(rows(self.atoms.embedding[...], atoms), axis=2)
        # Bonds have no direction: both degrees are the same.
        for table in (self.degrees_in, self.degrees_out):
            x = x + rows(table.embedding[...], degrees)
        graph = jnp.broadcast_to(self.graph[...], (len(x), 1, self._WIDTH))
        x = jnp.concatenate([graph, x], axis=1)
        bias = self._bias(distances, bonds)
        for layer in self.layers:
            x = layer(x, bias)
        graph = self.norm(x)[:, 0]
        return self.out(nnx.gelu(self.hidden(graph), approximate=False))

    def _bias(self, distances: jax.Array, bonds: jax.Array) -> jax.Array:
        """[batch, heads, 1 + atoms, 1 + atoms], with a learned row and column for the graph's node."""
        along = jnp.mean(rows(self.bonds.embedding[...], bonds), axis=4)
        along = jnp.einsum("bijph,phg->bijg", along, self.hops[...])
        length = jnp.maximum(distances, 1).astype(jnp.float32)[..., None]
        bias = rows(self.distances.embedding[...], distances) + along / length
        batch, count, _, heads = bias.shape
        column = jnp.broadcast_to(self.graph_distance[...], (batch, count, 1, heads))
        row = jnp.broadcast_to(self.graph_distance[...], (batch, 1, count + 1, heads))
        bias = jnp.concatenate([row, jnp.concatenate([column, bias], axis=2)], axis=1)
        return bias.transpose(0, 3, 1, 2)
