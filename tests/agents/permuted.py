"""The same graph, its ops stored in another topological order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from go_opt.agents.inputs.features import OP_COLUMNS, STORED, GraphFeatures
from go_opt.common.arrays import IntArray
from go_opt.model.graph import NO_PRODUCER, Graph


def permuted(graph: Graph, order: IntArray) -> Graph:
    """``graph`` with op ``order[i]`` in place i; a topological order."""
    place = np.empty(graph.num_ops, dtype=np.int32)
    place[order] = np.arange(graph.num_ops)
    reader = place[graph.reader_op]
    in_row = np.lexsort((reader, graph.reader_tensor))  # readers of a tensor stand in ascending order
    produced = graph.tensor_producer != NO_PRODUCER
    return replace(
        graph,
        op_names=tuple(graph.op_names[op] for op in order),
        op_types=tuple(graph.op_types[op] for op in order),
        op_class=graph.op_class[order],
        op_flops=graph.op_flops[order],
        op_dtype=graph.op_dtype[order],
        tensor_producer=np.where(produced, place[graph.tensor_producer], NO_PRODUCER).astype(np.int32),
        reader_op=reader[in_row],
        reader_elements=graph.reader_elements[in_row],
        measured_s={kind: seconds[order] for kind, seconds in graph.measured_s.items()},
        excluded={kind: mask[order] for kind, mask in graph.excluded.items()},
    )


def without_storage(features: GraphFeatures) -> GraphFeatures:
    """``features`` but for the columns that tell of the stored order."""
    ops = features.ops.copy()
    ops[:, [OP_COLUMNS.index(name) for name in STORED]] = 0.0
    return replace(features, ops=ops)
