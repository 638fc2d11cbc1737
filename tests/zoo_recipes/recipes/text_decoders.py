"""Text decoders: transformers, mixtures of experts, state spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.zoo_recipes.models.experts import balance_granite
from tests.zoo_recipes.models.mamba import unrolled_mamba
from tests.zoo_recipes.models.rwkv import stacked_rwkv
from tests.zoo_recipes.recipe import Recipe
from tests.zoo_recipes.recipes.text_models import NO_CACHE, text_recipe, tokens


def _decoder(
    name: str,
    family: str,
    kind: str,
    length: int,
    adapt: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Recipe:
    """Without the output layer: most are larger than a chip's memory, and then all that counts."""
    model = (kind, kind.replace("Model", "Config"))
    inputs = tokens("input_ids", length=length)
    return text_recipe(name, family, model, f"{length} tokens", inputs, adapt, **NO_CACHE, **settings)


_GEMMA3_270M: Final[dict[str, Any]] = {
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
}
_PYTHIA_410M: Final[dict[str, Any]] = {
    "vocab_size": 50_304,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
_SMOLLM2_135M: Final[dict[str, Any]] = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
# The published configuration of granite-3.0-1b-a400m.
_GRANITE_1B_A400M: Final[dict[str, Any]] = {
    "vocab_size": 49_155,
    "hidden_size": 1024,
    "intermediate_size": 512,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "num_experts_per_tok": 8,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 1 / 64,
    "residual_multiplier": 0.22,
}
# Scaling the layers down serves 16-bit floats only.
_RWKV_169M: Final[dict[str, Any]] = {"hidden_size": 768, "num_hidden_layers": 12, "rescale_every": 0}

RECIPES: Final = (
    _decoder("gemma3_270m", "gemma", "Gemma3TextModel", 512, **_GEMMA3_270M),
    _decoder("gpt2_medium", "gpt", "GPT2Model", 512, n_embd=1024, n_layer=24, n_head=16),
    _decoder("granite_1b_a400m", "mixtral", "GraniteMoeModel", 128, balance_granite, **_GRANITE_1B_A400M),
    _decoder("mamba_130m", "mamba", "MambaModel", 16, unrolled_mamba, num_hidden_layers=24),
    _decoder("phi_1", "phi", "PhiModel", 128),
    _decoder("pythia_410m", "gpt_neox", "GPTNeoXModel", 128, **_PYTHIA_410M),
    _decoder("rwkv_169m", "rwkv", "RwkvModel", 16, stacked_rwkv, **_RWKV_169M),
    _decoder("smollm2_135m", "llama", "LlamaModel", 512, **_SMOLLM2_135M),
)
