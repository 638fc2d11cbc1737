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

from go_opt.agents.inputs.config import NO_CHANCE, UNIT
from go_opt.agents.networks.attention import AttentionSizes, SegmentedAttention, by_segments
from go_opt.agents.networks.conditioning import Conditioning
from go_opt.agents.networks.initialisation import ZERO_INITIALISED


class Proposal(NamedTuple):
    """The proposals of one round. Axes: ``N`` ops, ``D`` chips."""

    slice_logits: jax.Array  # [N, D] padded chips at NO_CHANCE; for slicings
    sample_logits: jax.Array  # [N, D] the same for placements op by op
    cut_score: jax.Array  # [N] of a cut right before the op in the order
    schedule_key: jax.Array  # [N] mean priority, higher is earlier
    fusion_key: jax.Array  # [N] mean priority


class ChipRows(NamedTuple):
    """The chips, and where the ops are among them: shares of all work before each middle, -1 to 1."""

    embedding: jax.Array  # [D, width / 2]
    mask: jax.Array  # [D]
    middle: jax.Array  # [D]
    op_middle: jax.Array  # [N]


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
        self.op_readout = readout(width + added, 2 * added)
        self.shift_readout = readout(width + added, 2)
        self.sharpness_readout = readout(width, 2)
        self.cut_readout = readout(width + added, 1)
        self.schedule_readout = readout(width + 2 * added, 1)
        self.fusion_readout = readout(width + 3 * added, 1)

    def __call__(self, ops: jax.Array, op_mask: jax.Array, chips: ChipRows, graph: jax.Array) -> Proposal:
        """From ``ops`` [N, width], the chips and the graph's embedding [width]."""
        for_placement = self.placement(self.norm(ops), op_mask, graph)
        for_schedule = self.schedule(for_placement, op_mask, graph)
        for_fusion = self.fusion(for_schedule, op_mask, graph)
        of_decoder = jnp.split(self.op_readout(for_placement), 2, axis=-1)
        shift, sharpness = jnp.tanh(self.shift_readout(for_placement)), UNIT * self.sharpness_readout(graph)
        slice_logits, sample_logits = (
            placement_logits(of_decoder[i], shift[:, i], sharpness[i], chips) for i in range(2)
        )
        return Proposal(
            slice_logits=slice_logits,
            sample_logits=sample_logits,
            cut_score=UNIT * self.cut_readout(for_placement)[:, 0],
            schedule_key=self.schedule_readout(for_schedule)[:, 0],
            fusion_key=self.fusion_readout(for_fusion)[:, 0],
        )


def placement_logits(ops: jax.Array, shift: jax.Array, sharpness: jax.Array, chips: ChipRows) -> jax.Array:
    """[N, D] ``ops · chips / M + sharpness (1 - √(1 + apart²))`` for any number of chips.

    ``apart`` is how many chips the op, moved by its ``shift`` [N], is away from where equal shares
    of work place it. Learned from embeddings alone, such a rule did not transfer to other graphs.

    Args:
      ops: [N, M] embeddings.
    """
    logits = ops @ chips.embedding.T / chips.embedding.shape[-1]
    apart = (chips.op_middle + shift)[:, None] - chips.middle[None, :]
    apart = apart * (chips.mask.sum(dtype=jnp.float32) / 2.0)
    logits = logits + sharpness * (1.0 - jnp.sqrt(1.0 + apart**2))
    return jnp.where(chips.mask[None, :], logits, NO_CHANCE)


def undecided(num_ops: int, chip_mask: jax.Array) -> Proposal:
    """The proposal before the first round: uniform over chips, no cuts, no priorities."""
    none = jnp.zeros(num_ops)
    uniform = jnp.where(chip_mask[None, :], jnp.zeros((num_ops, 1)), NO_CHANCE)
    return Proposal(uniform, uniform, none, none, none)


def expectation(decisions: Proposal, chips: jax.Array) -> jax.Array:
    """[N, M + 3] the expected chip embedding, of ``chips`` [D, M], and the bounded scores of each op."""
    expected_chip = nnx.softmax(decisions.slice_logits) @ chips
    scores = jnp.stack([decisions.cut_score / UNIT, decisions.schedule_key, decisions.fusion_key], axis=-1)
    return jnp.concatenate([expected_chip, jnp.tanh(scores)], axis=-1)
