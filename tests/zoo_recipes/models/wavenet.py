"""WaveNet: a stack of gated, dilated, causal convolutions over raw audio."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class GatedLayer(nnx.Module):
    """``tanh(filter) * sigmoid(gate)`` of a dilated convolution; a residual and a skip output."""

    def __init__(self, residual: int, skip: int, dilation: int, rngs: nnx.Rngs) -> None:
        self.dilation = dilation
        self.filter, self.gate = (
            nnx.Conv(residual, residual, (2,), kernel_dilation=dilation, padding="VALID", rngs=rngs)
            for _ in range(2)
        )
        self.residual = nnx.Conv(residual, residual, (1,), rngs=rngs)
        self.skip = nnx.Conv(residual, skip, (1,), rngs=rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        past = jnp.pad(x, ((0, 0), (self.dilation, 0), (0, 0)))
        gated = jnp.tanh(self.filter(past)) * nnx.sigmoid(self.gate(past))
        return x + self.residual(gated), self.skip(gated)


class WaveNet(nnx.Module):
    """Van den Oord et al., "WaveNet: A Generative Model for Raw Audio", without conditioning.

    The dilation doubles from layer to layer and starts again at 1 in each stack. GO (Zhou et
    al., "Transferable Graph Optimizers for ML Compilers") names a "2-stack 18-layer" and a
    "4-stack 36-layer" net and no other size. The widths are those of Deep Voice (Arik et
    al.), 64 residual and 256 skip channels; a sample has the paper's 256 levels. All
    samples pass at once, as in training.
    """

    def __init__(
        self, stacks: int, layers: int, rngs: nnx.Rngs, residual: int = 64, skip: int = 256, levels: int = 256
    ) -> None:
        self.levels = levels
        self.conv_in = nnx.Conv(levels, residual, (2,), padding="CAUSAL", rngs=rngs)
        dilations = [2**i for i in range(layers // stacks)] * stacks
        self.layers = nnx.List([GatedLayer(residual, skip, dilation, rngs) for dilation in dilations])
        self.conv_out = nnx.Conv(skip, skip, (1,), rngs=rngs)
        self.head = nnx.Conv(skip, levels, (1,), rngs=rngs)

    def __call__(self, samples: jax.Array) -> jax.Array:
        x = self.conv_in(jax.nn.one_hot(samples, self.levels))
        x, total = self.layers[0](x)
        for layer in self.layers[1:]:
            x, skip = layer(x)
            total = total + skip  # at once: all skips together exceed a chip's memory
        return self.head(nnx.relu(self.conv_out(nnx.relu(total))))
