"""Message passing networks on molecules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import Mlp, lstm_cell, rows, summed


class GruUpdate(nnx.Module):
    """A GRU cell that updates each node by its message."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.message, self.state = (nnx.Linear(width, 3 * width, rngs=rngs) for _ in range(2))

    def __call__(self, message: jax.Array, state: jax.Array) -> jax.Array:
        reset, update, new = jnp.split(self.message(message), 3, axis=-1)
        state_reset, state_update, state_new = jnp.split(self.state(state), 3, axis=-1)
        new = jnp.tanh(new + nnx.sigmoid(reset + state_reset) * state_new)
        update = nnx.sigmoid(update + state_update)
        return new + update * (state - new)


class Mpnn(nnx.Module):
    """Gilmer et al., "Neural Message ForwardingMode for Quantum Chemistry": edge network and set2set.

    Width 73, six steps of message passing with one set of weights; the 73x73 matrix of an
    edge comes from its features. Twelve steps of set2set read the molecule.
    """

    _WIDTH = 73
    _STEPS = 6
    _READS = 12
    _EDGE_FEATURES = 5

    def __init__(self, batch: int, rngs: nnx.Rngs) -> None:
        self.batch, width = batch, self._WIDTH
        self.embedding = nnx.Linear(13, width, rngs=rngs)
        self.edge_network = Mlp((self._EDGE_FEATURES, 128, width * width), rngs)
        self.update = GruUpdate(width, rngs)
        self.read = nnx.Linear(3 * width, 4 * width, rngs=rngs)
        self.out = Mlp((2 * width, width, 12), rngs)

    def __call__(
        self,
        atoms: jax.Array,
        bonds: jax.Array,
        senders: jax.Array,
        receivers: jax.Array,
        molecules: jax.Array,
    ) -> jax.Array:
        """``molecules`` is the molecule of each atom, of ``batch`` ones."""
        x = nnx.relu(self.embedding(atoms))
        matrices = self.edge_network(bonds).reshape(-1, self._WIDTH, self._WIDTH)
        for i in range(self._STEPS):
            with jax.named_scope(f"step_{i}"):
                messages = jnp.einsum("eij,ej->ei", matrices, rows(x, senders))
                x = self.update(summed(messages, receivers, len(x)), x)
        return self.out(self._set2set(x, molecules))

    def _set2set(self, x: jax.Array, molecules: jax.Array) -> jax.Array:
        """An LSTM that attends to the atoms of its molecule, whose answer is its next input."""
        count = self.batch
        hidden = cell = jnp.zeros((count, self._WIDTH))
        answer = jnp.zeros((count, 2 * self._WIDTH))
        for i in range(self._READS):
            with jax.named_scope(f"read_{i}"):
                hidden, cell = lstm_cell(self.read, answer, hidden, cell)
                scores = jnp.exp(jnp.sum(x * rows(hidden, molecules), axis=-1, keepdims=True))
                shares = scores / rows(summed(scores, molecules, count), molecules)
                answer = jnp.concatenate([hidden, summed(shares * x, molecules, count)], axis=-1)
        return answer
