"""Splits by rows, by hand on a chain of convolutions, and rechecked on random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from go_opt import from_onnx
from go_opt.env.copies.rows import rows_of
from go_opt.env.copies.splits import row_spans, split_graph
from go_opt.errors import PlanError
from go_opt.model.axes import Window, row_shapes
from go_opt.model.graph import Graph
from go_opt.model.plan import Split
from go_opt.solver.verify.splits import broken_splits
from tests.env.split_mutants import with_a_wrong_number
from tests.shaped import ShapedBuilder
from tests.strategies import examples, seeds
from tests.transformers import encoder


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


SAME = Window(3, 1, 1)


def test_a_convolution_by_hand() -> None:
    """8 rows in 2 parts: each needs a row of the other's image beside its own four."""
    graph = images(8, [("Conv", SAME)])
    splits = (Split("op0", "rows", 2),)
    split = split_graph(graph, splits)
    assert split.op_names == (
        "image/rows 0 to 5",
        "image/rows 3 to 8",
        "op0/part 1 of 2",
        "op0/part 2 of 2",
        "op0",
    )
    assert split.op_flops.tolist() == [0, 0, 400, 400, 0]
    assert split.tensor_elements[split.tensor_index["image/rows 3 to 8"]] == 40
    assert split.tensor_elements[split.tensor_index["t0/part 2 of 2"]] == 32
    assert row_spans(graph, splits)["t0/part 2 of 2"] == ("t0", 4, 8)
    assert list(broken_splits(graph, split, splits)) == []


def test_parts_that_follow_each_other_are_skewed() -> None:
    """The first part of the first convolution ends a row later, so that the second one needs it alone."""
    graph = images(8, [("Conv", SAME), ("Relu", None), ("Conv", SAME)])
    splits = (Split("op0", "rows", 2, False), Split("op1", "rows", 2, False), Split("op2", "rows", 2))
    split, spans = split_graph(graph, splits), row_spans(graph, splits)
    # Ends of 4 rows, 4 and 3 share the work of 24 rows as evenly as ends of 5, 5 and 4 do.
    assert [spans[f"t{i}/part 1 of 2"][1:] for i in range(3)] == [(0, 4), (0, 4), (0, 3)]
    # The second part needs rows 2 to 8 of what the rectifier writes: two of them are the first part's.
    assert spans["t1/rows 2 to 4"] == ("t1", 2, 4)
    assert split.op_types[split.op_index["t1/rows 2 to 4"]] == "Slice"
    assert split.op_types[split.op_index["t1/rows 2 to 8"]] == "Concat"
    first = {name for name in split.op_names if name.endswith("part 1 of 2")}
    assert not any(
        split.op_names[reader] in first and split.op_names[source].endswith("part 2 of 2")
        for source, reader in zip(split.edge_src, split.edge_dst, strict=True)
    )
    assert split.op_flops.sum() == graph.op_flops.sum(), "no row is computed twice"


def test_rows_that_are_taken_anew_are_not_joined_before() -> None:
    """Each convolution ends in halves; the second part of one is what the first part of the next reads on."""
    graph = images(8, [("Conv", SAME), ("Conv", SAME)])
    splits = (Split("op0", "rows", 2), Split("op1", "rows", 2))
    split, spans = split_graph(graph, splits), row_spans(graph, splits)
    assert "op0" not in split.op_names
    assert "op1" in split.op_names, "the host reads it whole"
    assert spans["t0/part 1 of 2"] == spans["t1/part 1 of 2"]._replace(tensor="t0") == ("t0", 0, 4)
    assert spans["t0/rows 4 to 5"] == ("t0", 4, 5)
    assert list(broken_splits(graph, split, splits)) == []


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ((Split("op0", "rows", 9),), "splits: op 'op0' has 8 rows for 9 parts."),
        ((Split("op1", "rows", 2),), "splits: op 'op1' cannot be split by rows."),
        ((Split("op0", "rows", 2, False),), "splits: op 'op0' is read by others than the host"),
        ((Split("op2", "rows", 8, False), Split("op3", "rows", 8)), "splits: op 'op2' has too few rows"),
    ],
)
def test_refused(splits: tuple[Split, ...], sentence: str) -> None:
    layers = [("Conv", SAME), ("Softmax", None), ("Conv", SAME), ("Conv", SAME)]
    with pytest.raises(PlanError) as caught:
        split_graph(images(8, layers), splits)
    assert str(caught.value).startswith(sentence)


