"""Forecasts of time series by an autoregressive LSTM."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import lstm_cell, rows


class DeepAr(nnx.Module):
    """Salinas et al., "DeepAR", as on the electricity data: three LSTM layers of 40 cells.

    A week of hours is read, the day after it is forecast: there each step reads the mean
    of the one before. Each hour has four covariates and the embedding of its series.
    """

    _WIDTH = 40
    _LAYERS = 3
    _SERIES = 370
    _EMBEDDED = 20
    _COVARIATES = 4

    def __init__(self, rngs: nnx.Rngs) -> None:
        width_in = 1 + self._COVARIATES + self._EMBEDDED
        self.series = nnx.Embed(self._SERIES, self._EMBEDDED, rngs=rngs)
        widths = [width_in] + [self._WIDTH] * (self._LAYERS - 1)
        self.gates = nnx.List([nnx.Linear(w + self._WIDTH, 4 * self._WIDTH, rngs=rngs) for w in widths])
        self.mean, self.deviation = (nnx.Linear(self._WIDTH, 1, rngs=rngs) for _ in range(2))

    def __call__(self, seen: jax.Array, covariates: jax.Array, series: jax.Array) -> jax.Array:
        """``seen`` [hours, series, 1], ``covariates`` [hours and those to come, series, 4]."""
        embedded = rows(self.series.embedding[...], series)
        hiddens = [jnp.zeros((len(series), self._WIDTH))] * self._LAYERS
        cells = list(hiddens)
        forecasts = []
        value = jnp.zeros((len(series), 1))
        for i in range(len(covariates)):
            with jax.named_scope(f"hour_{i}"):
                value = seen[i] if i < len(seen) else value
                x = jnp.concatenate([value, covariates[i], embedded], axis=-1)
                for layer, gates in enumerate(self.gates):
                    hiddens[layer], cells[layer] = lstm_cell(gates, x, hiddens[layer], cells[layer])
                    x = hiddens[layer]
                if i >= len(seen) - 1:
                    value = self.mean(x)
                    forecasts += [value, jnp.log1p(jnp.exp(self.deviation(x)))]
        return jnp.concatenate(forecasts, axis=-1)
