"""Vision transformers, detection, segmentation, and towers for images and text."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from go_opt.env.zoo.exporters import transformers_graph
from go_opt.env.zoo.recipe import Recipe

_IMAGE: Final = {"pixel_values": np.zeros((1, 3, 224, 224), np.float32)}
_CLASSES: Final = {"num_labels": 1000}

RECIPES: Final = (
    Recipe(
        "swin_t",
        "swin",
        "transformers",
        "SwinForImageClassification, 1x3x224x224",
        partial(transformers_graph, "SwinForImageClassification", "SwinConfig", _CLASSES, _IMAGE),
    ),
    Recipe(
        "vit_b16",
        "vit",
        "transformers",
        "ViTForImageClassification, 1x3x224x224",
        partial(transformers_graph, "ViTForImageClassification", "ViTConfig", _CLASSES, _IMAGE),
    ),
)
