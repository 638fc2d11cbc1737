"""Which chains get an order. That it costs nothing, ``test_refinement.py`` shows by brute force."""

from __future__ import annotations

from go_opt.env import cost_tables
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from go_opt.solver.certify.problem.build import refinement_problem
from tests.strategies import small_mcm


def projections(sizes: tuple[int, ...]) -> Graph:
    """``x`` is projected for each layer by two ops of its own; layers follow each other."""
    b = GraphBuilder("projections")

    def add(name: str, reads: list[str], elements: int = 100) -> None:
        b.add_op(
            name, "Relu", "vector", flops=100, dtype="bfloat16", reads=[(f"t_{r}", None) for r in reads],
            writes=[(f"t_{name}", elements, "bfloat16")],
        )  # fmt: skip

    add("x", [])
    for i, size in enumerate(sizes):
        add(f"p{i}", ["x"], size)
        add(f"q{i}", [f"p{i}"])
    before = "x"
    for i in range(len(sizes)):
        add(f"layer{i}", [before, f"q{i}"])
        before = f"layer{i}"
    return b.build()


def ordered(graph: Graph) -> set[tuple[str, str]]:
    """Edges of the problem that are none of the graph."""
    units = refinement_problem(graph, cost_tables(graph, small_mcm(2)), passing="free").units
    real = set(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True))
    edges = {
        (u, int(v))
        for u in range(graph.num_ops)
        for v in units.successor[units.successor_ptr[u] : units.successor_ptr[u + 1]]
    }
    return {(graph.op_names[u], graph.op_names[v]) for u, v in edges - real}


def test_equal_chains_are_ordered_by_their_readers() -> None:
    assert ordered(projections((100, 100, 100))) == {("p0", "p1"), ("p1", "p2"), ("q0", "q1"), ("q1", "q2")}


def test_chains_that_differ_are_not() -> None:
    assert ordered(projections((100, 101, 100))) == {("p0", "p2"), ("q0", "q2")}
