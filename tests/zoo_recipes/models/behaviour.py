"""Click-through rates from what a user did before: attention over a sequence of behaviours."""

from __future__ import annotations

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.tables import Mlp, Tables, rows_of

# Amazon Electronics (DIN) and Books (DIEN), as the authors count them.
_ELECTRONICS_GOODS, _ELECTRONICS_CATEGORIES = 63_001, 801
_BOOKS_USERS, _BOOKS_GOODS, _BOOKS_CATEGORIES = 543_060, 367_983, 1_601
# Taobao's items; the authors of BST do not count the rest, so those are round.
_TAOBAO_ITEMS, _TAOBAO_CATEGORIES = 12_166_060, 10_000
_PROFILE_ROWS = (10, 3, 500, 20, 100, 50, 1000, 10)  # of the user and the context: age, sex, city, ...


class Dice(nnx.Module):
    """DIN's activation: a leaky ReLU whose step is a sigmoid around the mean seen in training."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(width, use_running_average=True, use_bias=False, use_scale=False, rngs=rngs)
        self.slope = nnx.Param(jnp.zeros(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        share = nnx.sigmoid(self.norm(x))
        return share * x + (1 - share) * self.slope[...] * x


class DiceMlp(nnx.Module):
    """Dense layers, Dice behind all but the last."""

    def __init__(self, *widths: int, rngs: nnx.Rngs) -> None:
        pairs = pairwise(widths)
        self.layers = nnx.List([nnx.Linear(before, after, rngs=rngs) for before, after in pairs])
        self.activations = nnx.List([Dice(width, rngs) for width in widths[1:-1]])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer, activation in zip(self.layers, self.activations, strict=False):
            x = activation(layer(x))
        return self.layers[-1](x)


def _compared(query: jax.Array, keys: jax.Array) -> jax.Array:
    """The candidate beside each behaviour, with their difference and product."""
    queries = jnp.broadcast_to(query[:, None], keys.shape)
    return jnp.concatenate([queries, keys, queries - keys, queries * keys], axis=-1)


class Goods(nnx.Module):
    """The vector of an item: its own and that of its category."""

    def __init__(self, goods: int, categories: int, width: int, rngs: nnx.Rngs) -> None:
        self.goods = nnx.Embed(goods, width, rngs=rngs)
        self.categories = nnx.Embed(categories, width, rngs=rngs)

    def __call__(self, goods: jax.Array, categories: jax.Array) -> jax.Array:
        return jnp.concatenate([rows_of(self.goods, goods), rows_of(self.categories, categories)], axis=-1)


class Din(nnx.Module):
    """Zhou et al., "Deep Interest Network": activation units of 36, 200-80-2, Dice, on Amazon Electronics."""

    _WIDTH = 64  # of an item, and of its category

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.item = Goods(_ELECTRONICS_GOODS, _ELECTRONICS_CATEGORIES, self._WIDTH, rngs)
        width = 2 * self._WIDTH
        self.unit = DiceMlp(4 * width, 36, 1, rngs=rngs)
        self.deep = DiceMlp(3 * width, 200, 80, 2, rngs=rngs)

    def __call__(
        self, goods: jax.Array, category: jax.Array, past_goods: jax.Array, past_categories: jax.Array,
        mask: jax.Array,
    ) -> jax.Array:  # fmt: skip
        candidate, past = self.item(goods, category), self.item(past_goods, past_categories)
        weights = self.unit(_compared(candidate, past)) * mask[:, :, None]
        interest = (weights * past).sum(axis=1)
        return nnx.softmax(self.deep(jnp.concatenate([interest, candidate, interest * candidate], axis=-1)))


class GatedUnit(nnx.Module):
    """A GRU whose update may be scaled by an attention score (AUGRU)."""

    def __init__(self, width_in: int, width: int, rngs: nnx.Rngs) -> None:
        self.gates = nnx.Linear(width_in + width, 2 * width, rngs=rngs)
        self.candidate = nnx.Linear(width_in + width, width, rngs=rngs)
        self.width = width

    def __call__(self, inputs: jax.Array, scores: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """All states and the last one, from ``inputs`` [step, batch, width]."""
        start = jnp.zeros((inputs.shape[1], self.width))
        last, states = jax.lax.scan(self._step, start, (inputs, scores))
        return states, last

    def _step(
        self, state: jax.Array, step: tuple[jax.Array, jax.Array | None]
    ) -> tuple[jax.Array, jax.Array]:
        x, score = step
        gates = nnx.sigmoid(self.gates(jnp.concatenate([x, state], axis=-1)))
        reset, update = jnp.split(gates, 2, axis=-1)
        candidate = jnp.tanh(self.candidate(jnp.concatenate([x, reset * state], axis=-1)))
        if score is not None:
            update = score[:, None] * update
        state = (1 - update) * state + update * candidate
        return state, state


class Dien(nnx.Module):
    """Zhou et al., "Deep Interest Evolution Network": width 18, GRU and AUGRU of 36, on Amazon Books."""

    _WIDTH = 18

    def __init__(self, rngs: nnx.Rngs) -> None:
        width = 2 * self._WIDTH
        self.users = nnx.Embed(_BOOKS_USERS, self._WIDTH, rngs=rngs)
        self.item = Goods(_BOOKS_GOODS, _BOOKS_CATEGORIES, self._WIDTH, rngs)
        self.extraction = GatedUnit(width, width, rngs)
        self.evolution = GatedUnit(width, width, rngs)
        self.unit = Mlp(4 * width, 80, 40, rngs=rngs, activation=nnx.sigmoid)
        self.unit_head = nnx.Linear(40, 1, rngs=rngs)
        self.deep = DiceMlp(self._WIDTH + 4 * width, 200, 80, 2, rngs=rngs)

    def __call__(
        self, user: jax.Array, goods: jax.Array, category: jax.Array, past_goods: jax.Array,
        past_categories: jax.Array, mask: jax.Array,
    ) -> jax.Array:  # fmt: skip
        candidate, past = self.item(goods, category), self.item(past_goods, past_categories)
        states, _ = self.extraction(jnp.swapaxes(past, 0, 1))
        scores = self.unit_head(self.unit(_compared(candidate, jnp.swapaxes(states, 0, 1))))[:, :, 0]
        weights = nnx.softmax(jnp.where(mask > 0, scores, -1e9))
        _, interest = self.evolution(states, weights.T)
        total = past.sum(axis=1)
        columns = [rows_of(self.users, user), candidate, total, candidate * total, interest]
        return nnx.softmax(self.deep(jnp.concatenate(columns, axis=-1)))


class Bst(nnx.Module):
    """Chen et al., "Behavior Sequence Transformer": one block of 8 heads over 20 items, 1024-512-256.

    Each item is its vector (64) beside those of its category (16) and position (16).
    """

    _HEADS = 8
    _ITEM, _CATEGORY, _POSITION, _PROFILE = 64, 16, 16, 16
    _WIDTH = _ITEM + _CATEGORY + _POSITION

    def __init__(self, length: int, rngs: nnx.Rngs) -> None:
        width = self._WIDTH
        self.items = nnx.Embed(_TAOBAO_ITEMS, self._ITEM, rngs=rngs)
        self.categories = nnx.Embed(_TAOBAO_CATEGORIES, self._CATEGORY, rngs=rngs)
        self.positions = nnx.Embed(1000, self._POSITION, rngs=rngs)
        self.profile = Tables(_PROFILE_ROWS, self._PROFILE, rngs)
        self.query, self.key, self.value, self.out = (
            nnx.Linear(width, width, use_bias=False, rngs=rngs) for _ in range(4)
        )
        self.norm_in, self.norm_out = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.widen, self.narrow = (
            nnx.Linear(width, 4 * width, rngs=rngs),
            nnx.Linear(4 * width, width, rngs=rngs),
        )
        width_in = length * width + len(_PROFILE_ROWS) * self._PROFILE
        self.deep = Mlp(width_in, 1024, 512, 256, rngs=rngs, activation=nnx.leaky_relu)
        self.head = nnx.Linear(256, 1, rngs=rngs)

    def __call__(
        self, items: jax.Array, categories: jax.Array, positions: jax.Array, *profile: jax.Array
    ) -> jax.Array:
        """The last item is the candidate; positions are times before now."""
        x = jnp.concatenate(
            [
                rows_of(self.items, items),
                rows_of(self.categories, categories),
                rows_of(self.positions, positions),
            ],
            axis=-1,
        )
        x = self.norm_in(x + self._attention(x))
        x = self.norm_out(x + self.narrow(nnx.leaky_relu(self.widen(x))))
        columns = [x.reshape(len(x), -1), *self.profile(profile)]
        return nnx.sigmoid(self.head(self.deep(jnp.concatenate(columns, axis=-1))))

    def _attention(self, x: jax.Array) -> jax.Array:
        query, key, value = (
            layer(x).reshape(*x.shape[:2], self._HEADS, -1) for layer in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("bqhc,bkhc->bhqk", query, key) / math.sqrt(query.shape[-1])
        mixed = jnp.einsum("bhqk,bkhc->bqhc", nnx.softmax(scores), value)
        return self.out(mixed.reshape(x.shape))
