"""Splits by hand on small graphs, and random ones: evaluated over a prime field, and rechecked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from go_opt.env import cost_tables, evaluate_plan
from go_opt.env.copies import divisions, pieces
from go_opt.env.copies.divisions import divisible_factors
from go_opt.env.copies.splits import planned_graph, split_graph, split_graph_and_parts
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Split
from go_opt.solver.verify.splits import broken_splits
from tests.env.random_models import RandomModel, random_splits, with_states
from tests.env.split_mutants import Editable, mutants
from tests.env.split_oracle import ABSENT, split_outputs, whole_values
from tests.shaped import Shape, ShapedBuilder
from tests.strategies import examples, seeds, small_mcm, toy_graph

Op = tuple[str, str, str, Shape | list[Shape], dict[str, Any]]


def model(
    sources: dict[str, Shape], *ops: tuple[str, str, str, Shape | list[Shape], dict[str, Any]]
) -> Graph:
    """A graph of ops, each a name, type, operands and the shape of its result, which has its name.

    Sources are weights, and those named ``x`` or ``y`` inputs. What nothing reads is an output. Products and
    convolutions have 1000 FLOPs beside one for each element, others one for each element.
    """
    b = ShapedBuilder("model", precision="as-is")
    for name, shape in sources.items():
        b.add_tensor(name, shape, "float32", "input" if name in ("x", "y") else "weight")
    for name, op_type, operands, shapes, attributes in ops:
        several = shapes if isinstance(shapes, list) else [shapes]
        results = [(name if len(several) == 1 else f"{name}{i}", one) for i, one in enumerate(several)]
        is_matrix = op_type in ("Conv", "Gemm", "MatMul")
        b.add_op(
            name, op_type, "matrix" if is_matrix else "vector",
            flops=float(sum(np.prod(one) for one in several)) + 1000 * is_matrix, dtype="float32",
            reads=[(one, None) for one in operands.split()],
            writes=[(result, shape, "float32") for result, shape in results], attributes=attributes,
        )  # fmt: skip
    read = {one for _, _, operands, _, _ in ops for one in operands.split()}
    for name, _, _, shapes, _ in ops:
        for i in range(len(shapes) if isinstance(shapes, list) else 1):
            written = f"{name}{i}" if isinstance(shapes, list) else name
            if written not in read:
                b.mark_output(written)
    return b.build()


def checked(graph: Graph, *splits: Split) -> Graph:
    """The split graph, which computes what the graph does."""
    split = split_graph_and_parts(graph, splits)
    assert list(broken_splits(graph, split.graph, splits)) == []
    if None not in graph.op_rules:
        whole, held = whole_values(graph), dict[tuple[int, bool], list[Any]]()
        for key, values in split_outputs(graph, split):
            held.setdefault(key, []).append(values)
        outputs = {(k, False) for k in np.flatnonzero(graph.tensor_is_output).tolist()}
        assert set(held) == outputs | {(state.next, True) for state in graph.states}
        for (k, is_next), found in held.items():
            if is_next and all((one == whole[k]).all() for one in found):
                continue  # copies of a state
            assert ((np.array(found) != ABSENT).sum(0) == 1).all(), "an element is left twice, or not"
            assert (np.max(found, axis=0) == whole[k]).all()
    return split.graph


def row(graph: Graph, op: str) -> tuple[str, float, dict[str, int], list[int]]:
    """Type, FLOPs, the elements that are read by tensor, and those that are written."""
    i = graph.op_index[op]
    reads = {graph.tensor_names[k]: touched for k, touched in graph.reads_of(i)}
    return (
        graph.op_types[i],
        float(graph.op_flops[i]),
        reads,
        [int(graph.tensor_elements[k]) for k in graph.outputs_of(i)],
    )


# ------------------------------------------------------------------ by hand


def test_columns_of_the_toy() -> None:
    """logits: y 1000 bytes, table 5000 elements in columns of 5, 1000 columns."""
    graph = toy_graph()
    split = checked(graph, Split("logits", "j", 4))
    for i in range(4):
        piece = f"table/elements {250 * i} to {250 * i + 250} of 1000"
        found = row(split, f"logits/part {i + 1} of 4")
        assert found == ("MatMul", 2500.0, {"y": 500, piece: 1250}, [250])
    parts = {f"out/part {i} of 4": 250 for i in (1, 2, 3, 4)}
    assert row(split, "logits") == ("Concat", 0.0, parts, [1000])
    assert "table" in split.tensor_index, "embed still reads it whole"
    assert "w1" not in checked(graph, Split("dense", "j", 3)).tensor_index, "nothing reads it whole"
    seconds = cost_tables(split, small_mcm()).kernel_floor_s()[0]
    # A part moves y 1000, its slice 2500 and its output 500 bytes: 4 us beside 2.5 us, and 1 us overhead.
    assert seconds[split.op_index["logits/part 1 of 4"]] == pytest.approx(5e-6)
    # Joining moves four parts of 500 bytes and the output: 4 us, and 1 us overhead.
    assert seconds[split.op_index["logits"]] == pytest.approx(5e-6)


def test_an_interval_of_the_toy() -> None:
    """Two parts on two chips, the output in parts: the longest chip has all but one part."""
    graph = toy_graph()
    split = checked(graph, Split("logits", "j", 2, joined=False))
    outputs = [split.tensor_names[k] for k in np.flatnonzero(split.tensor_is_output)]
    assert outputs == ["out/part 1 of 2", "out/part 2 of 2"]
    target, ops = small_mcm(2), np.arange(split.num_ops, dtype=np.int32)
    is_last = (ops == split.op_index["logits/part 2 of 2"]).astype(np.int32)
    metrics = evaluate_plan(split, target, Candidate("test", is_last, ops, ops).plan(split, target))
    # 3.4 + 9 + 6 + 5 + 6 us as in the toy; a part: 5 us of compute, 1000 + 5000 + 1000 bytes, 1 us overhead.
    assert metrics.compute_s[:2] == pytest.approx([37.4e-6, 8e-6])
    # y of 1000 bytes, and nothing else, goes from the first chip to the second.
    assert metrics.link_s[0] == pytest.approx(10e-6)


def test_sums_with_a_bias() -> None:
    """[4, 6] by [6, 5]: parts of 3 terms, added. The bias, and its 20 FLOPs, belong to the first part."""
    gemm = ("op", "Gemm", "x w b", (4, 5), {})
    graph = replace(model({"x": (4, 6), "w": (6, 5), "b": (5,)}, gemm), op_flops=np.array([260.0]))
    split = checked(graph, Split("op", "k", 2))
    of_x, of_w = "x/elements {} of 6", "w/elements {} of 30"
    first = {of_x.format("0 to 3"): 12, of_w.format("0 to 15"): 15, "b": 5}
    assert row(split, "op/part 1 of 2") == ("Gemm", 140.0, first, [20])
    second = {of_x.format("3 to 6"): 12, of_w.format("15 to 30"): 15}
    assert row(split, "op/part 2 of 2") == ("Gemm", 120.0, second, [20])
    assert row(split, of_x.format("3 to 6")) == ("Slice", 0.0, {"x": 12}, [12])
    assert row(split, "op") == ("Add", 20.0, {"op/part 1 of 2": 20, "op/part 2 of 2": 20}, [20])
    three = checked(graph, Split("op", "k", 3))
    assert row(three, "op/sum 2 of 3")[2] == {"op/part 1 of 3": 20, "op/part 2 of 3": 20}
    assert row(three, "op")[2] == {"op/sum 2 of 3": 20, "op/part 3 of 3": 20}


def test_a_block_moves_nothing_between_its_parts() -> None:
    """Columns pass through an element-wise op to a product that divides its sums (Megatron-LM)."""
    graph = model(
        {"x": (4, 6), "u": (6, 8), "b": (8,), "d": (8, 6)},
        ("up", "Gemm", "x u b", (4, 8), {}),
        ("act", "Relu", "up", (4, 8), {}),
        ("down", "MatMul", "act d", (4, 6), {}),
    )
    split = checked(graph, Split("up", "j", 2, False), Split("act", "d1", 2, False), Split("down", "k", 2))
    assert split.op_names == (
        "up/part 1 of 2", "up/part 2 of 2", "act/part 1 of 2", "act/part 2 of 2",
        "down/part 1 of 2", "down/part 2 of 2", "down",
    )  # fmt: skip
    assert row(split, "down/part 2 of 2")[2] == {"act/part 2 of 2": 16, "d/elements 24 to 48 of 48": 24}
    # Joined, the columns may end elsewhere, and are whole for who reads them whole.
    assert "up" in checked(graph, Split("up", "j", 3)).op_index


def image(*kernels: Shape, pads: Sequence[int] = (1, 0, 1, 0), rows: int = 8) -> Graph:
    """Convolutions over 2 channels of rows of 4 elements."""
    names = ["x", *(f"op{i}" for i in range(len(kernels)))]
    ops = [
        (f"op{i}", "Conv", f"{names[i]} w{i}", (1, 2, rows, 4), {"pads": list(pads)})
        for i in range(len(kernels))
    ]
    return model({"x": (1, 2, rows, 4)} | {f"w{i}": (2, 2, *one) for i, one in enumerate(kernels)}, *ops)


def test_rows_of_a_convolution() -> None:
    """8 rows in 2 parts: each needs a row of the other's image beside its own four; a row has 4 elements."""
    split = checked(image((3, 1)), Split("op0", "y0", 2))
    halves = ("x/elements 0 to 20 of 32", "x/elements 12 to 32 of 32")
    for i, half in enumerate(halves):
        assert row(split, half) == ("Slice", 0.0, {"x": 40}, [40])
        assert row(split, f"op0/part {i + 1} of 2") == ("Conv", 532.0, {half: 40, "w0": 12}, [32])


