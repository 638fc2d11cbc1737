"""The neural network of the policy, in JAX and Flax: encoder, refinement rounds, heads.

GO's network (Zhou et al., "Transferable graph optimizers for ML compilers", NeurIPS 2020) for
schedule and fusion; the walk places. Refinement: round r reads the expected decisions of round r - 1, so
that one pass serves all samples of a graph; within a round, all ops decide at once.

Segmented recurrent attention costs in proportion to the number of ops. Dai et al., "Transformer-XL:
attentive language models beyond a fixed-length context", ACL 2019, section 3.2: with the input h_s of
segment s and SG the stopped gradient,

    q = h_s W_q,    k, v = [SG(h_{s-1}), h_s] W_k, W_v,    out = softmax(q kᵀ / √d) v W_o,

without positional embeddings, as in GO: the features of ops contain their positions. A segment's
memory is its predecessor's *input* to the layer, so all segments are computed at once.

The tasks schedule and fusion are decided one after the other, and each reads the op embeddings of the
previous one. From H of the encoder, for each task

    A = FC(MHA(H)),    H = LN(concat(A, H)),

and the task's decision is read from its H, which still contains the op's own features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from go_opt.agents.inputs.config import LEAST_LOG_STD, MOST_LOG_STD, NO_CHANCE
from go_opt.agents.inputs.config import PolicyConfig as PolicyConfig
from go_opt.agents.inputs.features import GLOBAL_COLUMNS, NUM_EXPLORED, NUM_OP_TYPES, OP_COLUMNS
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


class Proposal(NamedTuple):
    """The proposals of one round. Axis ``N`` ops."""

    schedule_key: jax.Array  # [N] mean priority, higher is earlier
    fusion_key: jax.Array  # [N] mean priority


class TaskAttention(nnx.Module):
    """H of a task from H of the previous one, widened by the attention's output."""

    def __init__(
        self,
        width: int,
        added: int,
        graph_width: int,
        sizes: AttentionSizes,
        *,
        superposition: bool,
        rngs: nnx.Rngs,
    ) -> None:
        self.sizes = sizes
        self.condition = Conditioning(graph_width, width, superposition=superposition, rngs=rngs)
        self.attention = SegmentedAttention(width, added, sizes.num_heads, rngs=rngs)
        self.dense = nnx.Linear(added, added, rngs=rngs)
        self.norm = nnx.LayerNorm(width + added, rngs=rngs)

    def __call__(self, ops: jax.Array, op_mask: jax.Array, graph: jax.Array) -> jax.Array:
        """[N, width + added] of ``ops`` [N, width] and the graph's embedding [graph_width]."""

        def of_segments(ops: jax.Array, memory: jax.Array, mask: jax.Array) -> jax.Array:
            attended = self.attention(self.condition(ops, graph), self.condition(memory, graph), mask)
            added = nnx.relu(self.dense(attended))
            joined: jax.Array = self.norm(jnp.concatenate([added, ops], axis=-1))
            return joined

        return by_segments(of_segments, ops, op_mask, self.sizes)


class TaskHeads(nnx.Module):
    """The proposals of one round."""

    def __init__(self, width: int, sizes: AttentionSizes, *, superposition: bool, rngs: nnx.Rngs) -> None:
        added = width // 2
        attention = partial(
            TaskAttention,
            added=added,
            graph_width=width,
            sizes=sizes,
            superposition=superposition,
            rngs=rngs,
        )
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.schedule = attention(width)
        self.fusion = attention(width + added)
        readout = partial(nnx.Linear, kernel_init=ZERO_INITIALISED, rngs=rngs)
        self.schedule_readout = readout(width + added, 1)
        self.fusion_readout = readout(width + 2 * added, 1)

    def __call__(self, ops: jax.Array, op_mask: jax.Array, graph: jax.Array) -> Proposal:
        """From ``ops`` [N, width] and the graph's embedding [width]."""
        for_schedule = self.schedule(self.norm(ops), op_mask, graph)
        for_fusion = self.fusion(for_schedule, op_mask, graph)
        return Proposal(
            schedule_key=self.schedule_readout(for_schedule)[:, 0],
            fusion_key=self.fusion_readout(for_fusion)[:, 0],
        )


def undecided(num_ops: int) -> Proposal:
    """The proposal before the first round: no priorities."""
    return Proposal(jnp.zeros(num_ops), jnp.zeros(num_ops))


def expectation(decisions: Proposal) -> jax.Array:
    """[N, 2] the bounded priorities of each op."""
    return jnp.tanh(jnp.stack(decisions, axis=-1))


class PolicyOutput(NamedTuple):
    """Proposals for a padded graph. Axes: ``N`` ops, ``F`` exploration features."""

    schedule_key: jax.Array  # [N] mean priority, higher is earlier
    fusion_key: jax.Array  # [N] mean priority
    exploration_log_std: jax.Array  # [2, F] of the noise in each direction: schedule, fusion


