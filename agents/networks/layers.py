"""The layers of the policy's network, and their first parameters.

Segmented recurrent attention costs in proportion to the number of ops. Dai et al., "Transformer-XL:
attentive language models beyond a fixed-length context", ACL 2019, section 3.2: with the input h_s of
segment s and SG the stopped gradient,

    q = h_s W_q,    k, v = [SG(h_{s-1}), h_s] W_k, W_v,    out = softmax(q kᵀ / √d) v W_o,

without positional embeddings, as in GO (Zhou et al., "Transferable graph optimizers for ML
compilers", NeurIPS 2020): the features of ops contain their positions. A segment's
memory is its predecessor's *input* to the layer, so all segments are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from go_opt.agents.inputs.config import NO_CHANCE
from go_opt.agents.inputs.padding import PaddedGraph

# Initialising through JAX compiles a program for every shape; this takes a fraction of the
# time and gives the same numbers on every platform.


# For kernels that begin at zero, so that the first policy is the uniform one.
ZERO_INITIALISED: Final = nnx.with_metadata(nnx.initializers.zeros_init(), begins_at_zero=True)


def numpy_parameters(build: Callable[[], nnx.Module], seed: int) -> nnx.State:
    """Parameters of the module that ``build`` returns, deterministic for a ``seed``.

    Kernels are normal with variance 1 / fan-in (LeCun et al., "Efficient backprop", 1998),
    embeddings with variance 1 / width; scales are one, biases zero.
    """
    rng = np.random.default_rng(seed)
    shapes = nnx.state(nnx.eval_shape(build), nnx.Param)
    leaves = [(path, leaf.replace(_values(rng, path, leaf))) for path, leaf in nnx.to_flat_state(shapes)]
    return nnx.from_flat_state(leaves)


def _values(rng: np.random.Generator, path: tuple[Any, ...], leaf: nnx.Param) -> NDArray[np.float32]:
    name = path[-1]
    if name == "scale":
        return np.ones(leaf.shape, dtype=np.float32)
    if name == "bias" or leaf.get_metadata().get("begins_at_zero", False):
        return np.zeros(leaf.shape, dtype=np.float32)
    fan_in = leaf.shape[0] if name == "kernel" else leaf.shape[-1]
    return rng.standard_normal(leaf.shape, dtype=np.float32) / np.float32(np.sqrt(fan_in))


# Parameter superposition as in GO (Zhou et al., NeurIPS 2020): layer l sees
#
#     x ⊙ c_l(g),    g the pooled embedding of the graph,
#
# so that training on many graphs at once does not average their policies. Here c_l is
# 1 + a dense layer that starts at zero: before training, all graphs are treated alike.


class GraphEmbedding(nnx.Module):
    """One vector for the graph and its target."""

    def __init__(self, width: int, num_global: int, *, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(2 * width + num_global, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, ops: jax.Array, op_mask: jax.Array, package: jax.Array) -> jax.Array:
        """[width] of ``ops`` [N, width], ``op_mask`` [N] and ``package`` [num_global]."""
        real = op_mask[:, None]
        mean = jnp.sum(jnp.where(real, ops, 0.0), axis=0) / op_mask.sum(dtype=ops.dtype)
        largest = jnp.max(jnp.where(real, ops, -jnp.inf), axis=0)
        return nnx.relu(self.norm(self.dense(jnp.concatenate([mean, largest, package]))))


class Conditioning(nnx.Module):
    """Scales each feature of the ops by the graph embedding; the identity without superposition."""

    def __init__(self, graph_width: int, width: int, *, superposition: bool, rngs: nnx.Rngs) -> None:
        linear = partial(nnx.Linear, kernel_init=ZERO_INITIALISED, rngs=rngs)
        self.scale = linear(graph_width, width) if superposition else None

    def __call__(self, ops: jax.Array, graph: jax.Array) -> jax.Array:
        """[…, width] of ``ops`` […, width] and the embedding ``graph`` [graph_width]."""
        if self.scale is None:
            return ops
        scale = 1.0 + self.scale(graph)
        return ops * scale.reshape((1,) * (ops.ndim - 1) + scale.shape)


# Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS
# 2017, algorithm 1 with the pooling aggregator of equation 3,
#
#     h_N(v) = max({ReLU(W_pool h_u), u in N(v)}),    h_v' = ReLU(W [h_v, h_N(v)]),
#
# with the mean in addition to the maximum, separate aggregation of producers and readers (the
# graph is directed), and a residual around the normalised layer so that layers can be stacked.


class GraphSageLayer(nnx.Module):
    """One round of messages from every op to its neighbours; a message is half as wide as an op."""

    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        message = width // 2
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.to_readers = nnx.Linear(width, message, rngs=rngs)
        self.to_producers = nnx.Linear(width, message, rngs=rngs)
        self.update = nnx.Linear(width + 4 * message, width, rngs=rngs)

    def __call__(self, ops: jax.Array, graph: PaddedGraph) -> jax.Array:
        """[N, width] of ``ops`` [N, width]."""
        normed = self.norm(ops)
        from_producers = aggregate(
            nnx.relu(self.to_readers(normed)), graph.read_from, graph.reader_of, graph.edge_mask
        )
        from_readers = aggregate(
            nnx.relu(self.to_producers(normed)), graph.read_by, graph.producer_of, graph.edge_mask
        )
        joined = jnp.concatenate([normed, from_producers, from_readers], axis=-1)
        return ops + nnx.relu(self.update(joined))


def aggregate(
    messages: jax.Array, source: jax.Array, destination: jax.Array, edge_mask: jax.Array
) -> jax.Array:
    """[N, 2 M] mean and maximum of the ``messages`` [N, M] that reach each op; 0 if none does.

    Args:
      messages: not negative, so that 0 is the maximum of none.
      source: [E] op that sends along the edge.
      destination: [E] op that receives, ascending.
      edge_mask: [E] True where the edge is real; real ones come first.
    """
    num_ops = len(messages)
    # What is out of range reaches no segment.
    segment = jnp.where(edge_mask, destination, num_ops)
    sent = messages[jnp.where(edge_mask, source, 0)]
    total = jax.ops.segment_sum(sent, segment, num_ops, indices_are_sorted=True)
    largest = jax.ops.segment_max(sent, segment, num_ops, indices_are_sorted=True)
    degree = jax.ops.segment_sum(edge_mask.astype(sent.dtype), segment, num_ops, indices_are_sorted=True)
    mean = total / jnp.maximum(degree, 1.0)[:, None]
    return jnp.concatenate([mean, jnp.maximum(largest, 0.0)], axis=-1)


# (ops [C, S, …], memory [C, S, …], mask of both [C, 2 S]) -> [C, S, …]
SegmentLayer = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes that all attention layers of a network share."""

    num_heads: int
    segment_ops: int  # S
    chunk_segments: int  # C, number of segments computed at a time


