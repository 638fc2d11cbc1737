"""The policy network: encoder, refinement rounds, heads.

GO's network (Zhou et al., "Transferable graph optimizers for ML compilers", NeurIPS 2020) for
schedule and fusion; the walk places. Refinement: round r reads the expected decisions of round r - 1, so
that one pass serves all samples of a graph; within a round, all ops decide at once.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from go_opt.agents.inputs.config import LEAST_LOG_STD, MOST_LOG_STD, PolicyConfig
from go_opt.agents.inputs.features import NUM_EXPLORED, NUM_OP_TYPES, OP_COLUMNS
from go_opt.agents.inputs.padding import PaddedGraph
from go_opt.agents.inputs.target_features import GLOBAL_COLUMNS
from go_opt.agents.networks.heads import Proposal, TaskHeads, expectation, undecided
from go_opt.agents.networks.layers import (
    ZERO_INITIALISED,
    AttentionSizes,
    Conditioning,
    GraphEmbedding,
    GraphSageLayer,
    SegmentedAttention,
    by_segments,
    numpy_parameters,
)


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
