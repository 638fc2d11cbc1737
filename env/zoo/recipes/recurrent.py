"""Recurrent networks, unrolled over their steps."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from go_opt.env.zoo.recipe import Recipe
from go_opt.frontends import from_jax
from go_opt.graph import Graph


def _rnnlm(tokens: int) -> Graph:
    from flax import nnx

    from go_opt.env.zoo.models.lstm import LstmLanguageModel

    model = LstmLanguageModel(vocabulary=10_000, width=2048, layers=2, rngs=nnx.Rngs(0))
    return from_jax(model.__call__, np.zeros((1, tokens), np.int32))


RECIPES: Final = (
    Recipe("rnnlm_2x2048", "rnn", "flax", "models.lstm.LstmLanguageModel, 192 tokens", partial(_rnnlm, 192)),
)
