"""Small pieces that several models share, each in as few primitives as its formula has."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx


def rows(table: jax.Array, index: jax.Array) -> jax.Array:
    """``table[index]`` without guards against negative or large indices."""
    return table.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def step(sequence: jax.Array, position: int) -> jax.Array:
    """One position of axis 0, which stays as an axis of length 1."""
    return jax.lax.slice_in_dim(sequence, position, position + 1, axis=0)


def summed(values: jax.Array, segment: jax.Array, count: int) -> jax.Array:
    """[count, ...] the sum of the rows of each segment."""
    zeros = jnp.zeros((count, *values.shape[1:]))
    return zeros.at[segment].add(values, mode="promise_in_bounds", wrap_negative_indices=False)


def softmax(scores: jax.Array) -> jax.Array:
    """Over the last axis; the guard of ``jax.nn.softmax`` against empty rows is left out."""
    shifted = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return shifted / jnp.sum(shifted, axis=-1, keepdims=True)


def lstm_cell(
    gates: nnx.Linear, x: jax.Array, hidden: jax.Array, cell: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """``c' = f*c + i*g`` and ``h' = o*tanh(c')``; returns ``h'`` and ``c'``."""
    in_gate, forget_gate, update, out_gate = jnp.split(gates(jnp.concatenate([x, hidden], -1)), 4, -1)
    cell = nnx.sigmoid(forget_gate) * cell + nnx.sigmoid(in_gate) * jnp.tanh(update)
    return nnx.sigmoid(out_gate) * jnp.tanh(cell), cell


def total(values: Iterable[jax.Array]) -> jax.Array:
    """Their sum, without the zero that ``sum`` starts from."""
    return reduce(operator.add, values)


class Mlp(nnx.Module):
    """Linear layers of the given widths with ReLU between them."""

    def __init__(self, widths: Sequence[int], rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(before, after, rngs=rngs) for before, after in pairwise(widths)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)
