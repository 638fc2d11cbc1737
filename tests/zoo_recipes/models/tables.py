"""What recommendation models are built of: embedding tables, stacks of dense layers, Criteo's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import rows

CRITEO_DENSE: Final = 13
# Distinct values of the 26 categorical columns, as the authors of DLRM count them.
CRITEO_KAGGLE: Final = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306,
    10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
# Of the Terabyte set, hashed to at most 40 million rows as MLPerf does.
CRITEO_TERABYTE: Final = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938,
    155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip

Activation = Callable[[jax.Array], jax.Array]


def rows_of(table: nnx.Embed, ids: jax.Array) -> jax.Array:
    """A plain lookup: ``nnx.Embed`` itself first wraps negative ids around."""
    return rows(table.embedding[...], ids)


class Tables(nnx.Module):
    """One table for each categorical column, each with its own lookup."""

    def __init__(self, counts: Sequence[int], width: int, rngs: nnx.Rngs) -> None:
        self.tables = nnx.List([nnx.Embed(count, width, rngs=rngs) for count in counts])

    def __call__(self, ids: Sequence[jax.Array]) -> list[jax.Array]:
        return [rows_of(table, column) for table, column in zip(self.tables, ids, strict=True)]


class Mlp(nnx.Module):
    """Dense layers, an activation behind each."""

    def __init__(self, *widths: int, rngs: nnx.Rngs, activation: Activation = nnx.relu) -> None:
        pairs = pairwise(widths)
        self.layers = nnx.List([nnx.Linear(before, after, rngs=rngs) for before, after in pairs])
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


class CriteoFields(nnx.Module):
    """The 39 fields of Criteo as vectors of one width: a dense one is its value times a vector."""

    count = CRITEO_DENSE + len(CRITEO_KAGGLE)

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.tables = Tables(CRITEO_KAGGLE, width, rngs)
        self.dense = nnx.Param(jnp.zeros((CRITEO_DENSE, width)))

    def __call__(self, dense: jax.Array, ids: Sequence[jax.Array]) -> jax.Array:
        """[batch, 39, width]"""
        vectors = jnp.stack(self.tables(ids), axis=1)
        return jnp.concatenate([dense[:, :, None] * self.dense[...], vectors], axis=1)


class CriteoLinear(nnx.Module):
    """The first-order term: a weight for each value of each column."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tables = Tables(CRITEO_KAGGLE, 1, rngs)
        self.dense = nnx.Linear(CRITEO_DENSE, 1, rngs=rngs)

    def __call__(self, dense: jax.Array, ids: Sequence[jax.Array]) -> jax.Array:
        weights = jnp.concatenate(self.tables(ids), axis=-1)
        return self.dense(dense) + weights.sum(axis=-1, keepdims=True)
