"""Click-through rates on Criteo: models that differ in how the columns meet."""

from __future__ import annotations

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.tables import (
    CRITEO_DENSE,
    CRITEO_KAGGLE,
    CriteoFields,
    CriteoLinear,
    Mlp,
    Tables,
)


class WideAndDeep(nnx.Module):
    """Cheng et al., "Wide & Deep Learning for Recommender Systems": tables of width 32, 1024-512-256.

    Their features are not public; Criteo's stand in, each value a feature of the wide side.
    """

    _WIDTH = 32

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.wide = CriteoLinear(rngs)
        self.tables = Tables(CRITEO_KAGGLE, self._WIDTH, rngs)
        width_in = CRITEO_DENSE + self._WIDTH * len(CRITEO_KAGGLE)
        self.deep = Mlp(width_in, 1024, 512, 256, rngs=rngs)
        self.head = nnx.Linear(256, 1, rngs=rngs)

    def __call__(self, dense: jax.Array, *ids: jax.Array) -> jax.Array:
        deep = self.deep(jnp.concatenate([dense, *self.tables(ids)], axis=-1))
        return nnx.sigmoid(self.wide(dense, ids) + self.head(deep))


class DeepFm(nnx.Module):
    """Guo et al., "DeepFM": a factorization machine of width 10 beside three layers of 400."""

    _WIDTH = 10

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = CriteoLinear(rngs)
        self.fields = CriteoFields(self._WIDTH, rngs)
        self.deep = Mlp(CriteoFields.count * self._WIDTH, 400, 400, 400, rngs=rngs)
        self.head = nnx.Linear(400, 1, rngs=rngs)

    def __call__(self, dense: jax.Array, *ids: jax.Array) -> jax.Array:
        fields = self.fields(dense, ids)
        # All products of two fields: half of what the square of the sum has beyond the squares.
        products = jnp.square(fields.sum(axis=1)) - jnp.square(fields).sum(axis=1)
        machine = 0.5 * products.sum(axis=-1, keepdims=True)
        deep = self.head(self.deep(fields.reshape(len(fields), -1)))
        return nnx.sigmoid(self.linear(dense, ids) + machine + deep)


class XDeepFm(nnx.Module):
    """Lian et al., "xDeepFM": a compressed interaction network of three layers of 200 maps, 400-400."""

    _WIDTH = 10
    _MAPS = 200
    _LAYERS = 3

    def __init__(self, rngs: nnx.Rngs) -> None:
        count = CriteoFields.count
        self.linear = CriteoLinear(rngs)
        self.fields = CriteoFields(self._WIDTH, rngs)
        maps_in = [count, *[self._MAPS] * (self._LAYERS - 1)]
        self.compress = nnx.List([nnx.Linear(maps * count, self._MAPS, rngs=rngs) for maps in maps_in])
        self.deep = Mlp(count * self._WIDTH, 400, 400, rngs=rngs)
        self.head = nnx.Linear(self._LAYERS * self._MAPS, 1, rngs=rngs)
        self.deep_head = nnx.Linear(400, 1, rngs=rngs)

    def __call__(self, dense: jax.Array, *ids: jax.Array) -> jax.Array:
        fields = self.fields(dense, ids)
        batch, count, width = fields.shape
        # [batch, width, field]: an outer product for each element of the vectors.
        first = maps = jnp.swapaxes(fields, 1, 2)
        pooled = []
        for compress in self.compress:
            outer = maps[:, :, :, None] * first[:, :, None, :]
            maps = compress(outer.reshape(batch, width, maps.shape[-1] * count))
            pooled.append(maps.sum(axis=1))
        interaction = self.head(jnp.concatenate(pooled, axis=-1))
        deep = self.deep_head(self.deep(fields.reshape(batch, -1)))
        return nnx.sigmoid(self.linear(dense, ids) + interaction + deep)


