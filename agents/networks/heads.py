"""Policy heads: recurrent attention over the tasks schedule and fusion.

GO (Zhou et al., NeurIPS 2020): the tasks are decided one after the other, and
each reads the op embeddings of the previous one. From H of the encoder, for each task

    A = FC(MHA(H)),    H = LN(concat(A, H)),

and the task's decision is read from its H, which still contains the op's own features. The
attention is segmented, so the cost is linear.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from go_opt.agents.networks.layers import (
    ZERO_INITIALISED,
    AttentionSizes,
    Conditioning,
    SegmentedAttention,
    by_segments,
)


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