def test_parts_that_follow_each_other_are_skewed() -> None:
    """The first part of the first convolution ends a row later, so that the second one needs it alone."""
    graph = image((3, 1), (3, 1))
    split = checked(graph, Split("op0", "y0", 2, False), Split("op1", "y0", 2))
    # 4 and 3 rows share the work of 16 as evenly as 5 and 4 do.
    assert [row(split, f"op{i}/part 1 of 2")[3] for i in (0, 1)] == [[2 * 4 * 4], [2 * 3 * 4]]
    assert row(split, "op1/part 1 of 2")[2] == {"op0/part 1 of 2": 32, "w1": 12}
    # The second part needs rows 2 to 8: two of them are the first part's.
    halo = "op0/elements 8 to 16 of 32"
    assert row(split, halo) == ("Slice", 0.0, {"op0/part 1 of 2": 16}, [16])
    assert row(split, "op0/elements 8 to 32 of 32")[:3] == ("Concat", 0.0, {halo: 16, "op0/part 2 of 2": 32})
    assert split.op_flops.sum() == graph.op_flops.sum(), "no row is computed twice"


def test_width_and_height_at_once() -> None:
    graph = image((3, 3), pads=(1, 1, 1, 1))
    split = checked(graph, Split("op0", "y0", 2), Split("op0", "y1", 2))
    # Rows 3 to 8 and columns 0 to 3 of the image: 2 channels of 5 rows of 3.
    read = row(split, "op0/part 3 of 4")[2]
    assert read == {"x/elements 12 to 32 of 32 and 0 to 3 of 4": 30, "w0": 36}
    joins = [name for name, kind in zip(split.op_names, split.op_types, strict=True) if kind == "Concat"]
    assert joins == ["op0/elements 0 to 16 of 32", "op0/elements 16 to 32 of 32", "op0"]


