"""Simulation on meshes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import Mlp, rows, summed


class NormedMlp(nnx.Module):
    """Two hidden layers as wide as the output, and layer normalisation."""

    def __init__(self, width_in: int, width: int, rngs: nnx.Rngs) -> None:
        self.mlp = Mlp((width_in, width, width, width), rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.mlp(x))


class MeshGraphNet(nnx.Module):
    """Pfaff et al., "Learning Mesh-Based Simulation with Graph Networks", as on cylinder flow.

    Encoder, 15 steps of message passing with weights of their own, decoder; width 128.
    """

    _WIDTH = 128
    _STEPS = 15

    def __init__(self, node_features: int, edge_features: int, outputs: int, rngs: nnx.Rngs) -> None:
        width = self._WIDTH
        self.nodes, self.edges = NormedMlp(node_features, width, rngs), NormedMlp(edge_features, width, rngs)
        self.edge_steps = nnx.List([NormedMlp(3 * width, width, rngs) for _ in range(self._STEPS)])
        self.node_steps = nnx.List([NormedMlp(2 * width, width, rngs) for _ in range(self._STEPS)])
        self.decoder = Mlp((width, width, width, outputs), rngs)

    def __call__(
        self, nodes: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> jax.Array:
        x, edge = self.nodes(nodes), self.edges(edges)
        for edge_step, node_step in zip(self.edge_steps, self.node_steps, strict=True):
            ends = [rows(x, senders), rows(x, receivers), edge]
            message = edge_step(jnp.concatenate(ends, axis=-1))
            told = summed(message, receivers, len(x))
            x = x + node_step(jnp.concatenate([x, told], axis=-1))
            edge = edge + message
        return self.decoder(x)
