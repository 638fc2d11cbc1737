"""Training steps: from parameters, the optimizer's state and a batch to the next of both and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Array = jax.Array
Tree = Any  # nested containers of arrays
Loss = Callable[..., Array]  # of parameters and the batch
Step = Callable[..., tuple[Tree, Tree, Array]]


def training_step(loss: Loss, optimizer: optax.GradientTransformation) -> Step:
    """``step(parameters, state, *batch)``, which returns the next parameters and state, and the loss."""

    def step(parameters: Tree, state: Tree, *batch: Array) -> tuple[Tree, Tree, Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        changes, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, changes), state, value

    return step


def mlp(widths: Sequence[int]) -> Tree:
    """Parameters of dense layers of the given widths."""
    return [_dense(before, after) for before, after in pairwise(widths)]


def mlp_loss(layers: Tree, x: Array, labels: Array) -> Array:
    """[batch, features] and [batch]: the cross-entropy behind layers with ReLU between them."""
    for layer in layers[:-1]:
        x = jax.nn.relu(_linear(layer, x))
    return _cross_entropy(_linear(layers[-1], x), labels)


def residual_net(blocks: int) -> Tree:
    """He et al. (2016) for images of 32x32: three stages of ``blocks`` blocks with 16, 32 and 64 channels."""
    stages = [
        [[_normalized(before if i == 0 else after, after), _normalized(after, after)] for i in range(blocks)]
        for before, after in ((16, 16), (16, 32), (32, 64))
    ]
    return {"first": _normalized(3, 16), "stages": stages, "last": _dense(64, 10)}


def residual_loss(net: Tree, images: Array, labels: Array) -> Array:
    """[batch, 32, 32, 3] and [batch]: the cross-entropy, each batch normalised by itself."""
    x = jax.nn.relu(_convolved(net["first"], images, 1))
    for i, stage in enumerate(net["stages"]):
        for k, (first, second) in enumerate(stage):
            stride = 2 if i > 0 and k == 0 else 1
            inner = _convolved(second, jax.nn.relu(_convolved(first, x, stride)), 1)
            if stride == 2:
                # The shortcut has no weights: every other place, and zeros for the new channels.
                x = jnp.pad(x[:, ::2, ::2], [(0, 0)] * 3 + [(0, inner.shape[-1] - x.shape[-1])])
            x = jax.nn.relu(x + inner)
    return _cross_entropy(_linear(net["last"], x.mean((1, 2))), labels)


def character_model(layers: int, width: int, block: int, characters: int) -> Tree:
    """nanoGPT's transformer without biases; the words' table is the output layer's."""
    return {
        "characters": _zeros(characters, width),
        "places": _zeros(block, width),
        "layers": [
            {
                "norms": [_zeros(width), _zeros(width)],
                "heads": _zeros(width, 3 * width),
                "joined": _zeros(width, width),
                "wide": _zeros(width, 4 * width),
                "narrow": _zeros(4 * width, width),
            }
            for _ in range(layers)
        ],
        "norm": _zeros(width),
    }


def character_loss(net: Tree, tokens: Array, following: Array, heads: int) -> Array:
    """[batch, block] twice: the cross-entropy of the next characters."""
    x = net["characters"][tokens] + net["places"]
    for layer in net["layers"]:
        x = x + _attended(layer, _normed(layer["norms"][0], x), heads)
        x = x + jax.nn.gelu(_normed(layer["norms"][1], x) @ layer["wide"]) @ layer["narrow"]
    return _cross_entropy(_normed(net["norm"], x) @ net["characters"].T, following)


def _attended(layer: Tree, x: Array, heads: int) -> Array:
    batch, block, width = x.shape
    q, k, v = (
        part.reshape(batch, block, heads, width // heads).swapaxes(1, 2)
        for part in jnp.split(x @ layer["heads"], 3, axis=-1)
    )
    scores = q @ k.swapaxes(2, 3) * (width // heads) ** -0.5
    mask = np.tril(np.ones((block, block), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return (shares @ v).swapaxes(1, 2).reshape(batch, block, width) @ layer["joined"]


def _zeros(*shape: int) -> Array:
    return jnp.zeros(shape)


def _dense(before: int, after: int) -> Tree:
    return {"kernel": _zeros(before, after), "bias": _zeros(after)}


def _linear(layer: Tree, x: Array) -> Array:
    return x @ layer["kernel"] + layer["bias"]


def _normalized(before: int, after: int) -> Tree:
    return {"kernel": _zeros(3, 3, before, after), "scale": _zeros(after), "shift": _zeros(after)}


def _convolved(layer: Tree, x: Array, stride: int) -> Array:
    y = jax.lax.conv_general_dilated(
        x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
    return (y - mean) * jax.lax.rsqrt(variance + 1e-5) * layer["scale"] + layer["shift"]


def _normed(scale: Array, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def _cross_entropy(logits: Array, labels: Array) -> Array:
    """The mean over all but the last axis of ``logits``."""
    chosen = jax.nn.one_hot(labels, logits.shape[-1])
    return -(jax.nn.log_softmax(logits) * chosen).sum(-1).mean()