class AttentionBlock(nnx.Module):
    """Conditioned attention and a feed-forward layer, both pre-normalised with residuals.

    Pre-normalisation follows Xiong et al., "On layer normalization in the transformer
    architecture", ICML 2020.
    """

    def __init__(self, width: int, sizes: AttentionSizes, *, superposition: bool, rngs: nnx.Rngs) -> None:
        self.sizes = sizes
        self.condition = Conditioning(width, width, superposition=superposition, rngs=rngs)
        self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = SegmentedAttention(width, width, sizes.num_heads, rngs=rngs)
        self.dense_norm = nnx.LayerNorm(width, rngs=rngs)
        self.widen = nnx.Linear(width, 2 * width, rngs=rngs)
        self.narrow = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, ops: jax.Array, op_mask: jax.Array, graph: jax.Array) -> jax.Array:
        """[N, width] of ``ops`` [N, width] and the graph's embedding [width]."""

        def conditioned(ops: jax.Array) -> jax.Array:
            return self.condition(self.attention_norm(ops), graph)

        def of_segments(ops: jax.Array, memory: jax.Array, mask: jax.Array) -> jax.Array:
            ops = ops + self.attention(conditioned(ops), conditioned(memory), mask)
            return ops + self.narrow(nnx.relu(self.widen(self.dense_norm(ops))))

        return by_segments(of_segments, ops, op_mask, self.sizes)


class PolicyNetwork(nnx.Module):
    """The priorities of all ops of a graph, proposed at once."""

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        width = config.width
        sizes = AttentionSizes(config.num_heads, config.segment_ops, config.chunk_segments)
        self.config = config
        self.op_type = nnx.Embed(NUM_OP_TYPES, width // 2, rngs=rngs)
        self.embed = nnx.Linear(width // 2 + len(OP_COLUMNS), width, rngs=rngs)
        self.graphsage = nnx.List([GraphSageLayer(width, rngs=rngs) for _ in range(config.graphsage_layers)])
        self.graph = GraphEmbedding(width, len(GLOBAL_COLUMNS), rngs=rngs)
        self.decided = nnx.Linear(2, width, rngs=rngs)
        self.blocks = nnx.List(
            [
                AttentionBlock(width, sizes, superposition=config.superposition, rngs=rngs)
                for _ in range(config.attention_layers)
            ]
        )
        self.heads = TaskHeads(width, sizes, superposition=config.superposition, rngs=rngs)
        self.exploration = nnx.Linear(width, 2 * NUM_EXPLORED, kernel_init=ZERO_INITIALISED, rngs=rngs)

    def __call__(self, padded: PaddedGraph) -> PolicyOutput:
        ops, graph = self._encode(padded)
        decisions = self._refine(padded, ops, graph)
        is_op = padded.op_mask
        num_ops = is_op.sum(dtype=jnp.float32)

        def bounded(key: jax.Array) -> jax.Array:
            """At most about as large as the noise, which would else be without effect."""
            key = jnp.where(is_op, key, 0.0)
            return key / jnp.sqrt(1.0 + jnp.sum(key**2) / num_ops)

        raw = self.exploration(graph).reshape(2, NUM_EXPLORED)
        return PolicyOutput(
            schedule_key=bounded(decisions.schedule_key),
            fusion_key=bounded(decisions.fusion_key),
            exploration_log_std=jnp.where(
                raw < 0,
                -LEAST_LOG_STD * jnp.tanh(raw / -LEAST_LOG_STD),
                MOST_LOG_STD * jnp.tanh(raw / MOST_LOG_STD),
            ),
        )

    def _encode(self, padded: PaddedGraph) -> tuple[jax.Array, jax.Array]:
        """[N, width] ops that know their neighbourhood, and [width] the graph."""
        is_op = padded.op_mask
        # Whatever the padding holds, NaN included, ends here.
        kinds = self.op_type(jnp.where(is_op, padded.op_type, 0))
        columns = jnp.where(is_op[:, None], padded.ops, 0.0)
        ops = nnx.relu(self.embed(jnp.concatenate([kinds, columns], axis=-1)))
        for layer in self.graphsage:
            ops = layer(ops, padded)
        return ops, self.graph(ops, is_op, padded.package)

    def _refine(self, padded: PaddedGraph, ops: jax.Array, graph: jax.Array) -> Proposal:
        """The decisions of the last round."""

        def one_round(last: Proposal, _: None) -> tuple[Proposal, None]:
            return self._decide(padded, ops, graph, last), None

        return jax.lax.scan(one_round, undecided(len(ops)), length=self.config.rounds)[0]

    def _decide(self, padded: PaddedGraph, ops: jax.Array, graph: jax.Array, last: Proposal) -> Proposal:
        """One round, conditioned on the expectation of the ``last``."""
        ops = ops + self.decided(expectation(last))
        for block in self.blocks:
            ops = block(ops, padded.op_mask, graph)
        return self.heads(ops, padded.op_mask, graph)


def initial_parameters(config: PolicyConfig, seed: int) -> nnx.State:
    """Parameters to train from, the same for the same ``seed``: the uniform policy."""
    return numpy_parameters(partial(_build, config), seed)


@partial(jax.jit, static_argnames="config")
def policy_outputs(config: PolicyConfig, parameters: nnx.State, padded: PaddedGraph) -> PolicyOutput:
    """The network of ``config`` with ``parameters`` on a padded graph; compiled once for each bucket."""
    graphdef, _ = nnx.split(nnx.eval_shape(partial(_build, config)))
    return nnx.merge(graphdef, parameters)(padded)


def _build(config: PolicyConfig) -> PolicyNetwork:
    """The network, used only for its structure; its parameters are never computed."""
    return PolicyNetwork(config, rngs=nnx.Rngs(0))
