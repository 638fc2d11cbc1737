"""The transformer of ``gpt:`` as a JAX function: a decoder that predicts the next token.

Norms have scales, positions are added as sines, the table of tokens is also the last product's. Arrays:
``b`` sequences, ``s`` tokens, ``h`` hidden, ``n`` heads, ``d`` their depth, ``m`` columns of the MLP, ``e``
experts, ``c`` tokens of an expert, ``v`` tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np

from go_opt.parallel import Transformer

Array = Any  # of JAX
Weights = Mapping[str, Array]  # "layers.3.query", "table", "final_norm"
_LEARNING_RATE, _DECAY, _SQUARE_DECAY, _LEAST = 1e-2, 0.9, 0.999, 1e-8  # of Adam


class Layout(Protocol):
    """How arrays lie on devices."""

    def place(self, name: str, array: Array) -> Array:
        """The activation of this name, laid out."""

    def read(
        self, name: str, function: Callable[[Array, Array], Array], array: Array, weight: Array
    ) -> Array:
        """``function`` of an array and the parameter of this name, gathered if it is divided."""


class Whole:
    """Everything on one device."""

    def place(self, name: str, array: Array) -> Array:
        return array

    def read(
        self, name: str, function: Callable[[Array, Array], Array], array: Array, weight: Array
    ) -> Array:
        return function(array, weight)


@dataclass(frozen=True)
class StageOf:
    """Consecutive layers of a model, and what stands at its ends."""

    model: Transformer
    layers: Mapping[int, str]  # what of each is computed again: none, attention, full
    is_first: bool
    is_last: bool
    mean_of: int  # tokens of a step, of which the loss is the mean


def run_stage(stage: StageOf, layout: Layout, weights: Weights, given: Array, tokens: Array) -> Array:
    """What a stage gives for one micro-batch: [b, s, h], or its share of the loss from the last stage.

    Args:
      given: [b, s, h] from the stage before; empty for the first.
      tokens: [b, s + 1], of which the last is only predicted.
    """
    model = stage.model
    hidden = _embedded(layout, weights, tokens[:, :-1]) if stage.is_first else given
    for number, again in stage.layers.items():
        prefix = f"layers.{number}."
        own = {name.removeprefix(prefix): one for name, one in weights.items() if name.startswith(prefix)}
        layer = partial(_layer, model, layout, again)
        hidden = (jax.checkpoint(layer) if again == "full" else layer)(own, hidden)
    if not stage.is_last:
        return hidden
    return _loss_sum(model, layout, weights, hidden, tokens[:, 1:]) / stage.mean_of


def names_of(stage: StageOf, of_layer: Iterable[str]) -> list[str]:
    """The parameters of a stage; ``of_layer`` are those of a layer."""
    found = [f"layers.{number}.{name}" for number in stage.layers for name in of_layer]
    ends = ["table"] if stage.is_first or stage.is_last else []
    return [*found, *ends, *(["final_norm"] if stage.is_last else [])]


def _product(equation: str) -> Callable[[Array, Array], Array]:
    return partial(jnp.einsum, equation)


def _scaled(array: Array, scale: Array) -> Array:
    return array * scale


def _normalised(array: Array) -> Array:
    return array * jax.lax.rsqrt(jnp.mean(array * array, axis=-1, keepdims=True) + 1e-6)


def _embedded(layout: Layout, weights: Weights, tokens: Array) -> Array:
    rows = layout.read("table", lambda tokens, table: table[tokens], tokens, weights["table"])
    length, hidden = rows.shape[1:]
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(hidden) / hidden)
    return layout.place("hidden", rows + np.where(np.arange(hidden) % 2, np.cos(angles), np.sin(angles)))


def _loss_sum(model: Transformer, layout: Layout, weights: Weights, hidden: Array, targets: Array) -> Array:
    read = layout.read("final_norm", _scaled, _normalised(hidden), weights["final_norm"])
    read = layout.place("inputs", read)
    logits = layout.read("table", _product("bsh,vh->bsv"), read, weights["table"])
    number = np.arange(logits.shape[-1])
    logits = layout.place("logits", jnp.where(number < model.vocabulary, logits, -jnp.inf))
    right = jnp.where(number == targets[..., None], logits, 0.0).sum(-1)
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - right)


def _layer(model: Transformer, layout: Layout, again: str, weights: Weights, hidden: Array) -> Array:
    def read(name: str, function: Callable[[Array, Array], Array], array: Array) -> Array:
        return layout.read(name, function, array, weights[name])

    inputs = layout.place("inputs", read("attention_norm", _scaled, _normalised(hidden)))
    queries = layout.place("queries", read("query", _product("bsh,hnd->bsnd"), inputs))
    keys, values = (
        layout.place("keys", read(name, _product("bsh,hnd->bsnd"), inputs)) for name in ("key", "value")
    )
    attention = jax.checkpoint(_attention) if again == "attention" else _attention
    mixed = layout.place("queries", attention(queries, keys, values))
    hidden += layout.place("hidden", read("attention_out", _product("bsnd,ndh->bsh"), mixed))
    inputs = layout.place("inputs", read("mlp_norm", _scaled, _normalised(hidden)))
    mlp = _experts if model.experts > 1 else _mlp
    return hidden + layout.place("hidden", mlp(model, layout, read, inputs))


def _attention(queries: Array, keys: Array, values: Array) -> Array:
    length, heads, depth = queries.shape[1:]
    keys, values = (jnp.repeat(one, heads // one.shape[2], axis=2) for one in (keys, values))
    scores = jnp.einsum("bqnd,bknd->bnqk", queries, keys) / math.sqrt(depth)
    scores = jnp.where(np.tri(length, dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bnqk,bknd->bqnd", jax.nn.softmax(scores, axis=-1), values)


def _mlp(model: Transformer, layout: Layout, read: Callable[..., Array], inputs: Array) -> Array:
    columns = _activated(model, read, _product("bsh,hm->bsm"), inputs)
    return read("down", _product("bsm,mh->bsh"), layout.place("columns", columns))


def _activated(model: Transformer, read: Callable[..., Array], product: Any, inputs: Array) -> Array:
    up = read("up", product, inputs)
    return jax.nn.silu(read("gate", product, inputs)) * up if model.gated else jax.nn.gelu(up)


def _experts(model: Transformer, layout: Layout, read: Callable[..., Array], inputs: Array) -> Array:
    """Each token goes to the experts that its router likes best; none is left out."""
    shares = jax.nn.softmax(read("router", _product("bsh,he->bse"), inputs), axis=-1)
    best, which = jax.lax.top_k(shares, model.experts_per_token)
    chosen = jax.nn.one_hot(which, model.experts)  # [b, s, k, e]
    if model.experts_per_token > 1:  # with one, its share would have no gradient
        best = best / best.sum(-1, keepdims=True)
    share = (chosen * best[..., None]).sum(2)
    is_sent = chosen.sum(2)
    place = jnp.cumsum(is_sent, axis=1) - 1.0
    sent = is_sent[..., None] * jax.nn.one_hot(place.astype(int), inputs.shape[1])  # [b, s, e, c]
    tokens = layout.place("expert_tokens", jnp.einsum("bsec,bsh->ebch", sent, inputs))
    received = layout.place("expert_inputs", tokens)
    columns = _activated(model, read, _product("ebch,ehm->ebcm"), received)
    results = read("down", _product("ebcm,emh->ebch"), layout.place("expert_columns", columns))
    results = layout.place("expert_tokens", layout.place("expert_inputs", results))
    return jnp.einsum("bsec,ebch,bse->bsh", sent, results, share)


def first_weight(name: str, shape: Sequence[int], seed: int) -> np.ndarray:
    """The value that a parameter begins with, the same wherever it lies."""
    drawn = np.random.default_rng([seed, crc32(name.encode())]).standard_normal(tuple(shape))
    if name.endswith("norm"):
        return 1.0 + 0.1 * drawn
    return 0.5 * drawn / math.sqrt(shape[-1])


def drawn_tokens(model: Transformer, batch: int, seed: int, step: int) -> np.ndarray:
    """[batch, s + 1] the tokens of a step."""
    return np.random.default_rng([seed, step]).integers(model.vocabulary, size=(batch, model.sequence + 1))


def adam(weight: Array, gradient: Array, moments: tuple[Array, Array], step: Array) -> tuple[Array, Any]:
    """The weight and its moments behind step ``step``, which counts from one."""
    mean = _DECAY * moments[0] + (1.0 - _DECAY) * gradient
    square = _SQUARE_DECAY * moments[1] + (1.0 - _SQUARE_DECAY) * gradient**2
    root = jnp.sqrt(square / (1.0 - _SQUARE_DECAY**step))
    return weight - _LEARNING_RATE * mean / (1.0 - _DECAY**step) / (root + _LEAST), (mean, square)
