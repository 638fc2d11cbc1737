"""Text: transformers that encode, decode, or both."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.env.zoo.exporters import transformers_graph
from go_opt.env.zoo.recipe import Recipe


def _tokens(*names: str, length: int = 128) -> dict[str, NDArray]:
    return dict.fromkeys(names, np.zeros((1, length), np.int64))


RECIPES: Final = (
    Recipe(
        "bert_base",
        "bert",
        "transformers",
        "BertModel, 128 tokens",
        partial(transformers_graph, "BertModel", "BertConfig", {}, _tokens("input_ids", "attention_mask")),
    ),
    Recipe(
        "gpt2",
        "gpt",
        "transformers",
        "GPT2LMHeadModel, 128 tokens",
        partial(
            transformers_graph, "GPT2LMHeadModel", "GPT2Config", {"use_cache": False}, _tokens("input_ids")
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
            _tokens("input_ids", "decoder_input_ids"),
        ),
    ),
)