def test_groups_of_convolutions() -> None:
    """6 channels in 3 groups, and each alone: weights and channels are in parts, nothing is read whole."""
    grouped = ("op", "Conv", "x w b", (1, 9, 4, 4), {"group": 3})
    split = checked(model({"x": (1, 6, 4, 4), "w": (9, 2, 1, 1), "b": (9,)}, grouped), Split("op", "g", 3))
    assert row(split, "op/part 2 of 3")[2] == {
        "x/elements 32 to 64 of 96": 32, "w/elements 6 to 12 of 18": 6, "b/elements 3 to 6 of 9": 3,
    }  # fmt: skip
    graph = model(
        {"x": (1, 6, 4, 4), "w": (6, 1, 3, 3), "v": (5, 6, 1, 1)},
        ("deep", "Conv", "x w", (1, 6, 4, 4), {"group": 6, "pads": [1] * 4}),
        ("point", "Conv", "deep v", (1, 5, 4, 4), {}),
    )
    split = checked(graph, Split("deep", "g", 2, False), Split("point", "c", 2))
    assert row(split, "point/part 1 of 2")[2]["deep/part 1 of 2"] == 48


def test_heads_of_attention() -> None:
    """Scores, their distribution and products with values, a head each, without a join between."""
    shape = (1, 2, 3, 3)
    graph = model(
        {"x": (1, 2, 3, 4), "y": (1, 2, 4, 3)},
        ("scores", "MatMul", "x y", shape, {}),
        ("shares", "Softmax", "scores", shape, {"axis": -1}),
        ("mixed", "MatMul", "shares x", (1, 2, 3, 4), {}),
    )
    splits = [Split(op, factor, 2, False) for op, factor in (("scores", "b1"), ("shares", "d1"))]
    split = checked(graph, *splits, Split("mixed", "b1", 2))
    assert row(split, "mixed/part 2 of 2")[2] == {"shares/part 2 of 2": 9, "x/elements 12 to 24 of 24": 12}
    fused = model(
        {"x": (2, 3, 8)}, ("op", "Attention", "x x x", (2, 3, 8), {"q_num_heads": 4, "kv_num_heads": 4})
    )
    # A part reads one slice, which is its queries, keys and values.
    assert row(checked(fused, Split("op", "g", 4)), "op/part 2 of 4")[2] == {"x/elements 2 to 4 of 8": 12}


