"""Recurrent networks, unrolled over their steps."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.zoo_recipes.exporters import flax_graph
from tests.zoo_recipes.recipe import Recipe


def _floats(*shape: int) -> NDArray:
    return np.zeros(shape, np.float32)


def _integers(*shape: int) -> NDArray:
    return np.zeros(shape, np.int32)


def _recipe(
    name: str, family: str, path: str, what: str, inputs: tuple[NDArray, ...], settings: tuple[int, ...] = ()
) -> Recipe:
    return Recipe(name, family, "flax", f"models.{path}, {what}", partial(flax_graph, path, settings, inputs))


def _rnnlm(layers: int, what: str) -> Recipe:
    settings = (10_000, 2048, layers)
    inputs = (_integers(1, 192),)
    return _recipe(f"rnnlm_{layers}x2048", "rnn", "lstm.LstmLanguageModel", what, inputs, settings)


def _gnmt(layers: int, tokens: int) -> Recipe:
    what = f"{layers} layers, {tokens} tokens in and out"
    inputs = (_integers(tokens), _integers(tokens))
    return _recipe(f"gnmt_{layers}", "gnmt", "gnmt.Gnmt", what, inputs, (layers,))


def _transformer_xl(layers: int) -> Recipe:
    what = f"{layers} layers, 8 segments of 256 characters"
    name, path = f"transformer_xl_{layers}", "transformer_xl.TransformerXl"
    return _recipe(name, "transformer_xl", path, what, (_integers(8 * 256),), (layers, 256))


RECIPES: Final = (
    _rnnlm(2, "192 tokens"),
    _rnnlm(4, "4 layers, 192 tokens"),
    _rnnlm(8, "8 layers, 192 tokens"),
    _gnmt(2, 64),
    _gnmt(4, 128),
    _gnmt(8, 208),
    _transformer_xl(2),
    _transformer_xl(4),
    _transformer_xl(8),
    _recipe("deepspeech2", "deepspeech", "deepspeech.DeepSpeech2", "1x200x161x1", (_floats(1, 200, 161, 1),)),
    _recipe("elmo", "elmo", "elmo.Elmo", "64 words of 50 characters", (_integers(64, 50),)),
    _recipe(
        "convlstm",
        "convlstm",
        "convlstm.ConvLstm",
        "10x16x16x16 seen, 10 forecast",
        (_floats(10, 16, 16, 16),),
    ),
    _recipe("tree_lstm", "tree_lstm", "tree_lstm.TreeLstm", "40 words", (_integers(40),), (21_701,)),
    _recipe(
        "deepar",
        "deepar",
        "deepar.DeepAr",
        "32 series, 168 hours seen, 24 forecast",
        (_floats(168, 32, 1), _floats(192, 32, 4), _integers(32)),
    ),
    _recipe("s5_listops", "s5", "s5.S5", "2048 tokens", (_floats(2048, 20),)),
)
