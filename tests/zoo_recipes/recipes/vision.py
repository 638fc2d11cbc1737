"""Vision transformers: classification, segmentation, depth and video."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from tests.zoo_recipes.exporters import transformers_graph
from tests.zoo_recipes.recipe import Recipe

_CLASSES: Final[dict[str, Any]] = {"num_labels": 1000}


def _vision(name: str, family: str, model: str, config: str, pixels: int, **settings: Any) -> Recipe:
    """A model of ``transformers`` on one square image."""
    image = {"pixel_values": np.zeros((1, 3, pixels, pixels), np.float32)}
    build = partial(transformers_graph, model, config, settings, image)
    return Recipe(name, family, "transformers", f"{model}, 1x3x{pixels}x{pixels}", build)


def _classifier(name: str, family: str, library: str, pixels: int = 224, **settings: Any) -> Recipe:
    """A classifier of 1000 classes, called ``library`` in ``transformers``."""
    model, config = f"{library}ForImageClassification", f"{library}Config"
    return _vision(name, family, model, config, pixels, **_CLASSES, **settings)


_LEVIT_384: Final[dict[str, Any]] = {
    "hidden_sizes": [384, 512, 768],
    "num_attention_heads": [6, 9, 12],
    "key_dim": [32, 32, 32],
    "down_ops": [["Subsample", 32, 12, 4, 2, 2], ["Subsample", 32, 16, 4, 2, 2]],
}
_PERCEIVER_CONV: Final[dict[str, Any]] = {
    "num_latents": 512,
    "d_latents": 1024,
    "d_model": 322,
    "num_blocks": 8,  # of the same weights
    "num_self_attends_per_block": 6,
    "num_cross_attention_heads": 1,
}
_PERCEIVER_LANGUAGE: Final = {"qk_channels": 256, "v_channels": 1280}
_VIT_L: Final[dict[str, Any]] = {
    "image_size": 384,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
_DINOV2_S: Final[dict[str, Any]] = {
    "model_type": "dinov2",
    "image_size": 518,
    "patch_size": 14,
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "out_indices": [9, 10, 11, 12],
    "reshape_hidden_states": False,
    "apply_layernorm": True,
}
_VIDEO: Final = {"pixel_values": np.zeros((1, 8, 3, 224, 224), np.float32)}
_BYTES: Final = {"inputs": np.zeros((1, 2048), np.int64)}

RECIPES: Final = (
    _classifier("swin_t", "swin", "Swin"),
    _classifier("swin_b", "swin", "Swin", embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]),
    _classifier("swinv2_t", "swin", "Swinv2", 256, image_size=256, window_size=8),
    _vision(
        "segformer_b0",
        "segformer",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        256,
        num_labels=150,
    ),
    _classifier("mit_b5", "segformer", "Segformer", hidden_sizes=[64, 128, 320, 512], depths=[3, 6, 40, 3]),
    _classifier("pvt_v2_b2", "pvt", "PvtV2", hidden_sizes=[64, 128, 320, 512], depths=[3, 4, 6, 3]),
    _classifier("levit_384", "levit", "Levit", **_LEVIT_384),
    _classifier("cvt_13", "cvt", "Cvt"),
    _classifier("focalnet_t", "focalnet", "FocalNet"),
    _classifier("hiera_b", "hiera", "Hiera"),
    _vision(
        "perceiver_io_conv",
        "perceiver",
        "PerceiverForImageClassificationConvProcessing",
        "PerceiverConfig",
        224,
        **_CLASSES,
        **_PERCEIVER_CONV,
    ),
    Recipe(
        "perceiver_io_language",
        "perceiver",
        "transformers",
        "PerceiverForMaskedLM, 2048 bytes",
        partial(transformers_graph, "PerceiverForMaskedLM", "PerceiverConfig", _PERCEIVER_LANGUAGE, _BYTES),
    ),
    Recipe(
        "timesformer_b",
        "timesformer",
        "transformers",
        "TimesformerForVideoClassification, 1x8x3x224x224",
        partial(
            transformers_graph,
            "TimesformerForVideoClassification",
            "TimesformerConfig",
            {"num_labels": 400},
            _VIDEO,
        ),
    ),
    _classifier("vit_b16", "vit", "ViT"),
    _classifier("vit_l16_384", "vit", "ViT", 384, **_VIT_L),
    _vision(
        "depth_anything_s",
        "vit",
        "DepthAnythingForDepthEstimation",
        "DepthAnythingConfig",
        392,
        backbone_config=_DINOV2_S,
    ),
)
