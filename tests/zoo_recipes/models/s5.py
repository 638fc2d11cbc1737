"""A linear state space for long sequences, evaluated by a parallel scan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

Pair = tuple[jax.Array, jax.Array]


class S5Layer(nnx.Module):
    """A diagonal complex state space run both ways, a gated output and a residual path."""

    def __init__(self, width: int, state: int, rngs: nnx.Rngs) -> None:
        kernels = nnx.initializers.lecun_normal()
        self.norm = nnx.BatchNorm(width, use_running_average=True, rngs=rngs)
        self.decay = nnx.Param(jnp.zeros((state, 2)))
        self.timescale = nnx.Param(jnp.zeros((state, 1)))
        self.input = nnx.Param(kernels(rngs.params(), (2, state, width)))
        self.output = nnx.Param(kernels(rngs.params(), (2, width, 2 * state)))
        self.feedthrough = nnx.Param(jnp.zeros(width))
        self.gate = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.gelu(self._scanned(self.norm(x)))
        return x + y * nnx.sigmoid(self.gate(y))

    def _scanned(self, x: jax.Array) -> jax.Array:
        decay = self.decay[..., 0] + 1j * self.decay[..., 1]
        kept = jnp.exp(decay * jnp.exp(self.timescale[:, 0]))  # zero-order hold
        scale = ((kept - 1) / decay)[:, None]
        driven = x @ (scale * (self.input[0] + 1j * self.input[1])).T
        steps = jnp.tile(kept, (len(x), 1)), driven
        scans = [jax.lax.associative_scan(_combined, steps, reverse=back)[1] for back in (False, True)]
        states = jnp.concatenate(scans, axis=-1)
        # States come in conjugate pairs of which one is stored.
        read = 2 * (states @ (self.output[0] + 1j * self.output[1]).T).real
        return read + self.feedthrough[...] * x


class S5(nnx.Module):
    """The ListOps classifier of Smith et al., "Simplified State Space Layers for Sequence Modeling".

    Eight layers of width 128 with a state of 16, stored as 8 conjugate pairs.
    """

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Linear(20, 128, rngs=rngs)
        self.layers = nnx.List([S5Layer(128, 8, rngs) for _ in range(8)])
        self.classes = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return nnx.log_softmax(self.classes(jnp.mean(x, axis=0)))


def _combined(before: Pair, after: Pair) -> Pair:
    """Two stretches of ``state' = a * state + b`` as one."""
    return after[0] * before[0], after[0] * before[1] + after[1]
