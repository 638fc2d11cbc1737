"""Text models of an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.zoo_recipes.models.experts import balance_switch
from tests.zoo_recipes.recipe import Recipe
from tests.zoo_recipes.recipes.text_models import NO_CACHE, text_recipe, tokens


def _pair(
    name: str,
    family: str,
    model: tuple[str, str],
    read: int,
    written: int,
    *,
    masks: bool = False,
    adapt: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Recipe:
    inputs = tokens("input_ids", length=read) | tokens("decoder_input_ids", length=written)
    if masks:
        inputs |= tokens("attention_mask", length=read) | tokens("decoder_attention_mask", length=written)
    size = f"{read} tokens in, {written} out"
    return text_recipe(name, family, model, size, inputs, adapt, **NO_CACHE, **settings)


_BART_BASE: Final[dict[str, Any]] = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
}
_T5_BASE: Final[dict[str, Any]] = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
_T5: Final = ("T5Model", "T5Config")
_LONGT5: Final = ("LongT5Model", "LongT5Config")
_SWITCH: Final = ("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig")
# The published configuration of long-t5-tglobal-base.
_LONGT5_BASE: Final[dict[str, Any]] = {
    "d_model": 768,
    "d_ff": 2048,
    "num_layers": 12,
    "num_heads": 12,
    "feed_forward_proj": "gated-gelu",
    "encoder_attention_type": "transient-global",
    "tie_word_embeddings": False,
}
_SWITCH_BASE: Final[dict[str, Any]] = {
    "num_layers": 12,
    "num_decoder_layers": 12,
    "num_heads": 12,
    "d_model": 768,
    "d_ff": 3072,
    "num_experts": 8,
    "num_sparse_encoder_layers": 6,
    "num_sparse_decoder_layers": 6,
}

RECIPES: Final = (
    _pair("bart_base", "bart", ("BartModel", "BartConfig"), 128, 128, **_BART_BASE),
    _pair("prophetnet_large", "prophetnet", ("ProphetNetModel", "ProphetNetConfig"), 128, 128),
    _pair("longt5_base", "longt5", _LONGT5, 768, 128, masks=True, **_LONGT5_BASE),
    _pair("switch_base_8", "switch", _SWITCH, 128, 128, masks=True, adapt=balance_switch, **_SWITCH_BASE),
    _pair("t5_base", "t5", _T5, 512, 128, **_T5_BASE),
)
