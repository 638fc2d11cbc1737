"""Graphs with as little in them as a graph may have."""

from __future__ import annotations

from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph


def one_op() -> Graph:
    """A single op that computes, reads and writes nothing."""
    b = GraphBuilder("one op")
    b.add_op("only", "Nothing", "data_movement", flops=0, dtype="int8", reads=[], writes=[])
    return b.build()


def no_edges(num_ops: int = 7) -> Graph:
    """Equal ops that share nothing."""
    b = GraphBuilder("no edges")
    for i in range(num_ops):
        b.add_op(f"op{i}", "Relu", "vector", flops=2, dtype="int8", reads=[], writes=[(f"t{i}", 3, "int8")])
    return b.build()


def no_work(num_ops: int = 5) -> Graph:
    """A chain of empty tensors and no flops."""
    b = GraphBuilder("no work")
    b.add_tensor("t0", 0, "float32", "input")
    for i in range(num_ops):
        writes = [(f"t{i + 1}", 0, "float32")]
        b.add_op(f"op{i}", "Copy", "vector", flops=0, dtype="float32", reads=[(f"t{i}", None)], writes=writes)
    return b.build()


def one_reader_of_all(num_ops: int = 200) -> Graph:
    """Many sources, one sink: the most uneven degrees there are."""
    b = GraphBuilder("one reader of all")
    for i in range(num_ops - 1):
        b.add_op(f"op{i}", "Exp", "vector", flops=9, dtype="int8", reads=[], writes=[(f"t{i}", 9, "int8")])
    reads = [(f"t{i}", None) for i in range(num_ops - 1)]
    b.add_op("sink", "Sum", "vector", flops=9, dtype="int8", reads=reads, writes=[("out", 9, "int8")])
    b.mark_output("out")
    return b.build()


DEGENERATE = (one_op, no_edges, no_work, one_reader_of_all)
