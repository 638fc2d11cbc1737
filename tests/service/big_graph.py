"""Graphs as large as a service takes."""

from __future__ import annotations

from go_opt.proto import graph_pb2


def repeated(graph: graph_pb2.Graph, times: int) -> graph_pb2.Graph:
    """So many copies of a graph side by side, their names numbered."""
    whole = graph_pb2.Graph(name=f"{times} x {graph.name}", precision=graph.precision)
    for i in range(times):
        first = len(whole.ops)
        for op in graph.ops:
            whole.ops.add().CopyFrom(op)
            whole.ops[-1].name = f"{i}/{op.name}"
        for tensor in graph.tensors:
            copy = whole.tensors.add()
            copy.CopyFrom(tensor)
            copy.name = f"{i}/{tensor.name}"
            if tensor.HasField("producer"):
                copy.producer += first
            for reader in copy.readers:
                reader.op += first
    return whole
