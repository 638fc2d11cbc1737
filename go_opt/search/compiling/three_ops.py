"""A small graph: what kernels are compiled on."""

from __future__ import annotations

from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph


def three_ops(num_ops: int = 3, op_type: str = "Relu") -> Graph:
    """Three ops, or more, in a chain; from the third on each reads the results of the two before."""
    builder = GraphBuilder("warm up")
    builder.add_tensor("t0", 1, "float32", "input")
    for i in range(num_ops):
        builder.add_op(
            f"op{i}",
            op_type,
            "vector",
            flops=1,
            dtype="float32",
            reads=[(f"t{k}", None) for k in (range(max(min(i, 1), i - 1), i + 1))],
            writes=[(f"t{i + 1}", 1, "float32")],
        )
    builder.mark_output(f"t{num_ops}")
    return builder.build()
