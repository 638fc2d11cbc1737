"""Language models of stacked LSTM layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import lstm_cell


class LstmLanguageModel(nnx.Module):
    """Embedding, stacked LSTM layers scanned over the tokens, and a projection to the vocabulary."""

    def __init__(self, vocabulary: int, width: int, layers: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(vocabulary, width, rngs=rngs)
        self.gates = nnx.List([nnx.Linear(2 * width, 4 * width, rngs=rngs) for _ in range(layers)])
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        batch = tokens.shape[0]
        width = self.embedding.features
        zeros = [jnp.zeros((batch, width)) for _ in self.gates]
        embedded = jnp.swapaxes(self.embedding(tokens), 0, 1)
        _, hidden = jax.lax.scan(self._step, (zeros, zeros), embedded)
        return self.head(hidden)

    def _step(
        self, state: tuple[list[jax.Array], list[jax.Array]], x: jax.Array
    ) -> tuple[tuple[list[jax.Array], list[jax.Array]], jax.Array]:
        """One token through each layer."""
        hiddens, cells = [], []
        for gates, hidden, cell in zip(self.gates, *state, strict=True):
            x, cell = lstm_cell(gates, x, hidden, cell)
            hiddens.append(x)
            cells.append(cell)
        return (hiddens, cells), x
