"""What a graph is like, worked by hand on the toy graph."""

from __future__ import annotations

import pytest

from go_opt.model.builder import GraphBuilder
from go_opt.report.zoo_tables import OpTypeStats, TensorStats, graph_stats
from tests.strategies import small_mcm, toy_graph


def test_the_toy_graph() -> None:
    stats = graph_stats(toy_graph(), small_mcm(6))
    assert (stats.depth, stats.width) == (6, 1)
    # The residual keeps embed to add on two chips; logits may have a third.
    assert stats.most_chips == 3
    assert stats.op_types == (
        OpTypeStats("MatMul", 3, 20_000),
        OpTypeStats("Add", 1, 500),
        OpTypeStats("Relu", 1, 500),
        OpTypeStats("Gather", 1, 0),
    )
    # In the model's own types, 4 bytes an element.
    assert stats.inputs == TensorStats(1, 400, 400, 400)
    assert stats.outputs == TensorStats(1, 4000, 4000, 4000)
    assert stats.activations == TensorStats(6, 14_000, 2000, 4000)
    assert stats.weights == TensorStats(3, 28_000, 4000, 20_000)


@pytest.mark.parametrize(("chips", "most"), [(2, 2), (9, 6)])
def test_without_a_triangle_rule_every_op_may_have_a_chip(chips: int, most: int) -> None:
    assert graph_stats(toy_graph(), small_mcm(chips, topology="all_to_all")).most_chips == most


def test_branches_side_by_side() -> None:
    builder = GraphBuilder("branches")
    builder.add_tensor("x", 10, "float32", "input")
    for name in ("a", "b", "c"):
        builder.add_op(
            name,
            "Relu",
            "vector",
            flops=10,
            dtype="float32",
            reads=[("x", None)],
            writes=[(name, 10, "float32")],
        )
        builder.mark_output(name)
    stats = graph_stats(builder.build(), small_mcm(9))
    assert (stats.depth, stats.width, stats.most_chips) == (1, 3, 3)
    assert stats.weights == TensorStats(0, 0, 0, 0)
