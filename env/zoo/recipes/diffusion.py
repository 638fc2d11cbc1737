"""Diffusion: networks that take noise out of an image, and what surrounds them."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.env.zoo.recipe import Recipe
from go_opt.frontends import from_jax
from go_opt.graph import Graph


def _unet() -> Graph:
    from flax import nnx

    from go_opt.env.zoo.models.unet import DiffusionUNet

    model = DiffusionUNet(nnx.Rngs(0))
    return from_jax(model.__call__, np.zeros((1, 32, 32, 3), np.float32), np.zeros(1, np.float32))


RECIPES: Final = (Recipe("unet", "unet", "flax", "models.unet.DiffusionUNet, 1x32x32x3", _unet),)
