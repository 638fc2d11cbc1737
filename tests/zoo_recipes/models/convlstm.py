"""Forecasts of images by LSTM layers whose products are convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

State = tuple[jax.Array, jax.Array]  # hidden state and cell, as images


class ConvLstmCell(nnx.Module):
    """One 5x5 convolution for all gates, which also see the cell (peepholes)."""

    def __init__(self, channels_in: int, channels: int, rngs: nnx.Rngs) -> None:
        self.channels = channels
        self.gates = nnx.Conv(channels_in + channels, 4 * channels, (5, 5), rngs=rngs)
        self.peep_in, self.peep_forget, self.peep_out = (nnx.Param(jnp.zeros(channels)) for _ in range(3))

    def __call__(self, x: jax.Array | None, state: State) -> State:
        hidden, cell = state
        gates = self.gates(hidden if x is None else jnp.concatenate([x, hidden], axis=-1))
        in_gate, forget_gate, update, out_gate = jnp.split(gates, 4, axis=-1)
        in_gate = nnx.sigmoid(in_gate + self.peep_in[...] * cell)
        forget_gate = nnx.sigmoid(forget_gate + self.peep_forget[...] * cell)
        cell = forget_gate * cell + in_gate * jnp.tanh(update)
        out_gate = nnx.sigmoid(out_gate + self.peep_out[...] * cell)
        return out_gate * jnp.tanh(cell), cell


class ConvLstm(nnx.Module):
    """The three-layer network of Shi et al., "Convolutional LSTM Network", on Moving MNIST (7.6 M weights).

    Frames are 16x16 patches of 4x4 pixels; an encoder of 128, 64 and 64 channels, a
    forecaster that starts from its states, and a 1x1 convolution over all three layers.
    """

    _CHANNELS = (128, 64, 64)
    _PATCH = 16  # pixels of a patch

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.encoder = self._cells(self._PATCH, rngs)
        self.forecaster = self._cells(0, rngs)  # reads nothing but its own state
        self.out = nnx.Conv(sum(self._CHANNELS), self._PATCH, (1, 1), rngs=rngs)

    def _cells(self, channels_in: int, rngs: nnx.Rngs) -> nnx.List[ConvLstmCell]:
        inputs = (channels_in, *self._CHANNELS[:-1])
        pairs = zip(inputs, self._CHANNELS, strict=True)
        return nnx.List([ConvLstmCell(before, after, rngs) for before, after in pairs])

    def __call__(self, frames: jax.Array) -> jax.Array:
        """As many frames to come, [frames, height, width, patch], as were seen."""
        zeros = [jnp.zeros((1, *frames.shape[1:3], cell.channels)) for cell in self.encoder]
        states = list(zip(zeros, zeros, strict=True))
        for i in range(len(frames)):
            with jax.named_scope(f"seen_{i}"):
                states = _next_states(self.encoder, frames[i : i + 1], states)
        forecasts = []
        for i in range(len(frames)):
            with jax.named_scope(f"forecast_{i}"):
                states = _next_states(self.forecaster, None, states)
                hiddens = [hidden for hidden, _ in states]
                forecasts.append(nnx.sigmoid(self.out(jnp.concatenate(hiddens, axis=-1))))
        return jnp.concatenate(forecasts)


def _next_states(cells: Sequence[ConvLstmCell], x: jax.Array | None, states: Sequence[State]) -> list[State]:
    after = []
    for cell, state in zip(cells, states, strict=True):
        after.append(cell(x, state))
        x = after[-1][0]
    return after
