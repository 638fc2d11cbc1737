"""Feature-wise conditioning on the graph: one set of parameters acts differently for each graph.

Parameter superposition as in GO (Zhou et al., NeurIPS 2020): layer l sees

    x ⊙ c_l(g),    g the pooled embedding of the graph,

so that training on many graphs at once does not average their policies. Here c_l is
1 + a dense layer that starts at zero: before training, all graphs are treated alike.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from go_opt.agents.networks.initialisation import ZERO_INITIALISED


class GraphEmbedding(nnx.Module):
    """One vector for the graph and its target."""

    def __init__(self, width: int, num_global: int, *, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(2 * width + num_global, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, ops: jax.Array, op_mask: jax.Array, package: jax.Array) -> jax.Array:
        """[width] of ``ops`` [N, width], ``op_mask`` [N] and ``package`` [num_global]."""
        real = op_mask[:, None]
        mean = jnp.sum(jnp.where(real, ops, 0.0), axis=0) / op_mask.sum(dtype=ops.dtype)
        largest = jnp.max(jnp.where(real, ops, -jnp.inf), axis=0)
        return nnx.relu(self.norm(self.dense(jnp.concatenate([mean, largest, package]))))


class Conditioning(nnx.Module):
    """Scales each feature of the ops by the graph embedding; the identity without superposition."""

    def __init__(self, graph_width: int, width: int, *, superposition: bool, rngs: nnx.Rngs) -> None:
        linear = partial(nnx.Linear, kernel_init=ZERO_INITIALISED, rngs=rngs)
        self.scale = linear(graph_width, width) if superposition else None

    def __call__(self, ops: jax.Array, graph: jax.Array) -> jax.Array:
        """[…, width] of ``ops`` […, width] and the embedding ``graph`` [graph_width]."""
        if self.scale is None:
            return ops
        scale = 1.0 + self.scale(graph)
        return ops * scale.reshape((1,) * (ops.ndim - 1) + scale.shape)
