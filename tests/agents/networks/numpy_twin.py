"""Slow, obvious twins of the network's kernels, in NumPy and float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def aggregate(messages: NDArray, source: NDArray, destination: NDArray, edge_mask: NDArray) -> NDArray:
    """[N, 2 M] mean and maximum of what reaches each op."""
    num_ops, width = messages.shape
    out = np.zeros((num_ops, 2 * width))
    for op in range(num_ops):
        received = [messages[source[e]] for e in np.flatnonzero(edge_mask) if destination[e] == op]
        if received:
            out[op] = np.concatenate([np.mean(received, axis=0), np.max(received, axis=0)])
    return out


def segmented_attention(
    ops: NDArray,
    op_mask: NDArray,
    *,
    query: NDArray,
    key: NDArray,
    value: NDArray,
    output: NDArray,
    bias: NDArray,
    num_heads: int,
    segment_ops: int,
) -> NDArray:
    """[N, width]: each real op over all real ops of its segment and the one before, head by head."""
    queries, keys, values = ops @ query, ops @ key, ops @ value
    head = queries.shape[1] // num_heads
    attended = np.zeros_like(queries)
    segment = np.arange(len(ops)) // segment_ops
    for op in np.flatnonzero(op_mask):
        seen = np.flatnonzero(op_mask & (segment <= segment[op]) & (segment >= segment[op] - 1))
        for h in range(num_heads):
            part = slice(h * head, (h + 1) * head)
            weights = np.exp(keys[seen, part] @ queries[op, part] / np.sqrt(head))
            attended[op, part] = weights / weights.sum() @ values[seen, part]
    return attended @ output + bias
