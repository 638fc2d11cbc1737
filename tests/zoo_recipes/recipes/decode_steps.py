"""Steps of decoding and of streaming: what is kept for the next step goes in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.model.graph import Graph
from tests.zoo_recipes.hollow import exported_graph, hollow_network
from tests.zoo_recipes.models import rnnt
from tests.zoo_recipes.models.decode_step import cache_names, decode_step, mamba_step, prefill, whisper_step
from tests.zoo_recipes.models.experts import balance_mixtral
from tests.zoo_recipes.recipe import Recipe
from tests.zoo_recipes.recipes.text_models import text_recipe, tokens

_SMOLLM2_360M: Final[dict[str, Any]] = {
    "vocab_size": 49_152,
    "hidden_size": 960,
    "intermediate_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "tie_word_embeddings": True,
}
_TINYLLAMA: Final[dict[str, Any]] = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
# Mixtral's block at a width whose weights fit the package.
_MIXTRAL_8X30M: Final[dict[str, Any]] = {
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_WHISPER_BASE: Final[dict[str, Any]] = {
    "d_model": 512,
    **{f"{side}_layers": 6 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 8 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")},
}


def _floats(*shape: int) -> NDArray:
    return np.zeros(shape, np.float32)


def _step(
    name: str,
    family: str,
    model: str,
    size: str,
    kept: Sequence[tuple[str, NDArray]],
    layers: int,
    adapt: Callable[[Any], Any] = decode_step,
    **settings: Any,
) -> Recipe:
    """A new token for each sequence, and what each layer keeps, by its part of the name."""
    parts, arrays = zip(*kept, strict=True)
    inputs = {"token": np.zeros((len(arrays[0]), 1), np.int64), "past": [arrays] * layers}
    config = model.partition("For")[0].removesuffix("LMHeadModel") + "Config"
    return text_recipe(
        name, family, (model, config), size, inputs, adapt, cache_names(layers, parts), **settings
    )


def _cache(heads: int, past: int, batch: int = 1, prefix: str = "") -> list[tuple[str, NDArray]]:
    """A layer's keys and values of ``past`` tokens, ``heads`` of 64."""
    return [(f"{prefix}{part}", _floats(batch, heads, past, 64)) for part in ("key", "value")]


def _balanced_step(network: Any) -> Any:
    return decode_step(balance_mixtral(network))


def _prefill(name: str, family: str, model: str, length: int, layers: int, **settings: Any) -> Recipe:
    """A prompt, whose keys and values go out."""
    names = (["input_ids"], cache_names(layers)[1])
    kinds, inputs = (model, model.replace("ForCausalLM", "Config")), tokens("tokens", length=length)
    return text_recipe(name, family, kinds, f"{length} tokens", inputs, prefill, names, **settings)


def _transducer_graph() -> Graph:
    layers = {"encoder": rnnt.ENCODER_LAYERS, "prediction": rnnt.PREDICTION_LAYERS}
    state = _floats(1, rnnt.PROJECTED), _floats(1, rnnt.UNITS)
    inputs = {"frames": _floats(1, 2, rnnt.MELS), "piece": np.zeros(1, np.int64)}
    inputs |= {part: [state] * count for part, count in layers.items()}
    ends = [f"{part}_{i}_{kind}" for part, n in layers.items() for i in range(n) for kind in ("h", "c")]
    names = [["frames", "piece", *ends], ["logits", *(f"next_{end}" for end in ends)]]
    return exported_graph(hollow_network(rnnt.transducer_step), inputs, (names[0], names[1]))


RECIPES: Final = (
    _step("gpt2_step", "gpt", "GPT2LMHeadModel", "1 token behind 512", _cache(12, 512), 12),
    _step(
        "mamba_130m_step",
        "mamba",
        "MambaForCausalLM",
        "1 token",
        [("conv", _floats(1, 1536, 4)), ("ssm", _floats(1, 1536, 16))],
        24,
        mamba_step,
        num_hidden_layers=24,
    ),
    _step(
        "mixtral_8x30m_step_b8",
        "mixtral",
        "MixtralForCausalLM",
        "1 token behind 256, batch 8",
        _cache(4, 256, batch=8),
        12,
        _balanced_step,
        **_MIXTRAL_8X30M,
    ),
    Recipe(
        "rnnt_step",
        "rnnt",
        "torch",
        "models.rnnt.transducer_step, 2x320 mel frames",
        _transducer_graph,
    ),
    _prefill("smollm2_360m_prefill", "llama", "LlamaForCausalLM", 512, 32, **_SMOLLM2_360M),
    _step(
        "smollm2_360m_step",
        "llama",
        "LlamaForCausalLM",
        "1 token behind 1024",
        _cache(5, 1024),
        32,
        **_SMOLLM2_360M,
    ),
    _step(
        "tinyllama_1b_step",
        "llama",
        "LlamaForCausalLM",
        "1 token behind 1024",
        _cache(4, 1024),
        22,
        **_TINYLLAMA,
    ),
    _step(
        "whisper_base_step",
        "whisper",
        "WhisperForConditionalGeneration",
        "1 token behind 128, 1500 frames heard",
        [*_cache(8, 128, prefix="decoder."), *_cache(8, 1500, prefix="encoder.")],
        6,
        whisper_step,
        **_WHISPER_BASE,
    ),
)
