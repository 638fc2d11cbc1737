"""GraphSAGE: each op aggregates messages from its producers and its readers.

Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS
2017, algorithm 1 with the pooling aggregator of equation 3,

    h_N(v) = max({ReLU(W_pool h_u), u in N(v)}),    h_v' = ReLU(W [h_v, h_N(v)]),

with the mean in addition to the maximum, separate aggregation of producers and readers (the
graph is directed), and a residual around the normalised layer so that layers can be stacked.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from go_opt.agents.inputs.padding import PaddedGraph


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
