"""Which ops a plan may clone (design section 8): those that any chip can compute for next to nothing.

An op is *clonable* if it and its ancestors include no matrix op, are at most ``MAX_CONE_OPS``
ops, and read only graph inputs and small weights: attention masks, position
encodings, casts and broadcasts of inputs. The rule is narrow on purpose. A clone takes a
tensor off every link, so lower bounds must ignore the transfers of clonable ops
(:mod:`go_opt.solver.certify.problem.build`). If every cheap op were clonable, they would ignore all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.model.graph import MATRIX, NO_PRODUCER, WEIGHT, Graph

MAX_CONE_OPS: Final = 32
MAX_WEIGHT_ELEMENTS: Final = 2**20  # of each weight that a clonable op reads: excludes embedding tables


@lru_cache(maxsize=16)
def clonable_ops(graph: Graph) -> BoolArray:
    """[N] True for ops that a plan may clone."""
    cones: dict[int, frozenset[int]] = {}
    read_ptr, reads = graph.op_reads
    for op in range(graph.num_ops):
        read = graph.reader_tensor[reads[read_ptr[op] : read_ptr[op + 1]]]
        producers = graph.tensor_producer[read]
        above = producers[producers != NO_PRODUCER].tolist()
        weights = read[graph.tensor_kind[read] == WEIGHT]
        if (
            graph.op_class[op] == MATRIX
            or (graph.tensor_elements[weights] > MAX_WEIGHT_ELEMENTS).any()
            or not all(producer in cones for producer in above)
        ):
            continue
        cone = frozenset({op}).union(*(cones[producer] for producer in above))
        if len(cone) <= MAX_CONE_OPS:
            cones[op] = cone
    is_clonable = np.zeros(graph.num_ops, dtype=np.bool_)
    is_clonable[list(cones)] = True
    is_clonable.flags.writeable = False
    return is_clonable
