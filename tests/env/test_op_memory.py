"""Why nothing fits: demand, limit, the tensors to blame, and what would fit, by hand."""

from __future__ import annotations

from go_opt.env.op_memory import op_that_runs_nowhere, why_no_plan
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import Graph
from tests.strategies import make_plan, small_mcm, toy_graph


def one_op(**changes: str) -> Graph:
    """An op that reads 100 and 50 elements, and writes 25."""
    b = GraphBuilder("one", **changes)  # type: ignore[arg-type]
    b.add_tensor("a", 100, "float32", "input")
    b.add_tensor("b", 50, "float32", "input")
    reads = [("a", None), ("b", None)]
    b.add_op("only", "Add", "vector", flops=100, dtype="float32", reads=reads, writes=[("c", 25, "float32")])
    b.mark_output("c")
    return b.build()


def test_the_tensors_to_blame_and_what_would_fit() -> None:
    # Two bytes an element and two buffers each: 400 + 200 + 100.
    assert op_that_runs_nowhere(one_op(), small_mcm(sram_bytes=600)) == (
        "op 'only' fits no chip of small-mcm as a kernel of its own: its activations need 700 bytes "
        "('a' 400 in two buffers, 'b' 200 in two buffers, 'c' 100 in two buffers), the limit is 600 bytes; "
        "what would fit: a chip with 700 bytes, or tensors of at most 0.85 times these sizes, "
        "as of a smaller batch."
    )
    assert op_that_runs_nowhere(one_op(), small_mcm(sram_bytes=700)) == ""


def test_the_native_precision_is_named_where_it_would_fit() -> None:
    as_is = one_op(precision="as-is")
    assert "or the native precision (700 bytes), or" in op_that_runs_nowhere(as_is, small_mcm(sram_bytes=700))
    assert "native" not in op_that_runs_nowhere(as_is, small_mcm(sram_bytes=699))


def test_the_closest_plan_is_told() -> None:
    graph, target = toy_graph(), small_mcm(2, sram_bytes=5000)
    closest = make_plan(graph, target, [0, 0, 0, 0, 1, 1])
    # Chip 1: s and x from chip 0, each twice, y 1000, out 2000 twice.
    assert why_no_plan(graph, target, "", closest) == (
        "no valid plan was found on small-mcm: activations do not fit; the plan that comes closest needs "
        "9000 bytes on chip 1 at op 'add' ('out' 4000 in two buffers, 'x' 2000 in two buffers, "
        "'s' 2000 in two buffers and 1 more), the limit is 5000 bytes; chips with 9000 bytes would hold "
        "that plan."
    )


def test_without_a_plan_the_largest_op_is_told() -> None:
    assert why_no_plan(toy_graph(), small_mcm(2, sram_bytes=5000), "") == (
        "no valid plan was found on small-mcm: activations do not fit; the largest op 'logits' needs 5000 "
        "bytes ('out' 4000 in two buffers, 'y' 1000) of 5000 bytes, before what its neighbours keep alive."
    )


def test_a_rule_that_stands_in_the_way_goes_first() -> None:
    why = why_no_plan(toy_graph(), small_mcm(2), "chip 0 runs no op, but chip 1 does.")
    assert why.endswith("the first one that fits breaks a rule: chip 0 runs no op, but chip 1 does.")
