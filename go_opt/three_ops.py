"""A graph of three ops: what kernels are compiled on."""

from __future__ import annotations

from go_opt.graph import Graph
from go_opt.graph_builder import GraphBuilder


def three_ops() -> Graph:
    """Three ops in a chain; the last reads the first's result too."""
    builder = GraphBuilder("warm up")
    builder.add_tensor("t0", 1, "float32", "input")
    for i in range(3):
        builder.add_op(
            f"op{i}",
            "Relu",
            "vector",
            flops=1,
            dtype="float32",
            reads=[(f"t{k}", None) for k in (range(1, 3) if i == 2 else range(i, i + 1))],
            writes=[(f"t{i + 1}", 1, "float32")],
        )
    builder.mark_output("t3")
    return builder.build()
