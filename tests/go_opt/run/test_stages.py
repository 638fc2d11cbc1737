"""Stage models give what the whole model gives, whatever the model has in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from go_opt.model.plan import Relay
from go_opt.run.manifest import load_manifest
from tests.exports import (
    BOOL,
    FLOAT,
    INT64,
    branch,
    check_stages,
    clashing_names,
    info,
    integers,
    model,
    node,
    plan_of,
    saved,
    weight,
)


def test_a_chain_of_three(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a", "m"), node("Relu", "a", "b", "r"), node("MatMul", "b v", "y", "n")]
    weights = [weight("w", 4, 5), weight("v", 5, 3)]
    path = saved(model(nodes, [info("x", [2, 4])], [info("y", [2, 3])], weights), tmp_path)
    manifest = check_stages(path, plan_of(path, [0, 0, 1]), tmp_path / "out")
    first, second = manifest.stages
    assert (first.kernels, second.kernels) == ((("m",), ("r",)), (("n",),))
    assert (first.weight_bytes, second.weight_bytes) == (4 * 20, 4 * 15)
    assert [(row.tensor, row.source) for row in first.inputs] == [("x", None)]
    assert [(row.tensor, row.readers) for row in first.outputs] == [("b", (1,))]
    assert [(row.tensor, row.source) for row in second.inputs] == [("b", 0)]
    assert (manifest.tensor("b").shape, manifest.tensor("b").bytes) == ((2, 5), 40)
    assert load_manifest(tmp_path / "out") == manifest
    assert [[b.tensor for b in chip.buffers] for chip in manifest.memory] == [
        ["w", "x", "b", "a"],
        ["v", "b", "y"],
    ]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "annotated.onnx",
        "manifest.json",
        "stage-0.onnx",
        "stage-1.onnx",
    ]


def test_a_tensor_with_several_readers_is_sent_once(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "a", "a"),
        node("Exp", "a", "b", "b"),
        node("Neg", "a", "c", "c"),
        node("Sum", "a b c", "y", "y"),
    ]
    path = saved(model(nodes, [info("x", [3])], [info("y", [3]), info("a", [3])]), tmp_path)
    manifest = check_stages(path, plan_of(path, [0, 1, 2, 3]), tmp_path / "out")
    assert [(row.tensor, row.readers) for row in manifest.stages[0].outputs] == [("a", (1, 2, 3))]
    assert [(row.name, row.stage) for row in manifest.outputs] == [("y", 3), ("a", 0)]


def test_an_input_read_late_comes_from_the_host(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a", "a"), node("Add", "a late", "y", "y")]
    path = saved(
        model(nodes, [info("x", [3]), info("late", [3]), info("unused", [2])], [info("y", [3])]), tmp_path
    )
    manifest = check_stages(path, plan_of(path, [0, 1]), tmp_path / "out")
    assert manifest.inputs == ("x", "late", "unused")
    assert [(row.tensor, row.source) for row in manifest.stages[1].inputs] == [("a", 0), ("late", None)]


def test_views_go_with_their_readers(tmp_path: Path) -> None:
    """What crosses is the tensor that the plan counts, not an Expand of it."""
    nodes = [
        node("Relu", "x", "a", "a"),
        node("Reshape", "a flat", "b", "b"),
        node("Expand", "b wide", "c", "c"),
        node("Add", "c u", "d", "d"),
        node("Mul", "c a6", "e", "e"),
        node("Reshape", "a six", "a6", "a6"),
        node("Reshape", "a flat", "seen", "seen"),
    ]
    given = [integers("flat", 1, 6), integers("wide", 4, 6), integers("six", 6), weight("u", 4, 6)]
    outputs = [info("d", [4, 6]), info("e", [4, 6]), info("seen", [1, 6])]
    path = saved(model(nodes, [info("x", [2, 3])], outputs, given), tmp_path)
    manifest = check_stages(path, plan_of(path, {"d": 1, "e": 2}), tmp_path / "out")
    assert [[row.tensor for row in stage.inputs] for stage in manifest.stages] == [["x"], ["a"], ["a"]]
    assert manifest.stages[1].nodes_without_op == ("b", "c")
    assert manifest.outputs[2].stage == 0


def test_constants_go_with_each_reader(tmp_path: Path) -> None:
    """Folded nodes, shape arithmetic and shared weights; nothing of them crosses."""
    nodes = [
        node("Transpose", "w", "t", "transposed"),
        node("MatMul", "x t", "a", "a"),
        node("Shape", "a", "s", "shape"),
        node("Gather", "s zero", "rows", "rows"),
        node("Concat", "rows minus", "to", "to", axis=0),
        node("Relu", "a", "b", "b"),
        node("Reshape", "b to", "c", "c"),
        node("MatMul", "c t", "d", "d"),
        node("Constant", "", "k", "k", value=weight("k", 4)),
        node("Add", "d k", "e", "e"),
        node("Cast", "s", "f", "f", to=FLOAT),
        node("ReduceSum", "f", "g", "g"),
        node("Mul", "e g", "y", "y"),
        node("Size", "e", "n", "n"),
    ]
    given = [weight("w", 4, 4), integers("zero", 0), integers("minus", -1)]
    outputs = [
        info("y", [2, 4]),
        info("k", [4]),
        info("n", [], INT64),
        info("w", [4, 4]),
        info("s", [2], INT64),
    ]
    path = saved(model(nodes, [info("x", [2, 4])], outputs, given), tmp_path)
    plan = plan_of(path, {"d": 1, "e": 1, "y": 2})
    manifest = check_stages(path, plan, tmp_path / "out")
    assert [[row.tensor for row in stage.inputs] for stage in manifest.stages] == [["x"], ["b"], ["e"]]
    assert [row.stage for row in manifest.outputs] == [2, 0, 0, 0, 0]
    assert [row.tensor for row in manifest.outputs] == ["y", "k", "n", "w/output", "s"]
    # Both stages with a product have `w`; the second has the arguments of the Reshape too.
    assert [stage.weight_bytes for stage in manifest.stages] == [64, 64 + 8 + 8, 0]


def test_an_output_that_is_an_input(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a", "a"), node("Neg", "a", "y", "y"), node("Identity", "x", "same", "same")]
    outputs = [info("x", [3]), info("y", [3]), info("same", [3])]
    path = saved(model(nodes, [info("x", [3])], outputs), tmp_path)
    manifest = check_stages(path, plan_of(path, [0, 1]), tmp_path / "out")
    assert [(row.tensor, row.stage) for row in manifest.outputs] == [("x/output", 0), ("y", 1), ("same", 0)]


def test_inputs_and_outputs_that_are_left_out(tmp_path: Path) -> None:
    nodes = [
        node("Clip", "x - top", "a", "a"),
        node("Dropout", "a", "b -", "drop"),
        node("LayerNormalization", "b scale", "c - spread", "norm"),
        node("Resize", "c - scales", "y", "resize", mode="nearest"),
    ]
    given = [
        numpy_helper.from_array(np.float32(0.5), "top"),
        weight("scale", 6),
        numpy_helper.from_array(np.array([1, 2], np.float32), "scales"),
    ]
    outputs = [info("y", [2, 12]), info("spread", [2, 1])]
    path = saved(model(nodes, [info("x", [2, 6])], outputs, given), tmp_path)
    check_stages(path, plan_of(path, {"norm": 1, "resize": 2}), tmp_path / "out")


def test_weights_that_are_inputs_as_well(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a", "a"), node("Relu", "a", "y", "y")]
    inputs = [info("x", [2, 4]), info("w", [4, 4])]
    proto = model(nodes, inputs, [info("y", [2, 4])], [weight("w", 4, 4)], opset=9)
    proto.ir_version = 3
    path = saved(proto, tmp_path)
    assert check_stages(path, plan_of(path, [0, 1]), tmp_path / "out").inputs == ("x",)


def test_symbolic_sizes_are_those_of_the_plan(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s", "s", end=1),
        node("Concat", "s six", "to", "to", axis=0),
        node("Relu", "x", "a", "a"),
        node("Reshape", "a to", "b", "b"),
        node("Exp", "b", "y", "y"),
    ]
    inputs = [info("x", ["batch", 2, 3])]
    path = saved(model(nodes, inputs, [info("y", ["batch", 6])], [integers("six", 6)]), tmp_path)
    manifest = check_stages(path, plan_of(path, [0, 1], dims={"batch": 5}), tmp_path / "out")
    assert manifest.tensor("a").shape == (5, 2, 3)
    assert manifest.dims == {"batch": 5}


def test_external_weights(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a", "a"), node("Add", "a k", "b", "b"), node("MatMul", "b v", "y", "y")]
    constant = node("Constant", "", "k", "k", value=weight("k", 40))
    weights = [weight("w", 40, 40), weight("v", 40, 40)]
    proto = model([constant, *nodes], [info("x", [2, 40])], [info("y", [2, 40])], weights)
    path = tmp_path / "toy.onnx"
    onnx.save(
        proto, path, save_as_external_data=True, location="toy.bin", size_threshold=64, convert_attribute=True
    )
    check_stages(path, plan_of(path, [0, 0, 1]), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.data"))


def test_stages_too_large_for_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("go_opt.run.cut.stages.MAX_MODEL_BYTES", 10_000)
    nodes = [node("MatMul", "x w", "a", "a"), node("MatMul", "a v", "y", "y")]
    weights = [weight("w", 60, 60), weight("v", 60, 3)]
    path = saved(model(nodes, [info("x", [2, 60])], [info("y", [2, 3])], weights), tmp_path)
    check_stages(path, plan_of(path, [0, 1]), tmp_path / "out")
    assert (tmp_path / "out" / "stage-0.onnx.data").stat().st_size == 4 * 60 * 60
    assert not (tmp_path / "out" / "stage-1.onnx.data").exists()


def test_local_functions_are_in_place(tmp_path: Path) -> None:
    body = [node("MatMul", "p q", "m", "m"), node("Relu", "m", "r", "r")]
    function = helper.make_function("own", "Block", ["p", "q"], ["r"], body, [helper.make_opsetid("", 20)])
    nodes = [
        node("Block", "x w", "a", "one", domain="own"),
        node("Block", "a w", "y", "two", domain="own"),
    ]
    proto = model(nodes, [info("x", [2, 4])], [info("y", [2, 4])], [weight("w", 4, 4)], functions=[function])
    path = saved(proto, tmp_path)
    manifest = check_stages(path, plan_of(path, [0, 1, 2, 2]), tmp_path / "out")
    assert sum(len(stage.ops) for stage in manifest.stages) == 4
    opsets = onnx.load(tmp_path / "out" / "stage-0.onnx").opset_import
    assert [opset.domain for opset in opsets] == [""]


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_with_a_constant_condition(tmp_path: Path, condition: bool) -> None:
    """Its branches name their nodes and tensors alike, and one has an If again."""
    inner = node(
        "If",
        "known",
        "o",
        "inner",
        then_branch=branch("t", [node("Neg", "h", "v", "op")], "v"),
        else_branch=branch("e", [node("Exp", "h", "v", "op")], "v"),
    )
    then = branch(
        "then", [node("MatMul", "a w", "h", "op"), inner, node("Relu", "o", "v", "")], "v", weight("w", 4, 4)
    )
    other = branch("else", [node("Sigmoid", "a", "v", "op")], "v")
    nodes = [
        node("Relu", "x", "a", "a"),
        node("If", "known", "b", "choice", then_branch=then, else_branch=other),
        node("Neg", "b", "y", "y"),
    ]
    known = numpy_helper.from_array(np.array(condition), "known")
    path = saved(model(nodes, [info("x", [2, 4])], [info("y", [2, 4]), info("b", [2, 4])], [known]), tmp_path)
    names = ["choice/op", "choice/inner/op", "choice/Relu_v"] if condition else ["choice/op"]
    chips = {name: i + 1 for i, name in enumerate(names)} | {"y": 5}
    manifest = check_stages(path, plan_of(path, chips), tmp_path / "out")
    assert [stage.ops for stage in manifest.stages] == [(name,) for name in ["a", *names, "y"]]


@pytest.mark.parametrize("condition", [True, False])
def test_names_in_bodies_are_unlike_those_around_them(tmp_path: Path, condition: bool) -> None:
    path = saved(clashing_names(condition), tmp_path)
    then = ["choice_2/output 0", "choice_2/deep/op"]
    names = then if condition else ["choice_2/op", "choice_2/deep/op"]
    around = ["choice/op", "choice/deep/op", "choice/deep_1/op", "choice_1/op", "loop", "y"]
    chips = {name: i % 4 for i, name in enumerate([*names, *around])}
    plan = plan_of(path, chips)
    manifest = check_stages(path, plan, tmp_path / "out")
    assert sorted(name for stage in manifest.stages for name in stage.ops) == sorted([*names, *around])
    loop = next(stage for stage in manifest.stages if "loop" in stage.ops)
    assert "loop/m" in {row.tensor for row in loop.inputs}


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_that_is_an_op(tmp_path: Path, condition: bool) -> None:
    """Its branches read tensors and weights around it, one of them by its shape alone."""
    then = branch("then", [node("MatMul", "a w", "v", "op")], "v")
    shaped = [node("Shape", "far", "s", "s"), node("Expand", "k s", "v", "op")]
    nodes = [
        node("Exp", "x", "far", "far"),
        node("Relu", "x", "a", "a"),
        node("If", "cond", "b", "choice", then_branch=then, else_branch=branch("else", shaped, "v")),
        node("Add", "b far", "y", "y"),
    ]
    inputs = [info("x", [2, 4]), info("cond", [], BOOL)]
    path = saved(model(nodes, inputs, [info("y", [2, 4])], [weight("w", 4, 4), weight("k", 1)]), tmp_path)
    plan = plan_of(path, {"far": 3, "choice": 1, "y": 2})
    given = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "cond": np.array(condition)}
    manifest = check_stages(path, plan, tmp_path / "out", given)
    stage = next(stage for stage in manifest.stages if stage.ops == ("choice",))
    # The shape of `far` is known, so `far` itself is not sent.
    assert {row.tensor for row in stage.inputs} == {"a", "cond"}


def test_loop_and_scan(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Identity", "going", "go", "go"),
            node("MatMul", "state w", "m", "m"),
            node("Tanh", "m", "next", "t"),
            node("Add", "next a", "seen", "s"),
        ],
        "body",
        [info("i", [], INT64), info("going", [], BOOL), info("state", [2, 4])],
        [info("go", [], BOOL), info("next", [2, 4]), info("seen", [2, 4])],
    )
    step = helper.make_graph(
        [node("Add", "sum row", "total", "add"), node("Mul", "total b", "out", "mul")],
        "step",
        [info("sum", [2, 4]), info("row", [2, 4])],
        [info("total", [2, 4]), info("out", [2, 4])],
    )
    nodes = [
        node("Relu", "x", "a", "a"),
        node("Neg", "x", "b", "b"),
        node("Loop", "trips - x", "last all", "loop", body=body),
        node("Scan", "last all", "end stacked", "scan", body=step, num_scan_inputs=1),
    ]
    trips = numpy_helper.from_array(np.int64(3), "trips")
    outputs = [info("end", [2, 4]), info("stacked", [3, 2, 4])]
    path = saved(model(nodes, [info("x", [2, 4])], outputs, [trips, weight("w", 4, 4)]), tmp_path)
    manifest = check_stages(path, plan_of(path, [0, 1, 2, 3]), tmp_path / "out")
    loop, scan = manifest.stages[2:]
    assert {row.tensor for row in loop.inputs} == {"x", "a"}
    assert {row.tensor for row in scan.inputs} == {"last", "all", "b"}


def test_a_body_that_reads_a_shape_around_it(tmp_path: Path) -> None:
    """What a body has of `far` is its shape, so `far` is not sent; an If in it is decided as well."""
    shaped = [node("Shape", "far", "s", "s"), node("Expand", "state s", "v", "op")]
    chosen = {
        "then_branch": branch("t", shaped, "v"),
        "else_branch": branch("e", [node("Neg", "state", "v", "op")], "v"),
    }
    body = helper.make_graph(
        [
            node("Identity", "going", "go", "go"),
            node("If", "known", "o", "inner", **chosen),
            node("Size", "far", "n", "n"),
            node("Cast", "n", "f", "f", to=FLOAT),
            node("Div", "o f", "next", "d"),
        ],
        "body",
        [info("i", [], INT64), info("going", [], BOOL), info("state", [2, 4])],
        [info("go", [], BOOL), info("next", [2, 4])],
    )
    nodes = [
        node("Exp", "x", "far", "far"),
        node("Loop", "trips - x", "last", "loop", body=body),
        node("Add", "last far", "y", "y"),
    ]
    given = [numpy_helper.from_array(np.int64(3), "trips"), numpy_helper.from_array(np.array(True), "known")]
    path = saved(model(nodes, [info("x", [2, 4])], [info("y", [2, 4])], given), tmp_path)
    manifest = check_stages(path, plan_of(path, [1, 0, 2]), tmp_path / "out")
    stage = next(stage for stage in manifest.stages if stage.ops == ("loop",))
    assert [(row.tensor, row.source) for row in stage.inputs] == [("x", None)]


def test_chips_in_any_order_are_cut_into_parts(tmp_path: Path) -> None:
    """Chip 0 feeds chip 1, which feeds chip 0: two stages on chip 0, and a third kernel joins the second."""
    nodes = [
        node("Relu", "x", "a", "a"),
        node("Exp", "a", "b", "b"),
        node("Neg", "b", "c", "c"),
        node("Abs", "a", "d", "d"),
    ]
    path = saved(model(nodes, [info("x", [3])], [info("c", [3]), info("d", [3])]), tmp_path)
    manifest = check_stages(path, plan_of(path, [0, 1, 0, 0]), tmp_path / "out")
    assert [(stage.chips, stage.part, stage.parts, stage.ops) for stage in manifest.stages] == [
        ((0,), 0, 2, ("a",)),
        ((1,), 0, 1, ("b",)),
        ((0,), 1, 2, ("c", "d")),
    ]


def ring(folder: Path) -> Path:
    """Four products in a row, the last of which also reads the mask of the input."""
    nodes = [
        node("Sign", "m", "mask", "mask"),
        node("MatMul", "x w", "a", "a"),
        node("MatMul", "a w", "b", "b"),
        node("MatMul", "b w", "c", "c"),
        node("Add", "c a", "d", "d"),
        node("Mul", "d mask", "y", "y"),
    ]
    inputs = [info("x", [2, 4]), info("m", [2, 4])]
    return saved(model(nodes, inputs, [info("y", [2, 4])], [weight("w", 4, 4)]), folder)


def test_relays_are_copies_in_the_stages_between(tmp_path: Path) -> None:
    path = ring(tmp_path)
    chips = {"mask": 0, "a": 0, "b": 1, "c": 2, "d": 3, "y": 3}
    relays = [Relay("a", (1, 2)), Relay("mask", (1, 2))]
    manifest = check_stages(path, plan_of(path, chips, "mcm-2x2", relays=relays), tmp_path / "out")
    assert [{(row.source, row.tensor) for row in stage.relays} for stage in manifest.stages] == [
        set(),
        {("a", "a/relay 1"), ("mask", "mask/relay 1")},
        {("a/relay 1", "a/relay 2"), ("mask/relay 1", "mask/relay 2")},
        set(),
    ]
    last = {row.tensor: row.source for row in manifest.stages[3].inputs}
    assert last == {"c": 2, "a/relay 2": 2, "mask/relay 2": 2}


def test_a_replicated_stage_is_one_model(tmp_path: Path) -> None:
    path = ring(tmp_path)
    chips = {"mask": 0, "a": 0, "b": 1, "c": 1, "d": 1, "y": 1}
    manifest = check_stages(
        path, plan_of(path, chips, "mcm-2x2", replication=[1, 1, 3, 3, 3, 3]), tmp_path / "out"
    )
    assert [(stage.chips, stage.replication) for stage in manifest.stages] == [((0,), 1), ((1, 2, 3), 3)]
