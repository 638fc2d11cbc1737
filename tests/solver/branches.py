"""A graph of two equal branches, to be ended by each test."""

from __future__ import annotations

from go_opt.model.builder import GraphBuilder


def two_branches() -> GraphBuilder:
    """Branches ``a`` and ``b`` of Relu, Transpose, Relu from one input, which make ``a.2`` and ``b.2``."""
    b = GraphBuilder("two branches")
    b.add_tensor("in", 500, "float32", "input")
    for branch in ("a", "b"):
        for i, (op_type, op_class) in enumerate(
            [("Relu", "vector"), ("Transpose", "data_movement"), ("Relu", "vector")]
        ):
            b.add_op(
                f"{branch}{i}", op_type, op_class, flops=100, dtype="float32",
                reads=[(f"{branch}.{i - 1}" if i else "in", None)],
                writes=[(f"{branch}.{i}", 500, "float32")],
            )  # fmt: skip
    return b
