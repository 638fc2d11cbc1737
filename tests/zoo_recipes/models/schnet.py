"""Continuous-filter convolutions on molecules."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import rows, summed


class Interaction(nnx.Module):
    """A convolution over the atoms nearby, with filters that follow from the distance."""

    def __init__(self, width: int, gaussians: int, rngs: nnx.Rngs) -> None:
        self.filter_in = nnx.Linear(gaussians, width, rngs=rngs)
        self.filter_out, self.inner, self.out = (nnx.Linear(width, width, rngs=rngs) for _ in range(3))
        self.into = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(
        self, x: jax.Array, basis: jax.Array, cutoff: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> jax.Array:
        filters = self.filter_out(_shifted_softplus(self.filter_in(basis))) * cutoff
        told = summed(rows(self.into(x), senders) * filters, receivers, len(x))
        return x + self.out(_shifted_softplus(self.inner(told)))


class SchNet(nnx.Module):
    """Schuett et al., "SchNet", as on QM9: six interactions of width 128, 50 Gaussians up to 10 Angstrom."""

    _WIDTH = 128
    _GAUSSIANS = 50
    _INTERACTIONS = 6
    _CUTOFF = 10.0

    def __init__(self, batch: int, rngs: nnx.Rngs) -> None:
        self.batch = batch
        self.embedding = nnx.Embed(100, self._WIDTH, rngs=rngs)
        self.interactions = nnx.List(
            [Interaction(self._WIDTH, self._GAUSSIANS, rngs) for _ in range(self._INTERACTIONS)]
        )
        self.hidden = nnx.Linear(self._WIDTH, self._WIDTH // 2, rngs=rngs)
        self.out = nnx.Linear(self._WIDTH // 2, 1, rngs=rngs)

    def __call__(
        self,
        atoms: jax.Array,
        positions: jax.Array,
        senders: jax.Array,
        receivers: jax.Array,
        molecules: jax.Array,
    ) -> jax.Array:
        """The energy of each molecule; ``molecules`` is the molecule of each atom, of ``batch`` ones."""
        offsets = rows(positions, senders) - rows(positions, receivers)
        distance = jnp.sqrt(jnp.sum(offsets * offsets, axis=-1, keepdims=True))
        centres = jnp.linspace(0.0, self._CUTOFF, self._GAUSSIANS)
        spacing = self._CUTOFF / (self._GAUSSIANS - 1)
        basis = jnp.exp(-0.5 / spacing**2 * jnp.square(distance - centres))
        cutoff = 0.5 * (jnp.cos(math.pi / self._CUTOFF * distance) + 1.0)
        x = rows(self.embedding.embedding[...], atoms)
        for interaction in self.interactions:
            x = interaction(x, basis, cutoff, senders, receivers)
        return summed(self.out(_shifted_softplus(self.hidden(x))), molecules, self.batch)


def _shifted_softplus(x: jax.Array) -> jax.Array:
    return jnp.log(0.5 * jnp.exp(x) + 0.5)
