"""Diffusion: networks that take noise out of an image, and what surrounds them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt import from_jax
from go_opt.model.graph import Graph
from tests.zoo_recipes.exporters import torch_graph
from tests.zoo_recipes.recipe import Recipe


def _unet() -> Graph:
    from flax import nnx

    from tests.zoo_recipes.models.unet import DiffusionUNet

    model = DiffusionUNet(nnx.Rngs(0))
    return from_jax(model.__call__, np.zeros((1, 32, 32, 3), np.float32), np.zeros(1, np.float32))


def _diffusers_graph(model: str, settings: Mapping[str, Any], inputs: Mapping[str, NDArray]) -> Graph:
    import diffusers

    network = getattr(diffusers, model)(**settings)
    _unfuse_attention(network)
    return torch_graph(network, inputs)


def _unfuse_attention(network: Any) -> None:
    """The fused attention exports as the same products, plus guards against rows that are all masked."""
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    for module in network.modules():
        if type(getattr(module, "processor", None)) is AttnProcessor2_0:
            module.set_processor(AttnProcessor())


def _decoder_graph() -> Graph:
    import diffusers

    model = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
    )
    _unfuse_attention(model)
    model.forward = model.decode
    return torch_graph(model, {"z": _latents(4, 16)})


def _latents(channels: int, side: int) -> NDArray:
    return np.zeros((1, channels, side, side), np.float32)


def _network(
    name: str, family: str, model: str, what: str, inputs: Mapping[str, NDArray], **settings: Any
) -> Recipe:
    build = partial(_diffusers_graph, model, settings, inputs)
    return Recipe(name, family, "diffusers", f"{model}, {what}", build)


_STEP: Final = {"timestep": np.zeros(1, np.int64)}

RECIPES: Final = (
    Recipe("unet", "unet", "flax", "models.unet.DiffusionUNet, 1x32x32x3", _unet),
    Recipe("sd_vae_decoder", "vae", "diffusers", "AutoencoderKL.decode, 1x4x16x16", _decoder_graph),
    _network(
        "sd15_unet",
        "unet",
        "UNet2DConditionModel",
        "1x4x24x24, 77 tokens",
        {"sample": _latents(4, 24), **_STEP, "encoder_hidden_states": np.zeros((1, 77, 768), np.float32)},
        cross_attention_dim=768,
    ),
    _network(
        "adm_unet_64",
        "unet",
        "UNet2DModel",
        "1x3x64x64",
        {"sample": _latents(3, 64), **_STEP, "class_labels": np.zeros(1, np.int64)},
        sample_size=64,
        out_channels=6,
        num_class_embeds=1000,
        block_out_channels=(192, 384, 576, 768),
        layers_per_block=3,
        attention_head_dim=64,
        downsample_type="resnet",
        upsample_type="resnet",
        resnet_time_scale_shift="scale_shift",
        down_block_types=("ResnetDownsampleBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D"),
    ),
    _network(
        "dit_xl2",
        "dit",
        "DiTTransformer2DModel",
        "1x4x32x32",
        {"hidden_states": _latents(4, 32), **_STEP, "class_labels": np.zeros(1, np.int64)},
        out_channels=8,
    ),
    _network(
        "sana_600m",
        "sana",
        "SanaTransformer2DModel",
        "1x32x16x16, 300 tokens",
        {
            "hidden_states": _latents(32, 16),
            **_STEP,
            "encoder_hidden_states": np.zeros((1, 300, 2304), np.float32),
        },
        sample_size=16,
        num_attention_heads=36,
        num_layers=28,
        num_cross_attention_heads=16,
        cross_attention_head_dim=72,
        cross_attention_dim=1152,
    ),
)
