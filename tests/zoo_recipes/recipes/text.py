"""Text: transformers that encode, decode, or both."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.zoo_recipes.exporters import transformers_graph
from tests.zoo_recipes.recipe import Recipe
from tests.zoo_recipes.recipes import text_decoders, text_encoders, text_pairs
from tests.zoo_recipes.recipes.text_models import tokens

RECIPES: Final = (
    *text_decoders.RECIPES,
    *text_encoders.RECIPES,
    *text_pairs.RECIPES,
    Recipe(
        "bert_base",
        "bert",
        "transformers",
        "BertModel, 128 tokens",
        partial(transformers_graph, "BertModel", "BertConfig", {}, tokens("input_ids", "attention_mask")),
    ),
    Recipe(
        "gpt2",
        "gpt",
        "transformers",
        "GPT2LMHeadModel, 128 tokens",
        partial(
            transformers_graph, "GPT2LMHeadModel", "GPT2Config", {"use_cache": False}, tokens("input_ids")
        ),
    ),
    Recipe(
        "t5_small",
        "t5",
        "transformers",
        "T5ForConditionalGeneration, 128 tokens in and out",
        partial(
            transformers_graph,
            "T5ForConditionalGeneration",
            "T5Config",
            {"use_cache": False},
            tokens("input_ids", "decoder_input_ids"),
        ),
    ),
)
