"""Policy heads: recurrent attention over the tasks placement, schedule and fusion.

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

from go_opt.agents.inputs.config import NO_CHANCE
from go_opt.agents.networks.attention import AttentionSizes, SegmentedAttention, by_segments
from go_opt.agents.networks.conditioning import Conditioning
from go_opt.agents.networks.initialisation import ZERO_INITIALISED


class Proposal(NamedTuple):
    """The proposals of one round. Axes: ``N`` ops, ``D`` chips."""

    placement_logits: jax.Array  # [N, D] padded chips at NO_CHANCE
    cut_score: jax.Array  # [N] of a cut right before the op in the order
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
        self.placement = attention(width)
        self.schedule = attention(width + added)
        self.fusion = attention(width + 2 * added)
        readout = partial(nnx.Linear, kernel_init=ZERO_INITIALISED, rngs=rngs)
        self.op_readout = readout(width + added, added)
        self.cut_readout = readout(width + added, 1)
        self.schedule_readout = readout(width + 2 * added, 1)
        self.fusion_readout = readout(width + 3 * added, 1)

    def __call__(
        self, ops: jax.Array, op_mask: jax.Array, chips: jax.Array, chip_mask: jax.Array, graph: jax.Array
    ) -> Proposal:
        """From ``ops`` [N, width], ``chips`` [D, width / 2] and the graph's embedding [width]."""
        for_placement = self.placement(self.norm(ops), op_mask, graph)
        for_schedule = self.schedule(for_placement, op_mask, graph)
        for_fusion = self.fusion(for_schedule, op_mask, graph)
        return Proposal(
            placement_logits=placement_logits(self.op_readout(for_placement), chips, chip_mask),
            cut_score=self.cut_readout(for_placement)[:, 0],
            schedule_key=self.schedule_readout(for_schedule)[:, 0],
            fusion_key=self.fusion_readout(for_fusion)[:, 0],
        )


def placement_logits(ops: jax.Array, chips: jax.Array, chip_mask: jax.Array) -> jax.Array:
    """[N, D] ``ops · chips / √M`` for embeddings [N, M] and [D, M], with any number of chips."""
    logits = ops @ chips.T / jnp.sqrt(jnp.float32(chips.shape[-1]))
    return jnp.where(chip_mask[None, :], logits, NO_CHANCE)


def undecided(num_ops: int, chip_mask: jax.Array) -> Proposal:
    """The proposal before the first round: uniform over chips, no cuts, no priorities."""
    none = jnp.zeros(num_ops)
    uniform = jnp.where(chip_mask[None, :], jnp.zeros((num_ops, 1)), NO_CHANCE)
    return Proposal(uniform, none, none, none)


def expectation(decisions: Proposal, chips: jax.Array) -> jax.Array:
    """[N, M + 3] the expected chip embedding, of ``chips`` [D, M], and the bounded scores of each op."""
    expected_chip = nnx.softmax(decisions.placement_logits) @ chips
    scores = jnp.stack([decisions.cut_score, decisions.schedule_key, decisions.fusion_key], axis=-1)
    return jnp.concatenate([expected_chip, jnp.tanh(scores)], axis=-1)
