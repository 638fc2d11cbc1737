"""Products recovered from flops and elements, and what partly filled tiles, waves and lanes cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from go_opt.env import Target, cost_tables, divided_tables
from go_opt.env.cost.shapes import product_shapes, shaped_op_seconds
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from tests.strategies import chip_kind, random_graph, simulated_kind, small_mcm


def product(flops: int, output: int, **operands: int) -> Graph:
    """One matrix op; operands of names that start with ``w`` are weights."""
    b = GraphBuilder("product")
    for name, elements in operands.items():
        b.add_tensor(name, elements, "float32", "weight" if name.startswith("w") else "input")
    reads, writes = [(name, None) for name in operands], [("y", output, "float32")]
    b.add_op("op", "MatMul", "matrix", flops=flops, dtype="float32", reads=reads, writes=writes)
    b.mark_output("y")
    return b.build()


def vector(elements: int) -> Graph:
    b = GraphBuilder("vector")
    b.add_op(
        "op", "Exp", "vector", flops=elements, dtype="float32", reads=[], writes=[("y", elements, "float32")]
    )
    return b.build()


def linear(rows: int, inner: int, columns: int, **operands: int) -> Graph:
    elements = {"x": rows * inner, "w": inner * columns} | operands
    return product(2 * rows * inner * columns, rows * columns, **elements)


def package(**changes: Any) -> Target:
    return small_mcm(kinds=[chip_kind(simulator=simulated_kind(**changes))])


@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        (linear(16, 64, 32), (1, 16, 64, 32)),
        (linear(16, 64, 32, w_bias=32), (1, 16, 64, 32)),
        # 4 heads of 12 x 8 by 8 x 10; the larger operand counts as the rows.
        (product(2 * 4 * 12 * 8 * 10, 4 * 12 * 10, q=4 * 12 * 8, k=4 * 8 * 10), (4, 12, 8, 10)),
        (product(2 * 4 * 10 * 8 * 12, 4 * 10 * 12, q=4 * 10 * 8, k=4 * 8 * 12), (4, 12, 8, 10)),
        # 3 x 32 x 32 by 8 filters of 3 x 3 x 3: 900 places of 27 inputs each.
        (product(2 * 8 * 900 * 27, 8 * 900, x=3 * 32 * 32, w=8 * 27), (1, 900, 27, 8)),
        # Depthwise, 16 channels of 3 x 3.
        (product(2 * 16 * 900 * 9, 16 * 900, x=16 * 32 * 32, w=16 * 9), (1, 900, 9, 16)),
        # A tensor of 10 x 8 with itself.
        (product(2 * 10 * 8 * 10, 10 * 10, x=10 * 8), (1, 10, 8, 10)),
        # 2 heads of 197 rows of 64: scores, softmax and sums are no single product.
        (
            product(2 * 197**2 * (4 * 64 + 6), 2 * 197 * 64, **dict.fromkeys("qkv", 2 * 197 * 64)),
            (1, 1, 1, 1),
        ),
        # The bias of two activations' product, and the scales of a quantised one, are no operand.
        (product(2 * 12 * 8 * 10 + 120, 120, q=12 * 8, k=8 * 10, w_bias=10), (1, 12, 8, 10)),
        (product(2 * 12 * 8 * 10, 120, q=12 * 8, k=8 * 10, w_scale=1), (1, 12, 8, 10)),
        (vector(100), (1, 1, 1, 1)),
    ],
)
def test_products(graph: Graph, shape: tuple[int, ...]) -> None:
    assert tuple(float(size[0]) for size in product_shapes(graph)) == shape


@pytest.mark.parametrize(
    ("graph", "changes", "stretch"),
    [
        (linear(32, 64, 64), {"tile": [16, 64, 64]}, 1.0),
        (linear(17, 64, 64), {"tile": [16, 64, 64]}, 32 / 17),
        (linear(16, 65, 64), {"tile": [16, 64, 64]}, 128 / 65),
        (linear(16, 64, 65), {"tile": [16, 64, 64]}, 128 / 65),
        (linear(80, 64, 64), {"tile": [16, 64, 64], "tiles_at_once": 4}, 8 / 5),
        (linear(80, 60, 64), {"tile": [16, 16, 64], "tiles_at_once": 8}, 3 * 8 * 16 * 16 / (80 * 60)),
        (linear(80, 64, 64), {"vector_lanes": 4096}, 1.0),
        (vector(300), {"vector_lanes": 256}, 512 / 300),
        (vector(300), {"tile": [16, 64, 64], "tiles_at_once": 4, "fill_s": 1.0}, 1.0),
    ],
)
def test_stretch(graph: Graph, changes: dict[str, Any], stretch: float) -> None:
    target = package(**changes)
    tables = cost_tables(graph, target)
    seconds = shaped_op_seconds(graph, tables.op_s, target.simulator.kinds)
    assert seconds[0, 0] / tables.op_s[0, 0] == pytest.approx(stretch, rel=1e-12)


def test_each_matrix_op_fills_the_array_once() -> None:
    graph, target = linear(16, 64, 32), package(fill_s=3e-6)
    tables = cost_tables(graph, target)
    seconds = shaped_op_seconds(graph, tables.op_s, target.simulator.kinds)
    assert seconds[0, 0] == pytest.approx(tables.op_s[0, 0] + 3e-6, rel=1e-12)


def test_nothing_gets_faster_and_ideal_units_change_nothing() -> None:
    for seed in range(50):
        graph = random_graph(np.random.default_rng(seed), 20)
        for changes in ({}, {"tile": [16, 64, 64], "tiles_at_once": 3, "vector_lanes": 100}):
            target = package(**changes)
            tables = cost_tables(graph, target)
            seconds = shaped_op_seconds(graph, tables.op_s, target.simulator.kinds)
            assert (seconds >= tables.op_s * (1 - 1e-12)).all()
            if not changes:
                np.testing.assert_allclose(seconds, tables.op_s, rtol=1e-12)


def test_factors_of_types_and_shapes() -> None:
    """The factor of a shape wins; the least of a type bounds the parts that an op may be split into."""
    rows = [
        {"op_type": "MatMul", "factor": 2.0},
        {"op_type": "MatMul", "factor": 3.0, "shape": [1, 16, 64, 32]},
        {"op_type": "MatMul", "factor": 1.5, "shape": [1, 8, 64, 32]},
    ]
    target = package(op_factors=rows, fill_s=3e-6)
    for graph, factor in ((linear(16, 64, 32), 3.0), (linear(8, 64, 32), 1.5), (linear(4, 64, 32), 2.0)):
        plain_s = cost_tables(graph, package(fill_s=3e-6)).op_s[0, 0]
        assert cost_tables(graph, target).op_s[0, 0] == pytest.approx(factor * plain_s, rel=1e-12)
        least_s = divided_tables(graph, target, np.ones(1, np.bool_)).op_s[0, 0]
        assert least_s == pytest.approx(1.5 * plain_s, rel=1e-12)
        assert divided_tables(graph, target, np.zeros(1, np.bool_)).op_s[0, 0] > least_s - 1e-15
