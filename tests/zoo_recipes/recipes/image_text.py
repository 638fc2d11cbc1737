"""Images and text: two towers, or one model that reads both."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.zoo_recipes.exporters import transformers_graph
from tests.zoo_recipes.recipe import Recipe


def _both(name: str, family: str, model: str, config: str, tokens: int, pixels: int) -> Recipe:
    """A model of ``transformers`` on one text and one square image."""
    inputs: dict[str, NDArray] = {
        "input_ids": np.zeros((1, tokens), np.int64),
        "pixel_values": np.zeros((1, 3, pixels, pixels), np.float32),
    }
    build = partial(transformers_graph, model, config, {}, inputs)
    return Recipe(name, family, "transformers", f"{model}, {tokens} tokens, 1x3x{pixels}x{pixels}", build)


def _lxmert() -> Recipe:
    inputs: dict[str, NDArray] = {
        "input_ids": np.zeros((1, 20), np.int64),
        "visual_feats": np.zeros((1, 36, 2048), np.float32),
        "visual_pos": np.zeros((1, 36, 4), np.float32),
    }
    build = partial(transformers_graph, "LxmertModel", "LxmertConfig", {}, inputs)
    return Recipe("lxmert", "lxmert", "transformers", "LxmertModel, 20 tokens, 36 regions", build)


RECIPES: Final = (
    _both("clip_b32", "clip", "CLIPModel", "CLIPConfig", 77, 224),
    _both("siglip_b16", "clip", "SiglipModel", "SiglipConfig", 64, 224),
    _both("blip_b16", "blip", "BlipForConditionalGeneration", "BlipConfig", 32, 384),
    _both("flava", "flava", "FlavaModel", "FlavaConfig", 77, 224),
    _both("bridgetower_b", "bridgetower", "BridgeTowerModel", "BridgeTowerConfig", 50, 288),
    _lxmert(),
)
