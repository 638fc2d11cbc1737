"""Speech and audio: recognition, synthesis and vocoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from go_opt import from_jax
from go_opt.model.graph import Graph
from tests.zoo_recipes.exporters import called_graph, transformers_graph
from tests.zoo_recipes.recipe import Recipe


def _floats(*shape: int) -> NDArray:
    return np.zeros((1, *shape), np.float32)


def _ids(length: int) -> NDArray:
    return np.zeros((1, length), np.int64)


def _recipe(
    name: str, family: str, model: str, size: str, inputs: Mapping[str, NDArray], **settings: Any
) -> Recipe:
    config = model.partition("For")[0].removesuffix("Model") + "Config"
    build = partial(transformers_graph, model, config, settings, inputs)
    return Recipe(name, family, "transformers", f"{model}, {size}", build)


def _called(
    name: str, family: str, model: str, size: str, call: Callable[..., Any], inputs: Mapping[str, NDArray]
) -> Recipe:
    build = partial(called_graph, model, model.removesuffix("Model") + "Config", {}, call, inputs)
    return Recipe(name, family, "transformers", f"{model}, {size}", build)


def _wav2vec2(name: str, family: str, model: str, samples: int, **settings: Any) -> Recipe:
    """A model of raw audio at 16 kHz."""
    return _recipe(name, family, model, f"{samples} samples", {"input_values": _floats(samples)}, **settings)


def _fastspeech(network: Any, ids: Any, phoneme_of_frame: Any) -> Any:
    """Spectrogram and durations; the host says which phoneme each frame belongs to."""
    from transformers.models.fastspeech2_conformer import modeling_fastspeech2_conformer as module

    with patch.object(module, "length_regulator", lambda hidden, *_: hidden[:, phoneme_of_frame]):
        outputs = type(network).forward(network, ids)
    return outputs.spectrogram, outputs.duration_outputs


def _vits(network: Any, ids: Any, mask: Any, alignment: Any, noise: Any) -> Any:
    """The waveform; the host turns durations into the alignment [frame, phoneme] and draws the noise."""
    import torch

    text = network.text_encoder(ids, mask)
    mean = (alignment @ text.prior_means).transpose(1, 2)
    log_variance = (alignment @ text.prior_log_variances).transpose(1, 2)
    prior = mean + noise * torch.exp(log_variance) * network.noise_scale
    return network.decoder(network.flow(prior, torch.ones_like(prior[:, :1]), reverse=True))


def _whisper(size: str, width: int, layers: int, heads: int) -> Recipe:
    """Ten of the model's thirty seconds: the attention weights over thirty exceed a chip's memory."""
    settings = {
        "d_model": width,
        **{f"{side}_layers": layers for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 4 * width for side in ("encoder", "decoder")},
        "max_source_positions": 500,
        "use_cache": False,
    }
    inputs = {"input_features": _floats(80, 1000), "decoder_input_ids": _ids(64)}
    model = "WhisperForConditionalGeneration"
    return _recipe(f"whisper_{size}", "whisper", model, "80x1000 mel frames, 64 tokens", inputs, **settings)


def _wavenet_graph(stacks: int, layers: int, samples: int) -> Graph:
    from flax import nnx

    from tests.zoo_recipes.models.wavenet import WaveNet

    model = WaveNet(stacks=stacks, layers=layers, rngs=nnx.Rngs(0))
    return from_jax(model.__call__, np.zeros((1, samples), np.int32))


def _wavenet(stacks: int, layers: int, samples: int) -> Recipe:
    build = partial(_wavenet_graph, stacks, layers, samples)
    model = f"models.wavenet.WaveNet, {stacks} stacks, {layers} layers, {samples} samples"
    return Recipe(f"wavenet_{stacks}x{layers}", "wavenet", "flax", model, build)


RECIPES: Final = (
    _called(
        "fastspeech2_conformer",
        "fastspeech",
        "FastSpeech2ConformerModel",
        "64 phonemes, 256 frames",
        _fastspeech,
        {"ids": _ids(64), "phoneme_of_frame": np.zeros(256, np.int64)},
    ),
    _recipe(
        "hifigan", "hifigan", "FastSpeech2ConformerHifiGan", "128 frames", {"spectrogram": _floats(128, 80)}
    ),
    _recipe(
        "speecht5_tts",
        "speecht5",
        "SpeechT5ForTextToSpeech",
        "64 characters, 512 frames in 256 steps",
        {
            "input_ids": _ids(64),
            "decoder_input_values": _floats(256, 80),
            "speaker_embeddings": _floats(512),
        },
        use_cache=False,
    ),
    _called(
        "vits",
        "vits",
        "VitsModel",
        "64 phonemes, 128 frames",
        _vits,
        {
            "ids": _ids(64),
            "mask": _floats(64, 1),
            "alignment": _floats(128, 64),
            "noise": _floats(192, 128),
        },
    ),
    _wav2vec2("wav2vec2_base", "wav2vec2", "Wav2Vec2ForCTC", 32_000),
    _wavenet(2, 18, 8192),
    _wavenet(4, 36, 8192),
    _whisper("base", 512, 6, 8),
)
