"""An LSTM along a parse tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.zoo_recipes.models.layers import rows, step

State = tuple[jax.Array, jax.Array]  # hidden state and cell


class TreeLstm(nnx.Module):
    """The constituency Tree-LSTM of Tai et al., "Improved Semantic Representations From
    Tree-Structured Long Short-Term Memory Networks", for sentiment.

    Word vectors of width 300, memory of width 150, a forget gate for each of the two
    children, and five classes at every node of the tree.
    """

    _WIDTH = 150

    def __init__(self, vocabulary: int, rngs: nnx.Rngs) -> None:
        width = self._WIDTH
        self.embedding = nnx.Embed(vocabulary, 300, rngs=rngs)
        self.leaf = nnx.Linear(300, 2 * width, rngs=rngs)
        self.node = nnx.Linear(2 * width, 5 * width, rngs=rngs)
        self.classes = nnx.Linear(width, 5, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        embedded = rows(self.embedding.embedding[...], words)
        nodes = [self._leaf(i, step(embedded, i)) for i in range(len(words))]
        span = list(nodes)
        # The pairs to join are drawn once, like the parse of one sentence.
        random = np.random.default_rng(0)
        while len(span) > 1:
            left = int(random.integers(len(span) - 1))
            span[left : left + 2] = [self._join(len(nodes), *span[left : left + 2])]
            nodes.append(span[left])
        return nnx.log_softmax(self.classes(jnp.concatenate([hidden for hidden, _ in nodes])))

    def _leaf(self, number: int, word: jax.Array) -> State:
        with jax.named_scope(f"leaf_{number}"):
            cell, out_gate = jnp.split(self.leaf(word), 2, axis=-1)
            return nnx.sigmoid(out_gate) * jnp.tanh(cell), cell

    def _join(self, number: int, left: State, right: State) -> State:
        with jax.named_scope(f"node_{number}"):
            gates = self.node(jnp.concatenate([left[0], right[0]], axis=-1))
            in_gate, keep_left, keep_right, out_gate, update = jnp.split(gates, 5, axis=-1)
            kept = nnx.sigmoid(keep_left) * left[1] + nnx.sigmoid(keep_right) * right[1]
            cell = nnx.sigmoid(in_gate) * jnp.tanh(update) + kept
            return nnx.sigmoid(out_gate) * jnp.tanh(cell), cell
