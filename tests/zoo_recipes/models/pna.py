"""Several aggregators at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import Mlp, rows, summed


class Tower(nnx.Module):
    """Messages of one part of the width: four aggregators, each at three scales of the degree."""

    def __init__(self, width_in: int, edge_width: int, width: int, rngs: nnx.Rngs) -> None:
        self.message = nnx.Linear(2 * width_in + edge_width, width_in, rngs=rngs)
        self.update = nnx.Linear(13 * width_in, width, rngs=rngs)

    def __call__(
        self, x: jax.Array, joined: jax.Array, receivers: jax.Array, degrees: jax.Array, scale: jax.Array
    ) -> jax.Array:
        """``joined`` holds both ends of an edge and its own features; ``scale`` grows with the degree."""
        message = self.message(joined)
        mean = summed(message, receivers, len(x)) / degrees
        variance = summed(message * message, receivers, len(x)) / degrees - mean * mean
        start = jnp.zeros_like(x)
        lowest = start.at[receivers].min(message, mode="promise_in_bounds", wrap_negative_indices=False)
        highest = start.at[receivers].max(message, mode="promise_in_bounds", wrap_negative_indices=False)
        spread = jnp.sqrt(nnx.relu(variance) + 1e-5)
        told = jnp.concatenate([mean, lowest, highest, spread], axis=-1)
        return self.update(jnp.concatenate([x, told, told * scale, told / scale], axis=-1))


class Pna(nnx.Module):
    """Corso et al., "Principal Neighbourhood Aggregation for Graph Nets", as on ZINC.

    Four layers of width 75 in five towers, bonds of width 50, as in the authors' PyTorch Geometric code.
    """

    _WIDTH = 75
    _TOWERS = 5
    _LAYERS = 4
    _EDGE_WIDTH = 50

    def __init__(self, batch: int, rngs: nnx.Rngs) -> None:
        self.batch, width = batch, self._WIDTH
        self.atoms = nnx.Embed(21, width, rngs=rngs)
        self.bonds = nnx.Embed(4, self._EDGE_WIDTH, rngs=rngs)
        self.edges = nnx.List([nnx.Linear(self._EDGE_WIDTH, width, rngs=rngs) for _ in range(self._LAYERS)])
        self.towers = nnx.List(
            [
                nnx.List([Tower(width, width, width // self._TOWERS, rngs) for _ in range(self._TOWERS)])
                for _ in range(self._LAYERS)
            ]
        )
        self.mixes = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(self._LAYERS)])
        self.norms = nnx.List(
            [nnx.BatchNorm(width, use_running_average=True, rngs=rngs) for _ in range(self._LAYERS)]
        )
        self.out = Mlp((width, 50, 25, 1), rngs)

    def __call__(
        self,
        atoms: jax.Array,
        bonds: jax.Array,
        senders: jax.Array,
        receivers: jax.Array,
        degrees: jax.Array,
        molecules: jax.Array,
    ) -> jax.Array:
        """``degrees`` [atoms, 1]; ``molecules`` is the molecule of each atom, of ``batch`` ones."""
        x, bond = rows(self.atoms.embedding[...], atoms), rows(self.bonds.embedding[...], bonds)
        scale = jnp.log(degrees + 1.0)
        layers = zip(self.edges, self.towers, self.mixes, self.norms, strict=True)
        for edge_layer, towers, mix, norm in layers:
            edge = edge_layer(bond)
            joined = jnp.concatenate([rows(x, receivers), rows(x, senders), edge], axis=-1)
            told = [tower(x, joined, receivers, degrees, scale) for tower in towers]
            x = nnx.relu(norm(mix(jnp.concatenate(told, axis=-1))))
        return self.out(summed(x, molecules, self.batch))
