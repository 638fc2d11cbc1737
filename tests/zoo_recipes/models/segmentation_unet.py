"""The original U-Net, for segmentation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx


class TwoConvs(nnx.Module):
    """Two unpadded 3x3 convolutions."""

    def __init__(self, channels_in: int, channels: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(channels_in, channels, (3, 3), padding="VALID", rngs=rngs)
        self.second = nnx.Conv(channels, channels, (3, 3), padding="VALID", rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.second(nnx.relu(self.first(x))))


class SegmentationUNet(nnx.Module):
    """Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (31.0 M weights).

    Four times half the resolution and twice the channels, and back up by 2x2 up-convolutions,
    each joined with the cropped features of the same resolution on the way down.
    """

    _WIDTHS = (64, 128, 256, 512)
    _BOTTOM = 1024
    _CLASSES = 2

    def __init__(self, rngs: nnx.Rngs) -> None:
        widths = self._WIDTHS
        self.down = nnx.List([TwoConvs(*pair, rngs) for pair in zip((1, *widths[:-1]), widths, strict=True)])
        self.bottom = TwoConvs(widths[-1], self._BOTTOM, rngs)
        self.enlarge = nnx.List(
            [nnx.ConvTranspose(2 * width, width, (2, 2), strides=(2, 2), rngs=rngs) for width in widths]
        )
        self.up = nnx.List([TwoConvs(2 * width, width, rngs) for width in widths])
        self.head = nnx.Conv(widths[0], self._CLASSES, (1, 1), rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        x, skips = image, []
        for convs in self.down:
            skips.append(convs(x))
            x = nnx.max_pool(skips[-1], (2, 2), strides=(2, 2))
        x = self.bottom(x)
        for enlarge, convs, skip in zip(self.enlarge[::-1], self.up[::-1], skips[::-1], strict=True):
            x = enlarge(x)
            x = convs(jnp.concatenate([_cropped(skip, x), x], axis=-1))
        return self.head(x)


def _cropped(skip: jax.Array, x: jax.Array) -> jax.Array:
    """The middle of ``skip``, as large as ``x``."""
    top, left = ((skip.shape[axis] - x.shape[axis]) // 2 for axis in (1, 2))
    return skip[:, top : top + x.shape[1], left : left + x.shape[2]]
