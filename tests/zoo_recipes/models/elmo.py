"""Word vectors from a language model that reads both ways."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import lstm_cell, rows, softmax, step, total


class CharacterEncoder(nnx.Module):
    """2048 character n-gram filters, two highway layers, and a projection to width 512."""

    _FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    _WIDTH = sum(count for _, count in _FILTERS)

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.characters = nnx.Embed(262, 16, rngs=rngs)
        self.filters = nnx.List(
            [nnx.Conv(16, count, (size,), padding="VALID", rngs=rngs) for size, count in self._FILTERS]
        )
        self.highways = nnx.List([nnx.Linear(self._WIDTH, 2 * self._WIDTH, rngs=rngs) for _ in range(2)])
        self.projection = nnx.Linear(self._WIDTH, 512, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        letters = rows(self.characters.embedding[...], words)
        x = jnp.concatenate([nnx.relu(jnp.max(conv(letters), axis=1)) for conv in self.filters], axis=-1)
        for highway in self.highways:
            update, gate = jnp.split(highway(x), 2, axis=-1)
            update, gate = nnx.relu(update), nnx.sigmoid(gate)
            x = gate * x + (1.0 - gate) * update
        return self.projection(x)


class ProjectedLstm(nnx.Module):
    """An LSTM layer of 4096 cells whose output is projected to width 512."""

    _CELLS = 4096
    _WIDTH = 512

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.gates = nnx.Linear(2 * self._WIDTH, 4 * self._CELLS, rngs=rngs)
        self.projection = nnx.Linear(self._CELLS, self._WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, steps: Sequence[jax.Array]) -> list[jax.Array]:
        hidden, cell = jnp.zeros((1, self._WIDTH)), jnp.zeros((1, self._CELLS))
        outputs = []
        for i, x in enumerate(steps):
            with jax.named_scope(str(i)):
                wide, cell = lstm_cell(self.gates, x, hidden, cell)
                hidden = self.projection(wide)
            outputs.append(hidden)
        return outputs


class Elmo(nnx.Module):
    """Peters et al., "Deep contextualized word representations" (93.6 M weights).

    Two LSTM layers each way, the second with a residual connection; the word's vector is
    a learned mean of the three layers.
    """

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.encoder = CharacterEncoder(rngs)
        self.forward, self.backward = (nnx.List([ProjectedLstm(rngs) for _ in range(2)]) for _ in range(2))
        self.mixture = nnx.Param(jnp.ones(3) / 3)

    def __call__(self, words: jax.Array) -> jax.Array:
        encoded = self.encoder(words)
        steps = [step(encoded, i) for i in range(len(words))]
        there = self._read("forward", self.forward, steps)
        back = self._read("backward", self.backward, steps[::-1])
        layers = [jnp.concatenate([encoded, encoded], axis=-1)]
        for forward, backward in zip(there, back, strict=True):
            layers.append(jnp.concatenate([jnp.concatenate(forward), jnp.concatenate(backward[::-1])], -1))
        weights = softmax(self.mixture[...])
        return total(weights[i] * layer for i, layer in enumerate(layers))

    def _read(
        self, name: str, lstms: Sequence[ProjectedLstm], steps: list[jax.Array]
    ) -> list[list[jax.Array]]:
        layers = []
        for i, lstm in enumerate(lstms):
            with jax.named_scope(f"{name}_{i}"):
                outputs = lstm(steps)
                if i > 0:
                    outputs = [output + x for output, x in zip(outputs, steps, strict=True)]
            layers.append(outputs)
            steps = outputs
        return layers
