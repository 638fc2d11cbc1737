"""Speech recognition by convolutions and bidirectional recurrent layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.layers import step


class GruDirection(nnx.Module):
    """One direction of a GRU layer; what its inputs add to the gates is one product over all steps."""

    def __init__(self, width_in: int, width: int, rngs: nnx.Rngs) -> None:
        self.width = width
        self.input = nnx.Linear(width_in, 3 * width, rngs=rngs)
        self.recurrent = nnx.Linear(width, 3 * width, rngs=rngs)

    def __call__(self, x: jax.Array, *, reverse: bool) -> jax.Array:
        gates = self.input(x)
        hidden = jnp.zeros((1, self.width))
        outputs = [hidden] * len(x)
        for i in reversed(range(len(x))) if reverse else range(len(x)):
            with jax.named_scope(str(i)):
                hidden = outputs[i] = self._next(step(gates, i), hidden)
        return jnp.concatenate(outputs)

    def _next(self, gates: jax.Array, hidden: jax.Array) -> jax.Array:
        reset, update, new = jnp.split(gates, 3, axis=-1)
        hidden_reset, hidden_update, hidden_new = jnp.split(self.recurrent(hidden), 3, axis=-1)
        new = jnp.tanh(new + nnx.sigmoid(reset + hidden_reset) * hidden_new)
        update = nnx.sigmoid(update + hidden_update)
        return new + update * (hidden - new)


class DeepSpeech2(nnx.Module):
    """Amodei et al., "Deep Speech 2", in the sizes of deepspeech.pytorch.

    Two convolutions over 161 frequencies, five bidirectional GRU layers of width 800 whose
    directions are added, batch normalisation between them, 29 characters.
    """

    _WIDTH = 800
    _LAYERS = 5

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv_in = nnx.Conv(1, 32, (11, 41), strides=(2, 2), padding=((5, 5), (20, 20)), rngs=rngs)
        self.conv_out = nnx.Conv(32, 32, (11, 21), strides=(1, 2), padding=((5, 5), (10, 10)), rngs=rngs)
        self.conv_norms = nnx.List([_batch_norm(32, rngs) for _ in range(2)])
        widths = [32 * 41] + [self._WIDTH] * (self._LAYERS - 1)
        self.norms = nnx.List([_batch_norm(width, rngs) for width in [*widths[1:], self._WIDTH]])
        self.forward, self.backward = (
            nnx.List([GruDirection(width, self._WIDTH, rngs) for width in widths]) for _ in range(2)
        )
        self.head = nnx.Linear(self._WIDTH, 29, rngs=rngs)

    def __call__(self, spectrogram: jax.Array) -> jax.Array:
        x = spectrogram
        for conv, norm in zip((self.conv_in, self.conv_out), self.conv_norms, strict=True):
            x = jnp.clip(norm(conv(x)), 0.0, 20.0)
        x = x.reshape(x.shape[1], -1)
        for i, layer in enumerate(zip(self.forward, self.backward, self.norms, strict=True)):
            forward, backward, norm = layer
            with jax.named_scope(f"forward_{i}"):
                there = forward(x, reverse=False)
            with jax.named_scope(f"backward_{i}"):
                back = backward(x, reverse=True)
            x = norm(there + back)
        return nnx.log_softmax(self.head(x))


def _batch_norm(width: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    return nnx.BatchNorm(width, use_running_average=True, rngs=rngs)
