"""Text encoders."""

from __future__ import annotations

from typing import Any, Final

from tests.zoo_recipes.models.bigbird import block_attention
from tests.zoo_recipes.recipe import Recipe
from tests.zoo_recipes.recipes.text_models import text_recipe, tokens


def _encoder(name: str, family: str, kind: str, length: int, **settings: Any) -> Recipe:
    model = (f"{kind}Model", f"{kind}Config")
    inputs = tokens("input_ids", "attention_mask", length=length)
    return text_recipe(name, family, model, f"{length} tokens", inputs, **settings)


_LARGE: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_BASE: Final[dict[str, Any]] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
# The published configuration of deberta-v3-base.
_DEBERTA: Final[dict[str, Any]] = {
    "vocab_size": 128_100,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}

RECIPES: Final = (
    _encoder("albert_base", "albert", "Albert", 128, **_BASE),
    _encoder("bert_large", "bert", "Bert", 384, **_LARGE),
    _encoder("convbert_base", "convbert", "ConvBert", 128),
    _encoder("deberta_v3_base", "deberta", "DebertaV2", 128, **_BASE, **_DEBERTA),
    _encoder("funnel_small", "funnel", "Funnel", 128),
    _encoder("mobilebert", "mobilebert", "MobileBert", 128),
    text_recipe(
        "bigbird_base",
        "bigbird",
        ("BigBirdModel", "BigBirdConfig"),
        "768 tokens",
        tokens("input_ids", length=768),
        block_attention,
    ),
    text_recipe(
        "fnet_base", "fnet", ("FNetModel", "FNetConfig"), "512 tokens", tokens("input_ids", length=512)
    ),
    text_recipe(
        "xlnet_base",
        "xlnet",
        ("XLNetModel", "XLNetConfig"),
        "128 tokens",
        tokens("input_ids"),
        d_model=768,
        n_layer=12,
        n_head=12,
        d_inner=3072,
        use_mems_eval=False,
    ),
)
