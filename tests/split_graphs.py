"""Small graphs whose ops are split, and splits by the words of people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from go_opt.env.copies.divisions import sum_factor, weight_factor
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.search.splits.rows import rows_by_op, split_along
from tests.shaped import ShapedBuilder, Window

BETWEEN = ("first", "bias", "gelu", "scaled")  # of a feed-forward block, up to its last product


SAME = Window(3, 1, 1)


def feed_forward(rows: int, inner: int, terms: int, columns: int, *, gates: int = 1) -> Graph:
    """A norm, products of ``terms`` columns that are multiplied, and a Gemm with a bias."""
    b = ShapedBuilder("feed forward")
    b.add_tensor("x", (rows, inner), "float32", "input")
    b.add_tensor("half", (), "float32", "weight")
    b.add_tensor("v", (terms, columns), "float32", "weight")
    b.add_tensor("c", (columns,), "float32", "weight")

    def op(name: str, op_type: str, flops: int, reads: Sequence[str], size: tuple[int, int]) -> None:
        kind = "matrix" if op_type in ("MatMul", "Gemm") else "vector"
        b.add_op(
            name, op_type, kind, flops=float(flops), dtype="float32", reads=[(read, None) for read in reads],
            writes=[(f"{name}_t", size, "float32")],
        )  # fmt: skip

    op("norm", "LayerNormalization", 8 * rows * inner, ["x"], (rows, inner))
    for name, scale in (("first", "f"), ("gate", "g"))[:gates]:
        b.add_tensor(f"w{scale}", (inner, terms), "float32", "weight")
        op(name, "MatMul", 2 * rows * inner * terms, ["norm_t", f"w{scale}"], (rows, terms))
    b.add_tensor("bias_w", (terms,), "float32", "weight")
    op("bias", "Add", rows * terms, ["first_t", "bias_w"], (rows, terms))
    op("gelu", "Gelu", 5 * rows * terms, ["bias_t"], (rows, terms))
    op("scaled", "Mul", rows * terms, ["gelu_t", "gate_t" if gates > 1 else "half"], (rows, terms))
    op("last", "Gemm", (2 * terms + 1) * rows * columns, ["scaled_t", "v", "c"], (rows, columns))
    op("sum", "Relu", rows * columns, ["last_t"], (rows, columns))
    b.mark_output("sum_t")
    return b.build()


def images(rows: int, layers: Sequence[tuple[str, Window | None]], *, skip: bool = False) -> Graph:
    """A chain of ops on an image of 4 columns and 2 channels; maybe the first result is added to the last."""
    b = ShapedBuilder("images")
    b.add_tensor("image", (1, 2, rows, 4), "float32", "input")
    read, first = "image", ""
    for i, (op_type, window) in enumerate(layers):
        if window is not None:
            rows = (rows + 2 * window.before - window.size) // window.stride + 1
        weights = [(f"w{i}", None)] if op_type == "Conv" else []
        attributes: dict[str, Any] = {"axis": 2} if op_type == "Softmax" else {}  # along rows
        if window is not None:
            attributes = {"strides": [window.stride, 1], "pads": [window.before, 0, window.before, 0]}
            attributes["kernel_shape"] = [window.size, 1]
        if weights and window is not None:
            b.add_tensor(f"w{i}", (2, 2, window.size, 1), "float32", "weight")
        kind = "matrix" if weights else "vector"
        b.add_op(
            f"op{i}", op_type, kind, flops=100.0 * rows, dtype="float32", reads=[(read, None), *weights],
            writes=[(f"t{i}", (1, 2, rows, 4), "float32")], attributes=attributes,
        )  # fmt: skip
        read, first = f"t{i}", first or f"t{i}"
    if skip:
        b.add_op(
            "sum", "Add", "vector", flops=8.0 * rows, dtype="float32", reads=[(read, None), (first, None)],
            writes=[("out", (1, 2, rows, 4), "float32")],
        )  # fmt: skip
        read = "out"
    b.mark_output(read)
    return b.build()


def by_columns(graph: Graph, op: str, parts: int, *, joined: bool = True) -> Split:
    """A product by what its weight adds to the result."""
    return _along(graph, op, weight_factor(graph, graph.op_index[op]), parts, joined)


def by_sums(graph: Graph, op: str, parts: int, *, joined: bool = True) -> Split:
    """A product by the terms of its sums."""
    return _along(graph, op, sum_factor(graph, graph.op_index[op]), parts, joined)


def by_rows(graph: Graph, op: str, parts: int, *, joined: bool = True) -> Split:
    return _along(graph, op, rows_by_op(graph).get(graph.op_index[op]), parts, joined)


def _along(graph: Graph, op: str, factor: int | None, parts: int, joined: bool) -> Split:
    assert factor is not None, f"{op} cannot be split like that"
    return split_along(graph, graph.op_index[op], factor, parts, joined=joined)
