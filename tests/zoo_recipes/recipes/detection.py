"""Detection of objects: transformers with queries behind a backbone."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from tests.zoo_recipes.exporters import transformers_graph
from tests.zoo_recipes.recipe import Recipe

# The shorter side of an image is 480 to 800 in these papers; at 480 every op fits a chip.
_PIXELS: Final = 480


def _detector(name: str, family: str, library: str, pixels: int, **settings: Any) -> Recipe:
    """A detector called ``library`` in ``transformers``, on one square image."""
    image = {"pixel_values": np.zeros((1, 3, pixels, pixels), np.float32)}
    model, config = f"{library}ForObjectDetection", f"{library}Config"
    build = partial(transformers_graph, model, config, settings, image)
    return Recipe(name, family, "transformers", f"{model}, 1x3x{pixels}x{pixels}", build)


# The default backbone is of another library.
_RESNET50: Final[dict[str, Any]] = {"model_type": "resnet", "out_features": ["stage4"]}
_DETR: Final[dict[str, Any]] = {"num_labels": 91, "backbone_config": _RESNET50}
_RT_DETR: Final[dict[str, Any]] = {"num_labels": 80, "auxiliary_loss": False}
_RESNET18: Final[dict[str, Any]] = {
    "model_type": "rt_detr_resnet",
    "layer_type": "basic",
    "depths": [2, 2, 2, 2],
    "hidden_sizes": [64, 128, 256, 512],
    "out_features": ["stage2", "stage3", "stage4"],
}

RECIPES: Final = (
    _detector("rt_detr_r50", "rt_detr", "RTDetr", 512, **_RT_DETR, anchor_image_size=[512, 512]),
    _detector(
        "rt_detr_r18",
        "rt_detr",
        "RTDetr",
        640,
        **_RT_DETR,
        anchor_image_size=[640, 640],
        decoder_layers=3,
        hidden_expansion=0.5,
        encoder_in_channels=[128, 256, 512],
        backbone_config=_RESNET18,
    ),
    _detector("detr_r50", "detr", "Detr", _PIXELS, **_DETR),
    _detector("conditional_detr_r50", "detr", "ConditionalDetr", _PIXELS, **_DETR),
)
