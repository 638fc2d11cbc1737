"""Graph attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import rows, summed, total


class Head(nnx.Module):
    """One head: a node attends to its neighbours, along the edges."""

    def __init__(self, width_in: int, width: int, rngs: nnx.Rngs) -> None:
        self.features = nnx.Linear(width_in, width, use_bias=False, rngs=rngs)
        self.sender, self.receiver = (nnx.Linear(width, 1, rngs=rngs) for _ in range(2))
        self.bias = nnx.Param(jnp.zeros(width))

    def __call__(self, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        features = self.features(x)
        scores = rows(self.sender(features), senders) + rows(self.receiver(features), receivers)
        scores = jnp.exp(jnp.maximum(scores, 0.2 * scores))
        shares = scores / rows(summed(scores, receivers, len(x)), receivers)
        return summed(shares * rows(features, senders), receivers, len(x)) + self.bias[...]


class Gat(nnx.Module):
    """Velickovic et al., "Graph Attention Networks", as on PPI: three layers.

    Two of four heads of width 256, joined, the second with a residual connection; six
    heads over the 121 labels, averaged. Heads are ops of their own, as in the authors' code.
    """

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.into = nnx.List([Head(50, 256, rngs) for _ in range(4)])
        self.inner = nnx.List([Head(1024, 256, rngs) for _ in range(4)])
        self.out = nnx.List([Head(1024, 121, rngs) for _ in range(6)])

    def __call__(self, nodes: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        """Edges include each node's to itself."""
        x = _elu(jnp.concatenate([head(nodes, senders, receivers) for head in self.into], axis=-1))
        inner = [head(x, senders, receivers) for head in self.inner]
        x = _elu(jnp.concatenate(inner, axis=-1) + x)
        return nnx.sigmoid(total(head(x, senders, receivers) for head in self.out) / len(self.out))


def _elu(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0.0, x, jnp.exp(x) - 1.0)
