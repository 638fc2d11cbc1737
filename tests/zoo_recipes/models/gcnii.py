"""Deep graph convolutions."""

from __future__ import annotations

import math

import jax
from flax import nnx

from tests.zoo_recipes.models.layers import rows, summed


class Gcn2(nnx.Module):
    """Chen et al., "Simple and Deep Graph Convolutional Networks" (GCNII), as on Cora: 64 layers of width 64.

    Each layer mixes the neighbours' mean with the first layer's features, and its product
    with the identity, less and less of it as depth grows.
    """

    _LAYERS = 64
    _WIDTH = 64
    _INITIAL = 0.1  # share of the first layer's features
    _DECAY = 0.5

    def __init__(self, features: int, classes: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Linear(features, self._WIDTH, rngs=rngs)
        self.layers = nnx.List(
            [nnx.Linear(self._WIDTH, self._WIDTH, use_bias=False, rngs=rngs) for _ in range(self._LAYERS)]
        )
        self.classes = nnx.Linear(self._WIDTH, classes, rngs=rngs)

    def __call__(
        self, nodes: jax.Array, edge_weights: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> jax.Array:
        """``edge_weights`` [edges, 1] are those of the normalised adjacency, self-loops included."""
        x = first = nnx.relu(self.embedding(nodes))
        start = self._INITIAL * first
        for number, layer in enumerate(self.layers, start=1):
            mean = summed(rows(x, senders) * edge_weights, receivers, len(nodes))
            mixed = (1.0 - self._INITIAL) * mean + start
            share = math.log(self._DECAY / number + 1.0)
            x = nnx.relu((1.0 - share) * mixed + share * layer(mixed))
        return nnx.log_softmax(self.classes(x))
