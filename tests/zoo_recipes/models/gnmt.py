"""Google's neural machine translation: stacked LSTM layers with attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import lstm_cell, rows, softmax, step

Steps = list[jax.Array]  # one [1, width] array for each token


class Gnmt(nnx.Module):
    """Wu et al., "Google's Neural Machine Translation System": width 1024, 32,000 word pieces.

    The first encoder layer reads both ways. From the third layer on, a layer's input is
    added to its output. Additive attention starts at the previous output of the bottom
    decoder layer, and all decoder layers read the context.
    """

    _WIDTH = 1024
    _VOCABULARY = 32_000

    def __init__(self, layers: int, rngs: nnx.Rngs) -> None:
        width = self._WIDTH
        self.source_embedding = nnx.Embed(self._VOCABULARY, width, rngs=rngs)
        self.target_embedding = nnx.Embed(self._VOCABULARY, width, rngs=rngs)
        self.forward, self.backward = (nnx.Linear(2 * width, 4 * width, rngs=rngs) for _ in range(2))
        # The second layer reads both directions of the first.
        inputs = [2 * width] + [width] * (layers - 2)
        self.encoder = nnx.List([nnx.Linear(size + width, 4 * width, rngs=rngs) for size in inputs])
        self.decoder = nnx.List([nnx.Linear(3 * width, 4 * width, rngs=rngs) for _ in range(layers)])
        self.key, self.query = (nnx.Linear(width, width, use_bias=False, rngs=rngs) for _ in range(2))
        self.score = nnx.Linear(width, 1, use_bias=False, rngs=rngs)
        self.head = nnx.Linear(width, self._VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        return self._decode(self._encode(source), target)

    def _encode(self, source: jax.Array) -> jax.Array:
        embedded = rows(self.source_embedding.embedding[...], source)
        words = [step(embedded, i) for i in range(len(source))]
        there = self._lstm("encoder/0_forward", self.forward, words)
        back = self._lstm("encoder/0_backward", self.backward, words[::-1])[::-1]
        steps = [jnp.concatenate(both, axis=-1) for both in zip(there, back, strict=True)]
        for layer, gates in enumerate(self.encoder, start=1):
            outputs = self._lstm(f"encoder/{layer}", gates, steps)
            if layer >= 2:
                outputs = [output + x for output, x in zip(outputs, steps, strict=True)]
            steps = outputs
        return jnp.concatenate(steps)

    def _lstm(self, name: str, gates: nnx.Linear, steps: Steps) -> Steps:
        hidden = cell = jnp.zeros((1, self._WIDTH))
        outputs = []
        for i, x in enumerate(steps):
            with jax.named_scope(f"{name}/{i}"):
                hidden, cell = lstm_cell(gates, x, hidden, cell)
            outputs.append(hidden)
        return outputs

    def _decode(self, encoded: jax.Array, target: jax.Array) -> jax.Array:
        keys = self.key(encoded)
        embedded = rows(self.target_embedding.embedding[...], target)
        hiddens = [jnp.zeros((1, self._WIDTH))] * len(self.decoder)
        cells = list(hiddens)
        tops = []
        for i in range(len(target)):
            with jax.named_scope(f"decoder/{i}"):
                context = self._context(hiddens[0], keys, encoded)
                x = step(embedded, i)
                for layer, gates in enumerate(self.decoder):
                    joined = jnp.concatenate([x, context], axis=-1)
                    hiddens[layer], cells[layer] = lstm_cell(gates, joined, hiddens[layer], cells[layer])
                    x = hiddens[layer] + x if layer >= 2 else hiddens[layer]
            tops.append(x)
        return self.head(jnp.concatenate(tops))

    def _context(self, bottom: jax.Array, keys: jax.Array, encoded: jax.Array) -> jax.Array:
        """A feed-forward network of one hidden layer scores each source word."""
        scores = self.score(jnp.tanh(keys + self.query(bottom)))
        return softmax(scores.reshape(1, -1)) @ encoded
