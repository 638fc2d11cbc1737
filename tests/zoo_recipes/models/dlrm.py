"""The deep learning recommendation model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.zoo_recipes.models.tables import CRITEO_DENSE, CRITEO_KAGGLE, CRITEO_TERABYTE, Mlp, Tables


class Dlrm(nnx.Module):
    """Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems".

    Dense columns through a bottom stack, categorical ones through tables of the same
    width, the dot products of all pairs, a top stack over them. ``bottom`` and ``top`` are
    those of its Criteo benchmarks; for the Terabyte set MLPerf's.
    """

    def __init__(
        self, data: Literal["Kaggle", "Terabyte"], bottom: Sequence[int], top: Sequence[int], rngs: nnx.Rngs
    ) -> None:
        rows = CRITEO_KAGGLE if data == "Kaggle" else CRITEO_TERABYTE
        width = bottom[-1]
        vectors = len(rows) + 1
        self.bottom = Mlp(CRITEO_DENSE, *bottom, rngs=rngs)
        self.tables = Tables(rows, width, rngs)
        self.top = Mlp(width + vectors * (vectors - 1) // 2, *top, rngs=rngs)
        self.head = nnx.Linear(top[-1], 1, rngs=rngs)

    def __call__(self, dense: jax.Array, *ids: jax.Array) -> jax.Array:
        bottom = self.bottom(dense)
        vectors = jnp.stack([bottom, *self.tables(ids)], axis=1)
        batch, count, _ = vectors.shape
        products = jnp.einsum("bic,bjc->bij", vectors, vectors).reshape(batch, count * count)
        rows, columns = np.tril_indices(count, -1)
        pairs = products.at[:, rows * count + columns].get(
            mode="promise_in_bounds", wrap_negative_indices=False
        )
        return nnx.sigmoid(self.head(self.top(jnp.concatenate([bottom, pairs], axis=-1))))
