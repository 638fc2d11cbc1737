"""The policy and value network of AlphaZero."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class ConvNorm(nnx.Module):
    """A convolution and its batch norm, for inference."""

    def __init__(self, channels_in: int, channels: int, kernel: int, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(channels_in, channels, (kernel, kernel), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(channels, use_running_average=True, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class Block(nnx.Module):
    """Two 3x3 convolutions around a residual path."""

    def __init__(self, channels: int, rngs: nnx.Rngs) -> None:
        self.conv_in = ConvNorm(channels, channels, 3, rngs)
        self.conv_out = ConvNorm(channels, channels, 3, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(x + self.conv_out(nnx.relu(self.conv_in(x))))


class AlphaZero(nnx.Module):
    """The Go network of Silver et al., "Mastering the game of Go without human knowledge" (2017).

    The tower of 20 blocks on a board of 17 planes, which AlphaZero kept: a convolution and 19
    residual blocks, behind them a head for the moves (every point and the pass) and one for the value.
    """

    _PLANES = 17
    _CHANNELS = 256
    _BLOCKS = 19
    _POINTS = 19 * 19

    def __init__(self, rngs: nnx.Rngs) -> None:
        channels = self._CHANNELS
        self.conv_in = ConvNorm(self._PLANES, channels, 3, rngs)
        self.blocks = nnx.List([Block(channels, rngs) for _ in range(self._BLOCKS)])
        self.policy_conv = ConvNorm(channels, 2, 1, rngs)
        self.policy = nnx.Linear(2 * self._POINTS, self._POINTS + 1, rngs=rngs)
        self.value_conv = ConvNorm(channels, 1, 1, rngs)
        self.value_in = nnx.Linear(self._POINTS, channels, rngs=rngs)
        self.value_out = nnx.Linear(channels, 1, rngs=rngs)

    def __call__(self, board: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = nnx.relu(self.conv_in(board))
        for block in self.blocks:
            x = block(x)
        batch = board.shape[0]
        moves = self.policy(nnx.relu(self.policy_conv(x)).reshape(batch, -1))
        value = nnx.relu(self.value_in(nnx.relu(self.value_conv(x)).reshape(batch, -1)))
        return moves, jnp.tanh(self.value_out(value))