def test_rows_and_columns_at_once() -> None:
    graph = model({"x": (4, 6), "w": (6, 9)}, ("op", "MatMul", "x w", (4, 9), {}))
    split = checked(graph, Split("op", "i", 2), Split("op", "j", 3))
    assert row(split, "op/part 6 of 6") == (
        "MatMul", 1036 / 6, {"x/elements 12 to 24 of 24": 12, "w/elements 6 to 9 of 9": 18}, [6],
    )  # fmt: skip
    parts = {f"op/part {i} of 6": 6 for i in (4, 5, 6)}
    assert row(split, "op/elements 18 to 36 of 36") == ("Concat", 0.0, parts, [18])
    # A reader of rows has the columns of its rows joined, and not the whole.
    more = model(
        {"x": (4, 6), "w": (6, 9)}, ("op", "MatMul", "x w", (4, 9), {}), ("end", "Relu", "op", (4, 9), {})
    )
    split = checked(more, Split("op", "i", 2, False), Split("op", "j", 3, False), Split("end", "d0", 4))
    halves = {f"op/elements {i} to {i + 9} of 36": 9 for i in (0, 9, 18, 27)}
    assert [row(split, f"end/part {i} of 4")[2] for i in (1, 2, 3, 4)] == [{one: 9} for one in halves]
    assert "op" not in split.op_index
    sums = checked(graph, Split("op", "k", 2), Split("op", "j", 3))
    assert row(sums, "op/part 3 of 3")[2] == {f"op/part 3 of 3/part {i} of 2": 12 for i in (1, 2)}


def test_columns_of_an_embedding() -> None:
    """Parts of a table that is read in part: each reads as many of its rows."""
    b = ShapedBuilder("embedding")
    b.add_tensor("x", (2, 3), "int32", "input")
    b.add_tensor("table", (50, 8), "float32", "weight")
    b.add_op(
        "op", "Gather", "data_movement", flops=0, dtype="float32", reads=[("table", 48), ("x", None)],
        writes=[("out", (2, 3, 8), "float32")],
    )  # fmt: skip
    b.mark_output("out")
    graph = b.build()
    columns = checked(graph, Split("op", "d1", 4))
    assert row(columns, "op/part 1 of 4")[2:] == ({"table/elements 0 to 2 of 8": 12, "x": 6}, [12])
    assert columns.tensor_elements[columns.tensor_index["table/elements 0 to 2 of 8"]] == 100
    rows = checked(graph, Split("op", "i1", 3))
    assert row(rows, "op/part 1 of 3")[2] == {"table": 16, "x/elements 0 to 1 of 3": 2}


def test_an_op_with_several_results() -> None:
    graph = model(
        {"x": (6, 5)}, ("op", "Split", "x", [(6, 2), (6, 3)], {"axis": 1}), ("end", "Relu", "op0", (6, 2), {})
    )
    split = checked(graph, Split("op", "d0", 3, False), Split("end", "d0", 3))
    assert row(split, "op/part 2 of 3")[2:] == ({"x/elements 10 to 20 of 30": 10}, [4, 6])
    outputs = [split.tensor_names[k] for k in np.flatnonzero(split.tensor_is_output)]
    assert outputs == [*(f"op1/part {i} of 3" for i in (1, 2, 3)), "end"]
    assert "op0" not in split.tensor_index, "its parts are read alone"
    joined = checked(graph, Split("op", "d0", 3))
    assert row(joined, "op1/joined")[2] == {f"op1/part {i} of 3": 6 for i in (1, 2, 3)}


