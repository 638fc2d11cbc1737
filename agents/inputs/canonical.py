"""A canonical order of ops, which does not depend on how the graph stores them.

Attention over segments depends on which ops share a segment. So the policy reads ops in a
canonical order: by depth, which makes it topological, and within a depth by their features.
Names break the remaining ties, between ops with equal depth, height and features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray
from go_opt.env import depth, height
from go_opt.model.graph import Graph


def canonical_order(graph: Graph, op_type: IntArray, sizes: NDArray) -> IntArray:
    """[N] the ops of ``graph`` in canonical order, the same for every storage order.

    Args:
      op_type: [N] row of the type's embedding.
      sizes: [N, 3] FLOPs, bytes out and weight bytes, all exact.
    """
    num_readers = np.diff(graph.successors[0])
    num_producers = np.diff(graph.predecessors[0])
    keys = (depth(graph), -height(graph), op_type, *sizes.T, num_readers, num_producers, _name_rank(graph))
    return np.lexsort(keys[::-1]).astype(np.int32)


def _name_rank(graph: Graph) -> IntArray:
    rank = np.empty(graph.num_ops, dtype=np.int32)
    rank[sorted(range(graph.num_ops), key=graph.op_names.__getitem__)] = np.arange(graph.num_ops)
    return rank