class SegmentedAttention(nnx.Module):
    """Each op of a segment attends to the segment and to its memory."""

    def __init__(self, in_features: int, width: int, num_heads: int, *, rngs: nnx.Rngs) -> None:
        self.num_heads = num_heads
        # No biases: a bias on the keys would shift all scores of a query equally.
        self.query = nnx.Linear(in_features, width, use_bias=False, rngs=rngs)
        self.key = nnx.Linear(in_features, width, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(in_features, width, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, ops: jax.Array, memory: jax.Array, mask: jax.Array) -> jax.Array:
        """[C, S, width] of ``ops`` and ``memory`` [C, S, in_features] and the ``mask`` [C, 2 S] of both."""
        seen = jnp.concatenate([memory, ops], axis=1)
        query, key, value = (
            self._heads(self.query(ops)),
            self._heads(self.key(seen)),
            self._heads(self.value(seen)),
        )
        scores = jnp.einsum("cshd,cthd->chst", query, key) / jnp.sqrt(jnp.float32(query.shape[-1]))
        scores = jnp.where(mask[:, None, None, :], scores, NO_CHANCE)
        attended = jnp.einsum("chst,cthd->cshd", nnx.softmax(scores), value)
        return self.output(attended.reshape(*ops.shape[:2], -1))

    def _heads(self, rows: jax.Array) -> jax.Array:
        """[C, T, H, width of a head] of [C, T, width]."""
        return rows.reshape(*rows.shape[:2], self.num_heads, -1)


def by_segments(layer: SegmentLayer, ops: jax.Array, op_mask: jax.Array, sizes: AttentionSizes) -> jax.Array:
    """[N, …] ``layer`` on ``ops`` [N, …]; the memory is the previous segment, empty for the first.

    Segments are computed in chunks, which the backward pass recomputes. So only the layer's
    input is stored, and a chunk stays in the processor's cache.
    """
    segments = ops.reshape(-1, sizes.segment_ops, ops.shape[-1])
    mask = op_mask.reshape(-1, sizes.segment_ops)
    memory = _shifted(jax.lax.stop_gradient(segments))
    both_masks = jnp.concatenate([_shifted(mask), mask], axis=1)
    size = min(sizes.chunk_segments, len(segments))
    chunks = [x.reshape(-1, size, *x.shape[1:]) for x in (segments, memory, both_masks)]
    outputs: jax.Array = jax.lax.map(lambda chunk: jax.checkpoint(layer)(*chunk), tuple(chunks))
    return outputs.reshape(len(ops), -1)


def _shifted(segments: jax.Array) -> jax.Array:
    """[G, …] the segments shifted by one; the first becomes zero."""
    return jnp.concatenate([jnp.zeros_like(segments[:1]), segments[:-1]])