class FieldAttention(nnx.Module):
    """Multi-head attention among the fields, with a residual projection (AutoInt's interacting layer)."""

    def __init__(self, width_in: int, heads: int, head_width: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        width = heads * head_width
        self.query, self.key, self.value, self.residual = (
            nnx.Linear(width_in, width, use_bias=False, rngs=rngs) for _ in range(4)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = (
            layer(x).reshape(*x.shape[:2], self.heads, -1) for layer in (self.query, self.key, self.value)
        )
        weights = nnx.softmax(jnp.einsum("bqhc,bkhc->bhqk", query, key))
        mixed = jnp.einsum("bhqk,bkhc->bqhc", weights, value).reshape(*x.shape[:2], -1)
        return nnx.relu(mixed + self.residual(x))


class AutoInt(nnx.Module):
    """Song et al., "AutoInt": width 16, three interacting layers of two heads of 32, beside 400-400."""

    _WIDTH = 16
    _HEADS, _HEAD_WIDTH = 2, 32

    def __init__(self, rngs: nnx.Rngs) -> None:
        count, width = CriteoFields.count, self._HEADS * self._HEAD_WIDTH
        self.fields = CriteoFields(self._WIDTH, rngs)
        self.layers = nnx.List(
            [
                FieldAttention(before, self._HEADS, self._HEAD_WIDTH, rngs)
                for before in (self._WIDTH, width, width)
            ]
        )
        self.head = nnx.Linear(count * width, 1, rngs=rngs)
        self.deep = Mlp(count * self._WIDTH, 400, 400, rngs=rngs)
        self.deep_head = nnx.Linear(400, 1, rngs=rngs)

    def __call__(self, dense: jax.Array, *ids: jax.Array) -> jax.Array:
        x = fields = self.fields(dense, ids)
        for layer in self.layers:
            x = layer(x)
        interaction = self.head(x.reshape(len(x), -1))
        return nnx.sigmoid(interaction + self.deep_head(self.deep(fields.reshape(len(x), -1))))


class CrossLayer(nnx.Module):
    """``x0 * (W x + b) + x`` with a full matrix."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.weight = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, first: jax.Array, x: jax.Array) -> jax.Array:
        return first * self.weight(x) + x


class CrossExpert(nnx.Module):
    """A cross of low rank: ``U tanh(C tanh(V x)) + b``."""

    def __init__(self, width: int, rank: int, rngs: nnx.Rngs) -> None:
        self.down = nnx.Linear(width, rank, use_bias=False, rngs=rngs)
        self.inner = nnx.Linear(rank, rank, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(rank, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(jnp.tanh(self.inner(jnp.tanh(self.down(x)))))


class CrossMixture(nnx.Module):
    """Low-rank crosses, mixed by a gate."""

    def __init__(self, width: int, experts: int, rank: int, rngs: nnx.Rngs) -> None:
        self.experts = nnx.List([CrossExpert(width, rank, rngs) for _ in range(experts)])
        self.gate = nnx.Linear(width, experts, rngs=rngs)

    def __call__(self, first: jax.Array, x: jax.Array) -> jax.Array:
        shares = jnp.split(nnx.softmax(self.gate(x)), len(self.experts), axis=-1)
        crosses = (share * (first * expert(x)) for share, expert in zip(shares, self.experts, strict=True))
        return reduce(add, crosses, x)


class DcnV2(nnx.Module):
    """Wang et al., "DCN V2": crosses of full rank, then two dense layers of 768.

    Tables have the paper's average width of 39; the number of crosses is within its 1 to 4.
    """

    _WIDTH = 39
    _CROSSES = 4
    width_in = CRITEO_DENSE + _WIDTH * len(CRITEO_KAGGLE)

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tables = Tables(CRITEO_KAGGLE, self._WIDTH, rngs)
        self.crosses = nnx.List([CrossLayer(self.width_in, rngs) for _ in range(self._CROSSES)])
        self.deep = Mlp(self.width_in, 768, 768, rngs=rngs)
        self.head = nnx.Linear(768, 1, rngs=rngs)

    def __call__(self, dense: jax.Array, *ids: jax.Array) -> jax.Array:
        x = first = jnp.concatenate([dense, *self.tables(ids)], axis=-1)
        for cross in self.crosses:
            x = cross(first, x)
        return nnx.sigmoid(self.head(self.deep(x)))


class DcnMix(nnx.Module):
    """The mixture of Wang et al., "DCN V2": three crosses of four experts of rank 258, beside 768-768."""

    _EXPERTS, _RANK = 4, 258
    _CROSSES = 3

    def __init__(self, rngs: nnx.Rngs) -> None:
        width = DcnV2.width_in
        self.tables = Tables(CRITEO_KAGGLE, DcnV2._WIDTH, rngs)
        self.crosses = nnx.List(
            [CrossMixture(width, self._EXPERTS, self._RANK, rngs) for _ in range(self._CROSSES)]
        )
        self.deep = Mlp(width, 768, 768, rngs=rngs)
        self.head = nnx.Linear(width + 768, 1, rngs=rngs)

    def __call__(self, dense: jax.Array, *ids: jax.Array) -> jax.Array:
        x = first = jnp.concatenate([dense, *self.tables(ids)], axis=-1)
        for cross in self.crosses:
            x = cross(first, x)
        return nnx.sigmoid(self.head(jnp.concatenate([x, self.deep(first)], axis=-1)))
