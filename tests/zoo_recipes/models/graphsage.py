"""Node embeddings from sampled neighbours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import lstm_cell


class LstmAggregator(nnx.Module):
    """An LSTM over a node's neighbours, in the order in which they were drawn."""

    def __init__(self, width_in: int, width: int, rngs: nnx.Rngs) -> None:
        self.gates = nnx.Linear(width_in + width, 4 * width, rngs=rngs)
        self.own = nnx.Linear(width_in, width, use_bias=False, rngs=rngs)
        self.neighbours = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.hidden = width

    def __call__(self, nodes: jax.Array, neighbours: jax.Array) -> jax.Array:
        """``nodes`` [nodes, width] and ``neighbours`` [nodes, neighbours, width]."""
        hidden = cell = jnp.zeros((len(nodes), self.hidden))
        for i in range(neighbours.shape[1]):
            with jax.named_scope(f"neighbour_{i}"):
                hidden, cell = lstm_cell(self.gates, neighbours[:, i], hidden, cell)
        return jnp.concatenate([self.own(nodes), self.neighbours(hidden)], axis=-1)


class GraphSageLstm(nnx.Module):
    """Hamilton et al., "Inductive Representation Learning on Large Graphs", as on Reddit.

    Posts of 602 features in 41 communities, two layers of width 128, twice that once own
    and neighbours' features are joined.
    """

    _FEATURES = 602
    _WIDTH = 128

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = LstmAggregator(self._FEATURES, self._WIDTH, rngs)
        self.outer = LstmAggregator(2 * self._WIDTH, self._WIDTH, rngs)
        self.classes = nnx.Linear(2 * self._WIDTH, 41, rngs=rngs)

    def __call__(self, nodes: jax.Array, near: jax.Array, far: jax.Array) -> jax.Array:
        """Features of ``nodes``, their neighbours [nodes, 25, ...] and those' [nodes * 25, 10, ...]."""
        batch, drawn, features = near.shape
        with jax.named_scope("far"):
            told = self.inner(near.reshape(batch * drawn, features), far)
        with jax.named_scope("near"):
            own = self.inner(nodes, near)
        with jax.named_scope("outer"):
            x = self.outer(nnx.relu(own), nnx.relu(told).reshape(batch, drawn, -1))
        return self.classes(x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True)))