def test_a_weight_that_two_ops_divide_in_two_ways() -> None:
    graph = model(
        {"x": (4, 6), "w": (6, 6)},
        ("one", "MatMul", "x w", (4, 6), {}),
        ("two", "MatMul", "one w", (4, 6), {}),
    )
    split = checked(graph, Split("one", "j", 2), Split("two", "k", 2))
    slices = [name for name in split.tensor_names if name.startswith("w/")]
    assert slices == [
        f"w/elements {one}" for one in ("0 to 3 of 6", "3 to 6 of 6", "0 to 18 of 36", "18 to 36 of 36")
    ]
    assert "w" not in split.tensor_index


def test_a_tensor_that_an_op_reads_twice() -> None:
    """Rows of the one operand and all of the other, which is the same; terms of both; and a bias as well."""
    shape, product = (4, 4), {"transB": 1}
    graph = model({"x": shape}, ("op", "Gemm", "x x", shape, product))
    split = checked(graph, Split("op", "i", 2))
    assert row(split, "op/part 1 of 2")[2] == {"x/elements 0 to 8 of 16": 8, "x": 16}
    assert row(checked(graph, Split("op", "k", 2)), "op/part 1 of 2")[2] == {"x/elements 0 to 2 of 4": 8}
    added = checked(model({"x": shape}, ("op", "Gemm", "x x x", shape, product)), Split("op", "k", 2))
    assert row(added, "op/part 1 of 2")[2] == {"x/elements 0 to 2 of 4": 8, "x": 16}
    assert row(added, "op/part 2 of 2")[2] == {"x/elements 2 to 4 of 4": 8}


def test_a_plan_names_its_graph() -> None:
    graph, splits = toy_graph(), (Split("dense", "j", 5),)
    split, target = split_graph(graph, splits), small_mcm(2)
    ops = np.arange(split.num_ops, dtype=np.int32)
    plan = Candidate("test", 0 * ops, ops, ops).plan(split, target)
    assert planned_graph(graph, replace(plan, splits=splits)) is split
    assert planned_graph(split, replace(plan, splits=splits)) is split
    assert planned_graph(graph, plan) is graph


