"""Graph convolutions with gates on the edges."""

from __future__ import annotations

import jax
from flax import nnx

from tests.zoo_recipes.models.layers import rows, summed


class GatedGcnLayer(nnx.Module):
    """Edges gate what their sender tells their receiver, and learn from both."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.own, self.told, self.sender, self.receiver, self.edge = (
            nnx.Linear(width, width, rngs=rngs) for _ in range(5)
        )
        self.node_norm, self.edge_norm = (
            nnx.BatchNorm(width, use_running_average=True, rngs=rngs) for _ in range(2)
        )

    def __call__(
        self, x: jax.Array, edge: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        new_edge = rows(self.sender(x), senders) + rows(self.receiver(x), receivers) + self.edge(edge)
        gate = nnx.sigmoid(new_edge)
        told = summed(gate * rows(self.told(x), senders), receivers, len(x))
        told = told / (summed(gate, receivers, len(x)) + 1e-6)
        new_x = nnx.relu(self.node_norm(self.own(x) + told))
        return x + new_x, edge + nnx.relu(self.edge_norm(new_edge))


class GatedGcn(nnx.Module):
    """Dwivedi et al., "Benchmarking Graph Neural Networks", as on CLUSTER: 16 layers of width 78."""

    _LAYERS = 16
    _WIDTH = 78

    def __init__(self, features: int, classes: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(features, self._WIDTH, rngs=rngs)
        self.edge_embedding = nnx.Linear(1, self._WIDTH, rngs=rngs)
        self.layers = nnx.List([GatedGcnLayer(self._WIDTH, rngs) for _ in range(self._LAYERS)])
        self.hidden_in = nnx.Linear(self._WIDTH, self._WIDTH // 2, rngs=rngs)
        self.hidden_out = nnx.Linear(self._WIDTH // 2, self._WIDTH // 4, rngs=rngs)
        self.classes = nnx.Linear(self._WIDTH // 4, classes, rngs=rngs)

    def __call__(
        self, nodes: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> jax.Array:
        x, edge = rows(self.embedding.embedding[...], nodes), self.edge_embedding(edges)
        for layer in self.layers:
            x, edge = layer(x, edge, senders, receivers)
        return self.classes(nnx.relu(self.hidden_out(nnx.relu(self.hidden_in(x)))))
