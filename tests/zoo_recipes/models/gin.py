"""Graph isomorphism networks on molecules."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import rows, summed, total


class NormedMlp(nnx.Module):
    """Two linear layers with batch normalisation behind each."""

    def __init__(self, width_in: int, inner: int, width: int, rngs: nnx.Rngs) -> None:
        self.into, self.out = nnx.Linear(width_in, inner, rngs=rngs), nnx.Linear(inner, width, rngs=rngs)
        self.inner_norm, self.norm = (
            nnx.BatchNorm(size, use_running_average=True, rngs=rngs) for size in (inner, width)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.out(nnx.relu(self.inner_norm(self.into(x)))))


class GinVirtual(nnx.Module):
    """Xu et al., "How Powerful are Graph Neural Networks?", with the virtual node of the OGB molecules.

    Five layers of width 300. Each molecule has a virtual node that hears all its atoms and
    tells all of them (3.4 M weights with the 128 tasks of ogbg-molpcba).
    """

    _WIDTH = 300
    _LAYERS = 5
    _ATOM_SIZES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
    _BOND_SIZES = (5, 6, 2)
    _TASKS = 128

    def __init__(self, rngs: nnx.Rngs) -> None:
        width = self._WIDTH
        self.atoms = nnx.List([nnx.Embed(size, width, rngs=rngs) for size in self._ATOM_SIZES])
        self.bonds = nnx.List(
            [
                nnx.List([nnx.Embed(size, width, rngs=rngs) for size in self._BOND_SIZES])
                for _ in range(self._LAYERS)
            ]
        )
        self.layers = nnx.List([NormedMlp(width, 2 * width, width, rngs) for _ in range(self._LAYERS)])
        self.virtual = nnx.List([NormedMlp(width, 2 * width, width, rngs) for _ in range(self._LAYERS - 1)])
        self.epsilons = nnx.Param(jnp.zeros(self._LAYERS))
        self.virtual_embedding = nnx.Param(jnp.zeros(width))
        self.tasks = nnx.Linear(width, self._TASKS, rngs=rngs)

    def __call__(
        self,
        atoms: jax.Array,
        bonds: jax.Array,
        senders: jax.Array,
        receivers: jax.Array,
        molecules: jax.Array,
        sizes: jax.Array,
    ) -> jax.Array:
        """``atoms`` [9, atoms], ``bonds`` [3, bonds], the molecule of each atom, [molecules, 1] sizes."""
        virtual = jnp.broadcast_to(self.virtual_embedding[...], (len(sizes), self._WIDTH))
        x = _embedded(self.atoms, list(atoms))
        bond_codes = list(bonds)
        for i, layer in enumerate(self.layers):
            x = x + rows(virtual, molecules)
            messages = nnx.relu(rows(x, senders) + _embedded(self.bonds[i], bond_codes))
            heard = layer((1.0 + self.epsilons[i]) * x + summed(messages, receivers, len(x)))
            if i < len(self.virtual):
                virtual = nnx.relu(self.virtual[i](summed(x, molecules, len(sizes)) + virtual))
                heard = nnx.relu(heard)
            x = heard
        return self.tasks(summed(x, molecules, len(sizes)) / sizes)


def _embedded(tables: nnx.List[nnx.Embed], codes: Sequence[jax.Array]) -> jax.Array:
    """The sum of one embedding for each kind of code."""
    return total(rows(table.embedding[...], code) for table, code in zip(tables, codes, strict=True))