# ------------------------------------------------------------------ what cannot be split


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ([Split("logit", "j", 2)], "splits: the graph has no op 'logit'."),
        ([Split("logits", "rows", 2)], "splits: op 'logits' cannot be split along 'rows'."),
        ([Split("relu", "d0", 2)], "splits: op 'relu' cannot be split along 'd0'."),  # it has no rule
        ([Split("dense", "j", 126)], "splits: op 'dense' has 125 steps along 'j' for 126 parts."),
        ([Split("dense", "k", 2, False)], "splits: op 'dense' has partial results, which must be joined."),
        ([Split("dense", "j", 2), Split("dense", "j", 3)], "splits: op 'dense' is split twice along 'j'."),
    ],
)
def test_refused(splits: list[Split], sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        split_graph(toy_graph(), tuple(splits))
    assert str(caught.value) == sentence


def test_parts_that_read_padding_alone_are_refused() -> None:
    """A window of one row over a row of padding at each end: 3 parts of 6 rows have an image, 6 have not."""
    b = ShapedBuilder("padding")
    b.add_tensor("x", (1, 2, 4, 4), "float32", "input")
    b.add_tensor("w", (2, 2, 1, 1), "float32", "weight")
    b.add_op("op", "Conv", "matrix", flops=288, dtype="float32", reads=[("x", None), ("w", None)],
             writes=[("y", (1, 2, 6, 4), "float32")], attributes={"pads": [1, 0, 1, 0]})  # fmt: skip
    checked(b.build(), Split("op", "y0", 3))
    with pytest.raises(PlanError, match="op 'op' would have a part that reads padding alone"):
        split_graph(b.build(), (Split("op", "y0", 6),))


def test_too_few_steps_for_parts_that_end_together() -> None:
    """A window over all rows: its first row needs all but the last one of what it reads."""
    with pytest.raises(PlanError, match="op 'op0' has too few steps for 2 parts"):
        split_graph(
            image((5, 1), (5, 1), pads=(2, 0, 2, 0), rows=3),
            (Split("op0", "y0", 2, False), Split("op1", "y0", 2)),
        )


def factors(graph: Graph, op: str) -> set[str]:
    i = graph.op_index[op]
    rule = graph.op_rules[i]
    return (
        set() if rule is None else {rule.rule.factors[factor].name for factor in divisible_factors(graph)[i]}
    )


def test_what_can_be_divided() -> None:
    sources = {"x": (4, 6), "w": (6, 6), "s": (1,), "i": (4, 6), "d": (1, 8, 2, 3)}
    ops = {
        "Gemm": ("x w s", (4, 6), {"activation": "Relu"}, "ij"),  # a function of whole sums
        "MatMul": ("x w s", (4, 6), {}, "ij"),  # the third operand is a scale, not a bias
        "Softmax": ("x", (4, 6), {"axis": 1}, ["d0"]),
        "ReduceMean": ("x", (4, 1), {"axes": [1]}, ["d0"]),
        "ReduceMax": ("x", (4, 1), {"axes": [1]}, ["d0", "r1"]),
        "Tile": ("x s", (8, 6), {}, ["d0", "d1"]),  # no operand has the repetitions
        "ConstantOfShape": ("s", (4, 6), {}, []),  # nor the dimensions of the result
        "Pad": ("x", (6, 6), {"pads": [1, 0, 1, 0]}, ["d1"]),  # its padding is an argument
        "Slice": ("x", (4, 2), {"starts": [1], "axes": [1]}, ["d0"]),
        "Resize": ("x", (4, 12), {}, []),  # its size is an argument
        "DepthToSpace": ("d", (1, 2, 4, 6), {"blocksize": 2}, ["c", "y0", "y1"]),  # blocks stay square
        "Concat": ("x i", (8, 6), {"axis": 0}, ["d1"]),
    }
    for op_type, (operands, shape, attributes, divisible) in ops.items():
        graph = model(sources, ("op", op_type, operands, shape, attributes))
        assert factors(graph, "op") == set(divisible), op_type
    measured = model(sources, ("op", "MatMul", "x w", (4, 6), {}))
    assert factors(measured, "op") == {"i", "j", "k"}
    assert factors(replace(measured, measured_s={"chip": np.array([1e-6])}), "op") == set()


# ------------------------------------------------------------------ random graphs


def drawn(seed: int, *, states: bool = False) -> tuple[np.random.Generator, Graph, tuple[Split, ...]]:
    rng = np.random.default_rng(seed)
    graph = RandomModel(rng, int(rng.integers(1, 12))).graph()
    if states:
        graph = with_states(rng, graph)
    splits = random_splits(rng, graph)
    assume(splits)
    return rng, graph, splits


@given(seeds)
@settings(max_examples=examples(80), deadline=None)
def test_random_splits_compute_the_model(seed: int) -> None:
    _, graph, splits = drawn(seed)
    checked(graph, *splits)


@given(seeds)
@settings(max_examples=examples(80), deadline=None)
def test_random_splits_divide_states(seed: int) -> None:
    _, graph, splits = drawn(seed, states=True)
    assume(graph.states)
    checked(graph, *splits)


@given(seeds, st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_faults_are_found(seed: int, states: bool) -> None:
    rng, graph, splits = drawn(seed, states=states)
    split = split_graph_and_parts(graph, splits)
    rebuilt = Editable(split).built()
    assert rebuilt is not None
    assert list(broken_splits(graph, rebuilt, splits)) == []
    for fault, mutant in mutants(rng, split):
        assert list(broken_splits(graph, mutant, splits)), fault


@pytest.mark.parametrize("fault", ["halo", "start", "ends"])
def test_faults_of_the_expansion_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rechecks must not take the word of the expansion: for what a part reads, or where parts end."""
    graph = image((3, 1), (3, 1))
    splits = (Split("op0", "y0", 2, False), Split("op1", "y0", 2))
    reach, stops = pieces.reach_of, divisions.stops_of
    if fault == "halo":  # one row too few behind
        monkeypatch.setattr(pieces, "reach_of", lambda rule, piece: reach(rule, piece) - 1)
    elif fault == "start":  # and in front
        changed = lambda piece: piece._replace(before=piece.before - 1)  # noqa: E731
        places = pieces.places
        monkeypatch.setattr(
            pieces,
            "places",
            lambda rule, access: [
                one if isinstance(one.piece, int) else one._replace(piece=changed(one.piece))
                for one in places(rule, access)
            ],
        )
    else:  # a row is left out
        short = lambda ends: [ends[0] - 1, ends[1] - 1]  # noqa: E731
        monkeypatch.setattr(
            "go_opt.env.copies.splits.stops_of",
            lambda *of: {one: short(ends) for one, ends in stops(*of).items()},
        )
    split_graph_and_parts.cache_clear()
    try:
        assert list(broken_splits(graph, split_graph(graph, splits), splits))
    finally:
        split_graph_and_parts.cache_clear()