def test_without_rules_there_are_no_rows() -> None:
    graph = images(8, [("Conv", SAME)])
    assert rows_of(graph, 0) is not None
    assert rows_of(replace(graph, op_rules=()), 0) is None


def test_attention_by_hand() -> None:
    """Each part has its own queries, rows of the scores and rows of the mask; keys and values are whole."""
    graph = from_onnx(encoder(1, 12, 16, 4, causal=True))
    rows = {name: rows_of(graph, op) for op, name in enumerate(graph.op_names)}
    read = {
        name: sorted(graph.tensor_names[k] for k in one.windows)
        for name, one in rows.items()
        if one is not None
    }
    assert rows.keys() - read.keys() == {"l0k_turn"}
    assert [read[f"l0_{name}"] for name in ("scores", "masked", "softmax", "context")] == [
        ["l0qt"], ["l0f", "mask"], ["l0fm"], ["l0a"],
    ]  # fmt: skip
    assert row_shapes(graph)[graph.tensor_index["l0q"]] == (12, 16), "tokens, which all views have"
    splits = tuple(Split(name, "rows", 2, name in ("l0k_bias", "l0v_turn", "l0_sum")) for name in read)
    split = split_graph(graph, splits)
    assert list(broken_splits(graph, split, splits)) == []
    assert split.tensor_elements[split.tensor_index["mask/rows 6 to 12"]] == 6 * 12
    assert {"l0k_bias", "l0v_turn", "l0_sum"} <= set(split.op_names)
    assert split.op_flops.sum() == pytest.approx(graph.op_flops.sum())
    for tensor in ("mask/rows 6 to 12", "l0qt/part 1 of 2"):
        sizes = split.tensor_elements.copy()
        sizes[split.tensor_index[tensor]] += 1
        touched = np.where(split.reader_tensor == split.tensor_index[tensor], split.reader_elements + 1, 0)
        mutant = replace(
            split, tensor_elements=sizes, reader_elements=np.maximum(split.reader_elements, touched)
        )
        assert list(broken_splits(graph, mutant, splits))


def test_parts_go_on_beside_what_joins_them() -> None:
    """What one op reads in parts, another one needs whole."""
    b = ShapedBuilder("both")
    b.add_tensor("x", (1, 2, 8, 4), "float32", "input")
    for name, op_type, read in (("a", "Relu", "x"), ("b", "Relu", "a"), ("c", "Softmax", "a")):
        reads, writes = [(read, None)], [(name, (1, 2, 8, 4), "float32")]
        b.add_op(
            name, op_type, "vector", flops=64.0, dtype="float32", reads=reads, writes=writes,
            attributes={"axis": 2},
        )  # fmt: skip
    b.mark_output("b")
    b.mark_output("c")
    graph = b.build()
    splits = Split("a", "rows", 2, False), Split("b", "rows", 2)
    split = split_graph(graph, splits)
    assert split.op_types[split.op_index["a"]] == "Concat"
    assert list(broken_splits(graph, split, splits)) == []


def drawn(rng: np.random.Generator) -> tuple[Graph, tuple[Split, ...]]:
    layers: list[tuple[str, Window | None]] = []
    for _ in range(int(rng.integers(1, 6))):
        size = int(rng.integers(1, 5))
        window = Window(size, int(rng.integers(1, 3)), int(rng.integers(0, size)))
        layers += [[("Conv", window), ("MaxPool", window), ("Relu", None)][rng.integers(3)]]
    keeps_rows = all(window in (None, SAME) for _, window in layers)
    graph = images(int(rng.integers(40, 80)), layers, skip=keeps_rows)
    parts = int(rng.integers(2, 4))
    joined = [bool(rng.random() < 0.3) or op == graph.num_ops - 1 for op in range(graph.num_ops)]
    names = zip(graph.op_names, joined, strict=True)
    return graph, tuple(Split(name, "rows", parts, is_joined) for name, is_joined in names)


@given(seed=seeds)
@settings(max_examples=examples(60), deadline=None)
def test_random_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, splits = drawn(rng)
    try:
        split = split_graph(graph, splits)
    except PlanError as error:
        assume("rows for" not in str(error))
        raise
    assert list(broken_splits(graph, split, splits)) == []
    assert split.op_flops.sum() == pytest.approx(graph.op_flops.sum())
    for array, mutant in with_a_wrong_number(rng, split):
        assert list(broken_splits(graph, mutant, splits)), f"{array} was not found out"
