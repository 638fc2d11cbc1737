"""Splits by hand on the toy graph, and rechecked from what they mean on random products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import cost_tables, evaluate_plan
from go_opt.env.copies.columns import columns_of, split_sizes
from go_opt.env.copies.splits import planned_graph, split_graph
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Split
from go_opt.solver.verify.splits import broken_splits
from tests.shaped import ShapedBuilder
from tests.strategies import examples, small_mcm, toy_graph


def test_the_toy_by_hand() -> None:
    """logits: y 1000 bytes, table 5000 elements in columns of 5, 1000 columns."""
    graph = toy_graph()
    split = split_graph(graph, (Split("logits", "columns", 4),))
    parts = [split.op_index[f"logits/part {i} of 4"] for i in (1, 2, 3, 4)]
    assert split.op_flops[parts].tolist() == [2500.0] * 4
    slices = [split.tensor_index[f"table/part {i} of 4"] for i in (1, 2, 3, 4)]
    assert split.tensor_elements[slices].tolist() == [1250] * 4
    assert [split.tensor_elements[split.tensor_index[f"out/part {i} of 4"]] for i in (1, 2, 3, 4)] == [
        250
    ] * 4
    join = split.op_index["logits"]
    assert (split.op_types[join], split.op_flops[join]) == ("Concat", 0.0)
    assert "table" in split.tensor_index, "embed still reads it whole"
    tables = cost_tables(split, small_mcm())
    # A part moves y 1000, its slice 2500 and its output 500 bytes: 4 us beside 2.5 us, and 1 us overhead.
    assert tables.kernel_floor_s()[0, parts] == pytest.approx([5e-6] * 4)
    # Joining moves four parts of 500 bytes and the output: 4 us, and 1 us overhead.
    assert tables.kernel_floor_s()[0, join] == pytest.approx(5e-6)


def test_an_interval_by_hand() -> None:
    """Two parts on two chips, the output in parts: the longest chip has all but one part."""
    graph = toy_graph()
    split = split_graph(graph, (Split("logits", "columns", 2, joined=False),))
    outputs = [split.tensor_names[k] for k in np.flatnonzero(split.tensor_is_output)]
    assert outputs == ["out/part 1 of 2", "out/part 2 of 2"]
    target = small_mcm(2)
    ops = np.arange(split.num_ops, dtype=np.int32)
    plan = Plan.of_rows(
        split, target, (ops == split.op_index["logits/part 2 of 2"]).astype(np.int32), ops, ops, "test"
    )
    metrics = evaluate_plan(split, target, plan)
    # 3.4 + 9 + 6 + 5 + 6 us as in the toy; a part: 5 us of compute, 1000 + 5000 + 1000 bytes, 1 us overhead.
    assert metrics.compute_s[:2] == pytest.approx([37.4e-6, 8e-6])
    # y of 1000 bytes, and nothing else, goes from the first chip to the second.
    assert metrics.link_s[0] == pytest.approx(10e-6)


def test_weights_that_no_op_reads_whole_are_slices_alone() -> None:
    split = split_graph(toy_graph(), (Split("dense", "columns", 3),))
    assert "w1" not in split.tensor_index
    sizes = [int(split.tensor_elements[split.tensor_index[f"w1/part {i} of 3"]]) for i in (1, 2, 3)]
    assert sizes == [8 * columns for columns in split_sizes(125, 3)] == [336, 336, 328]


def test_a_plan_names_its_graph() -> None:
    graph = toy_graph()
    splits = (Split("dense", "columns", 5),)
    split = split_graph(graph, splits)
    ops = np.arange(split.num_ops, dtype=np.int32)
    target = small_mcm(2)
    plan = Plan.of_rows(split, target, 0 * ops, ops, ops, "test")
    assert planned_graph(graph, replace(plan, splits=splits)) is split
    assert planned_graph(split, replace(plan, splits=splits)) is split
    assert planned_graph(graph, plan) is graph


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (Split("logit", "columns", 2), "splits: the graph has no op 'logit'."),
        (Split("logits", "rows", 2), "splits: op 'logits' cannot be split by rows."),
        (Split("relu", "columns", 2), "splits: op 'relu' cannot be split by columns."),
        (Split("dense", "columns", 126), "splits: op 'dense' has 125 columns for 126 parts."),
        (Split("dense", "columns", 2, joined=False), "splits: op 'dense' is read by others"),
    ],
)
def test_refused(split: Split, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        split_graph(toy_graph(), (split,))
    assert str(caught.value).startswith(sentence)


def test_an_op_is_split_once() -> None:
    with pytest.raises(PlanError, match="split twice"):
        split_graph(toy_graph(), (Split("dense", "columns", 2), Split("dense", "columns", 3)))


def products(rows: int, inner: int, columns: int, *, bias: bool, tied: bool) -> Graph:
    """A product with a weight, with an activation function behind it; maybe a second one of its weight."""
    b = ShapedBuilder("products")
    b.add_tensor("x", (rows, inner), "float32", "input")
    b.add_tensor("w", (inner, columns), "float32", "weight")
    b.add_tensor("bias", (columns,), "float32", "weight")
    reads = [("x", None), ("w", None), *([("bias", None)] if bias else [])]
    flops = 2.0 * rows * inner * columns
    writes = [("h", (rows, columns), "float32")]
    b.add_op("gemm", "Gemm", "matrix", flops=flops, dtype="float32", reads=reads, writes=writes)
    b.add_op(
        "relu", "Relu", "vector", flops=1.0 * rows * columns, dtype="float32",
        reads=[("h", None)], writes=[("y", (rows, columns), "float32")],
    )  # fmt: skip
    b.mark_output("y")
    if tied:
        b.add_op(
            "again", "Gemm", "matrix", flops=flops, dtype="float32",
            reads=[("x", None), ("w", None)], writes=[("z", (rows, columns), "float32")],
        )  # fmt: skip
        b.mark_output("z")
    return b.build()


sizes = st.integers(1, 9)


@given(sizes, sizes, st.integers(2, 40), st.booleans(), st.booleans(), st.integers(2, 40))
@settings(max_examples=examples(60), deadline=None)
def test_random_products(rows: int, inner: int, columns: int, bias: bool, tied: bool, parts: int) -> None:
    graph = products(rows, inner, columns, bias=bias, tied=tied)
    found = columns_of(graph, graph.op_index["gemm"])
    assert found is not None
    assert found.number == columns
    parts = min(parts, columns)
    splits = tuple(Split(op, "columns", parts) for op in ("gemm", "again")[: 1 + tied])
    split = split_graph(graph, splits)
    assert list(broken_splits(graph, split, splits)) == []
    assert split.op_flops.sum() == pytest.approx(graph.op_flops.sum())
    if tied:  # both read the same slices
        assert sum(name.startswith("w/") for name in split.tensor_names) == parts
    for mutant in mutants(split):
        assert list(broken_splits(graph, mutant, splits)), "a mutant was not found out"


def mutants(split: Graph) -> list[Graph]:
    """Graphs that are not what the splits mean."""
    part = next(i for i, name in enumerate(split.op_names) if name.startswith("gemm/part 2"))
    read = int(np.flatnonzero(split.reader_op == part)[-1])
    output = int(np.flatnonzero(split.tensor_producer == part)[0])
    relu = split.op_index["relu"]
    flops, elements, touched = (
        split.op_flops.copy(),
        split.tensor_elements.copy(),
        split.reader_elements.copy(),
    )
    flops[part] *= 2
    elements[output] += 1
    touched[read] += 1
    other = split.op_flops.copy()
    other[relu] += 1
    return [
        replace(split, op_flops=flops),
        replace(split, tensor_elements=elements),
        replace(split, reader_elements=touched),
        replace(split, op_flops=other),
        replace(split, tensor_is_output=~split.tensor_is_output),
    ]
