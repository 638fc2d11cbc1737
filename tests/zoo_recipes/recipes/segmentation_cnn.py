"""Convolutional networks that answer for every pixel."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from go_opt.model.graph import Graph
from tests.zoo_recipes.exporters import flax_graph, transformers_graph
from tests.zoo_recipes.recipe import Recipe


def _deeplab(kind: str, pixels: int) -> Graph:
    """DeepLabV3, which keeps a 16th of the resolution, for the 21 classes of Pascal VOC."""
    image = {"pixel_values": np.zeros((1, 3, pixels, pixels), np.float32)}
    settings = {"num_labels": 21, "output_stride": 16}
    return transformers_graph(f"{kind}ForSemanticSegmentation", f"{kind}Config", settings, image)


def _text_detector(pixels: int) -> Graph:
    """PP-OCRv5's server model with the settings it was published with."""
    sizes = {"longratio": 7, "midratio": 5, "shortratio": 3}
    kernels: dict[str, Any] = {"reduce_channel": (1, 1, 0), "return_channel": (1, 1, 0)}
    for ratio, size in sizes.items():
        half = size // 2
        kernels[f"vertical_long_to_small_conv_{ratio}"] = ((size, 1), 1, (half, 0))
        kernels[f"horizontal_small_to_long_conv_{ratio}"] = ((1, size), 1, (0, half))
        kernels[f"symmetric_conv_long_{ratio}"] = (size, 1, half)
    settings = {
        "intraclass_block_config": kernels,
        "scale_factor_list": [1, 2, 4, 8],
        "kernel_list": [3, 2, 2],
    }
    image = {"pixel_values": np.zeros((1, 3, pixels, pixels), np.float32)}
    return transformers_graph("PPOCRV5ServerDetForObjectDetection", "PPOCRV5ServerDetConfig", settings, image)


def _unet(pixels: int) -> Graph:
    return flax_graph(
        "segmentation_unet.SegmentationUNet", (), [np.zeros((1, pixels, pixels, 1), np.float32)]
    )


RECIPES: Final = (
    Recipe(
        "deeplab_v3_mobilenet_v2",
        "mobilenet",
        "transformers",
        "MobileNetV2ForSemanticSegmentation, 1x3x513x513",
        partial(_deeplab, "MobileNetV2", 513),
    ),
    Recipe(
        "deeplab_v3_mobilevit_s",
        "mobilevit",
        "transformers",
        "MobileViTForSemanticSegmentation, 1x3x384x384",
        partial(_deeplab, "MobileViT", 384),
    ),
    Recipe(
        "pp_ocrv5_server_det",
        "hgnet",
        "transformers",
        "PPOCRV5ServerDetForObjectDetection, 1x3x320x320",
        partial(_text_detector, 320),
    ),
    # The paper's 572x572 leaves activations of 41 MB; unpadded, only every 16th size halves evenly.
    Recipe(
        "unet_segmentation",
        "unet",
        "flax",
        "models.segmentation_unet.SegmentationUNet, 1x252x252x1",
        partial(_unet, 252),
    ),
)
