"""Equivariant message passing on molecules."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import rows, summed


class SiluMlp(nnx.Module):
    """Two linear layers with SiLU between them, and behind them where asked."""

    def __init__(self, widths: tuple[int, int, int], rngs: nnx.Rngs, *, ends_in_silu: bool = False) -> None:
        self.into, self.out = (nnx.Linear(before, after, rngs=rngs) for before, after in pairwise(widths))
        self.ends_in_silu = ends_in_silu

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.out(nnx.silu(self.into(x)))
        return nnx.silu(x) if self.ends_in_silu else x


class EquivariantLayer(nnx.Module):
    """Messages from features and distances; each has a learned gate. They move the atoms, too."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.edge = SiluMlp((2 * width + 1, width, width), rngs, ends_in_silu=True)
        self.gate = nnx.Linear(width, 1, rngs=rngs)
        self.node = SiluMlp((2 * width, width, width), rngs)
        self.move = SiluMlp((width, width, 1), rngs)

    def __call__(
        self, x: jax.Array, positions: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        offsets = rows(positions, receivers) - rows(positions, senders)
        squares = jnp.sum(offsets * offsets, axis=-1, keepdims=True)
        message = self.edge(jnp.concatenate([rows(x, receivers), rows(x, senders), squares], axis=-1))
        message = message * nnx.sigmoid(self.gate(message))
        positions = positions + summed(offsets * self.move(message), receivers, len(x))
        told = summed(message, receivers, len(x))
        return x + self.node(jnp.concatenate([x, told], axis=-1)), positions


class Egnn(nnx.Module):
    """Satorras et al., "E(n) Equivariant Graph Neural Networks": seven layers of width 128.

    The sizes of its QM9 model, with the update of the positions that its dynamics need.
    """

    _WIDTH = 128
    _LAYERS = 7

    def __init__(self, features: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Linear(features, self._WIDTH, rngs=rngs)
        self.layers = nnx.List([EquivariantLayer(self._WIDTH, rngs) for _ in range(self._LAYERS)])
        self.out = SiluMlp((self._WIDTH, self._WIDTH, self._WIDTH), rngs)

    def __call__(
        self, atoms: jax.Array, positions: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        x = self.embedding(atoms)
        for layer in self.layers:
            x, positions = layer(x, positions, senders, receivers)
        return self.out(x), positions
