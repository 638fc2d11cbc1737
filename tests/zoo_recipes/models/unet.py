"""The U-Net of denoising diffusion."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx


class ResidualBlock(nnx.Module):
    """Two 3x3 convolutions around a time embedding, with a residual path."""

    def __init__(self, channels_in: int, channels: int, time_width: int, rngs: nnx.Rngs) -> None:
        self.norm_in = nnx.GroupNorm(channels_in, rngs=rngs)
        self.conv_in = nnx.Conv(channels_in, channels, (3, 3), rngs=rngs)
        self.time = nnx.Linear(time_width, channels, rngs=rngs)
        self.norm_out = nnx.GroupNorm(channels, rngs=rngs)
        self.conv_out = nnx.Conv(channels, channels, (3, 3), rngs=rngs)
        self.skip = nnx.Linear(channels_in, channels, rngs=rngs) if channels_in != channels else None

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        hidden = self.conv_in(nnx.silu(self.norm_in(x))) + self.time(nnx.silu(time))[:, None, None]
        hidden = self.conv_out(nnx.silu(self.norm_out(hidden)))
        return hidden + (self.skip(x) if self.skip else x)


class PixelAttention(nnx.Module):
    """Single-head self-attention over the pixels, with a residual path."""

    def __init__(self, channels: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.GroupNorm(channels, rngs=rngs)
        self.query, self.key, self.value, self.out = (
            nnx.Linear(channels, channels, rngs=rngs) for _ in range(4)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, width, channels = x.shape
        pixels = self.norm(x).reshape(batch, height * width, channels)
        scores = jnp.einsum("bqc,bkc->bqk", self.query(pixels), self.key(pixels)) / math.sqrt(channels)
        mixed = jnp.einsum("bqk,bkc->bqc", nnx.softmax(scores), self.value(pixels))
        return x + self.out(mixed).reshape(x.shape)


class Stage(nnx.Module):
    """A residual block, and attention at the resolutions that have it."""

    def __init__(
        self, channels_in: int, channels: int, time_width: int, *, attends: bool, rngs: nnx.Rngs
    ) -> None:
        self.block = ResidualBlock(channels_in, channels, time_width, rngs)
        self.attention = PixelAttention(channels, rngs) if attends else None

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        x = self.block(x, time)
        return self.attention(x) if self.attention else x


Path = nnx.List[Stage | nnx.Conv]  # one way of the U: stages, and convolutions that change the resolution


class DiffusionUNet(nnx.Module):
    """The CIFAR-10 network of Ho et al., "Denoising Diffusion Probabilistic Models" (35.7 M weights).

    Four resolutions of two residual blocks, attention at the second one, a skip from
    every block of the way down to one of the way up.
    """

    _WIDTH = 128
    _MULTIPLIERS = (1, 2, 2, 2)
    _ATTENTION_LEVEL = 1
    _BLOCKS = 2

    def __init__(self, rngs: nnx.Rngs) -> None:
        time_width = 4 * self._WIDTH
        self.time_in = nnx.Linear(self._WIDTH, time_width, rngs=rngs)
        self.time_out = nnx.Linear(time_width, time_width, rngs=rngs)
        self.conv_in = nnx.Conv(3, self._WIDTH, (3, 3), rngs=rngs)
        widths = [self._WIDTH * multiplier for multiplier in self._MULTIPLIERS]
        self.down, skip_widths = self._down_path(widths, time_width, rngs)
        self.middle_in = ResidualBlock(widths[-1], widths[-1], time_width, rngs)
        self.middle_attention = PixelAttention(widths[-1], rngs)
        self.middle_out = ResidualBlock(widths[-1], widths[-1], time_width, rngs)
        self.up = self._up_path(widths, skip_widths, time_width, rngs)
        self.norm_out = nnx.GroupNorm(self._WIDTH, rngs=rngs)
        self.conv_out = nnx.Conv(self._WIDTH, 3, (3, 3), rngs=rngs)

    def _down_path(self, widths: list[int], time_width: int, rngs: nnx.Rngs) -> tuple[Path, list[int]]:
        path, width = Path(), self._WIDTH
        skip_widths = [width]
        for level, level_width in enumerate(widths):
            for _ in range(self._BLOCKS):
                attends = level == self._ATTENTION_LEVEL
                path.append(Stage(width, level_width, time_width, attends=attends, rngs=rngs))
                width = level_width
                skip_widths.append(width)
            if level < len(widths) - 1:
                path.append(nnx.Conv(width, width, (3, 3), strides=2, rngs=rngs))
                skip_widths.append(width)
        return path, skip_widths

    def _up_path(self, widths: list[int], skip_widths: list[int], time_width: int, rngs: nnx.Rngs) -> Path:
        path, width = Path(), widths[-1]
        for level, level_width in reversed(list(enumerate(widths))):
            for _ in range(self._BLOCKS + 1):
                channels_in = width + skip_widths.pop()
                attends = level == self._ATTENTION_LEVEL
                path.append(Stage(channels_in, level_width, time_width, attends=attends, rngs=rngs))
                width = level_width
            if level > 0:
                path.append(nnx.Conv(width, width, (3, 3), rngs=rngs))
        return path

    def __call__(self, image: jax.Array, step: jax.Array) -> jax.Array:
        time = self.time_out(nnx.silu(self.time_in(self._step_embedding(step))))
        x = self.conv_in(image)
        skips = [x]
        for stage in self.down:
            x = stage(x) if isinstance(stage, nnx.Conv) else stage(x, time)
            skips.append(x)
        x = self.middle_out(self.middle_attention(self.middle_in(x, time)), time)
        for stage in self.up:
            if isinstance(stage, nnx.Conv):
                x = stage(_upsampled(x))
            else:
                x = stage(jnp.concatenate([x, skips.pop()], axis=-1), time)
        return self.conv_out(nnx.silu(self.norm_out(x)))

    def _step_embedding(self, step: jax.Array) -> jax.Array:
        half = self._WIDTH // 2
        rates = jnp.exp(-math.log(10_000) / (half - 1) * jnp.arange(half))
        angles = step[:, None] * rates
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _upsampled(x: jax.Array) -> jax.Array:
    """Nearest neighbour, twice as high and wide."""
    batch, height, width, channels = x.shape
    doubled = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, channels))
    return doubled.reshape(batch, 2 * height, 2 * width, channels)
