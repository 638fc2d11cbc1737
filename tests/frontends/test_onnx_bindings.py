"""What a caller binds to load an ONNX model: open dimensions, inputs and loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import go_opt
from go_opt import from_onnx
from go_opt.errors import ModelError
from go_opt.model.bindings import Bindings

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
Size = str | int | None


def info(name: str, shape: Sequence[Size] | None, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto] = (),
    initializers: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "toy", inputs, outputs or [info("y", None)], initializer=list(initializers)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def relu(*shape: Size) -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"], name="relu")], [info("x", shape)])


@pytest.mark.parametrize("unknown", [None, "", "?", -1, "*", "None"])
def test_dimensions_without_a_name_are_bound_by_input_and_axis(unknown: Size) -> None:
    proto = relu(unknown, 3, unknown, unknown)
    dims = {"x[0]": 2, "x[2]": 5, "x[3]": 7}
    assert from_onnx(proto, dims=dims).tensor_elements.tolist() == [210, 210]
    with pytest.raises(ModelError, match=r"unbound dimensions 'x\[2\]', 'x\[3\]'"):
        from_onnx(proto, dims={"x[0]": 2})


@pytest.mark.parametrize(
    ("dims", "missing"),
    [
        ({}, r"'past', 'new': use"),
        ({"past": 3}, r"'new': use"),
        ({"new": 1}, r"'past': use"),
        ({"past": 3, "new": 2}, r"'past - 2\*new': use"),  # which is no size
    ],
)
def test_a_dimension_that_follows_from_others_is_not_asked_for(dims: dict[str, int], missing: str) -> None:
    inputs = [info("x", ["past + new", "past"]), info("z", ["new", "past - 2*new"])]
    proto = model([helper.make_node("Relu", ["x"], ["y"])], inputs)
    with pytest.raises(ModelError, match=f"unbound dimensions {missing}"):
        from_onnx(proto, dims=dims)


def test_a_size_by_input_and_axis_is_that_of_the_symbol_there() -> None:
    proto = model(
        [helper.make_node("Add", ["x", "z"], ["y"])], [info("x", ["n", 4]), info("z", ["n", "2*n"])]
    )
    assert from_onnx(proto, dims={"x[0]": 2}).tensor_elements.max() == 8
    with pytest.raises(ModelError, match=r"'n' cannot be 2 and, as 'z\[0\]', 3"):
        from_onnx(proto, dims={"x[0]": 2, "z[0]": 3})
    with pytest.raises(ModelError, match=r"'x\[1\]' is not one of model 'toy'"):
        from_onnx(proto, dims={"n": 2, "x[1]": 4})


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("floor(n/2 - 1/2) + 1", 4),
        ("floor((n - 1)/2) + 1", 4),
        ("ceiling(n/4)", 2),
        ("Max(1, n - 9)", 1),
        ("Min(n, 3)", 3),
        ("-n + 9", 2),
        ("Mod(n, 4)", 3),
        ("n % 4 + n // 4", 4),
        ("math.floor(n / 4)", 1),
        ("FloorDiv(n, 2)", 3),
        ("CeilToInt(IntTrueDiv(n, 2))", 4),
        ("floor(floor(n/2 - 1/2)/2 - 1/2) + 1", 2),
        ("n/2", None),  # 3.5 is no size
        ("n - 8", None),
        ("n // (n - 7)", None),
        ("n ** 9999", None),
        ("floor(n", None),
        ("__import__('os').getpid()", None),
        ("floor()", None),
        ("Max(n, 'n')", None),
    ],
)
def test_expressions_of_dimensions(expression: str, size: int | None) -> None:
    proto = relu("n", expression)
    if size is None:
        with pytest.raises(ModelError, match="unbound dimensions"):
            from_onnx(proto, dims={"n": 7})
    else:
        assert from_onnx(proto, dims={"n": 7}).tensor_elements.tolist() == [7 * size] * 2


def test_nodes_of_one_name_get_names_of_their_own() -> None:
    def constant(output: str) -> onnx.NodeProto:
        value = helper.make_tensor("", FLOAT, [1], [2.0])
        return helper.make_node("Constant", [], [output], name="Constant", value=value)

    nodes = [
        constant("c"),
        helper.make_node("Mul", ["x", "c"], ["h"], name="scale"),
        constant("d"),
        helper.make_node("Mul", ["h", "d"], ["i"], name="scale"),
        helper.make_node("Relu", ["i"], ["j"], name="scale_1"),
        helper.make_node("Exp", ["j"], ["y"]),
    ]
    graph = from_onnx(model(nodes, [info("x", [4])]))
    assert graph.op_names == ("scale", "scale_2", "scale_1", "Exp_y")
    assert [node.name for node in graph.nodes_without_op] == ["Constant", "Constant_1"]


def chosen(kind: int = INT64, shape: Sequence[Size] = ()) -> onnx.ModelProto:
    """Relu where the input sr is 16,000, else a product whose shapes do not fit."""
    taken = helper.make_graph([helper.make_node("Relu", ["x"], ["a"])], "a", [], [info("a", None)])
    other = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["b"])], "b", [], [info("b", None)])
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["same"], name="same"),
        helper.make_node("If", ["same"], ["h"], name="choice", then_branch=taken, else_branch=other),
        helper.make_node("Exp", ["h"], ["y"], name="exp"),
    ]
    rate = helper.make_tensor("rate", kind, [], [16000])
    return model(nodes, [info("x", [2, 3]), info("sr", shape, kind)], [], [rate])


def test_a_branch_that_fails_says_which_input_decides() -> None:
    words = (
        r"op 'MatMul_b' .*, in a branch of op 'choice' \(If\) whose condition is not known: use `--value sr="
    )
    with pytest.raises(ModelError, match=words.replace("op 'MatMul_b'", ".*MatMul_b'")):
        from_onnx(chosen())


def test_an_input_with_a_value_decides_branches() -> None:
    graph = from_onnx(chosen(), values={"sr": 16000})
    assert graph.op_types == ("Relu", "Exp")
    assert graph.tensor_names[list(graph.tensor_kind).index(2)] == "x"  # the only input that is left
    assert graph.bindings == Bindings(values={"sr": (16000,)})
    assert from_onnx(chosen(shape=["n"]), values={"sr": 16000}).op_types == ("Relu", "Exp")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 1}, "no input 'rate' to bind; it has 'x', 'sr'"),
        ({"sr": 0.5}, "type int64, which does not hold 0.5"),
        ({"sr": 1e300}, "does not hold 1e[+]300"),
        ({"sr": [1, 2]}, r"'sr' of shape \[\] takes one number or all"),
        ({"sr": []}, r"'sr' of shape \[\] takes one number or all"),
    ],
)
def test_values_that_an_input_cannot_have(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        from_onnx(chosen(), values=values)
    proto = chosen()
    before = proto.SerializeToString()
    from_onnx(proto, values={"sr": 16000})
    assert proto.SerializeToString() == before


def loop(trips: Sequence[onnx.ValueInfoProto] = ()) -> onnx.ModelProto:
    """A loop that the model ends by a condition: state = state · w."""
    nodes = [
        helper.make_node("MatMul", ["state", "w"], ["next"]),
        helper.make_node("Identity", ["go"], ["again"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("state", None)],
        [info("again", [], BOOL), info("next", None)],
    )
    weight = TensorProto(name="w", dims=[4, 4], data_type=FLOAT)
    outer = helper.make_node("Loop", [trips[0].name if trips else "", "", "x"], ["y"], name="loop", body=body)
    return model([outer], [info("x", [2, 4]), *trips], [], [weight])


def test_loops_run_as_often_as_the_caller_says() -> None:
    with pytest.raises(ModelError, match=r"'loop' \(Loop\) has no constant trip count: use `--trips loop="):
        from_onnx(loop())
    assert from_onnx(loop(), trips={"loop": 20}).op_flops.tolist() == [20 * 2 * 2 * 4 * 4]
    counted = loop([info("n", [], INT64)])
    by_value, by_trips = from_onnx(counted, values={"n": 5}), from_onnx(counted, trips={"loop": 5})
    assert by_value.op_flops.tolist() == by_trips.op_flops.tolist() == [5 * 64]
    for trips, words in ({"l": 1}, "no loop 'l'"), ({"loop": -1}, "not -1"), ({"loop": 2**40}, "runs 0 to"):
        with pytest.raises(ModelError, match=words):
            from_onnx(counted, values={"n": 5}, trips=trips)


def test_what_is_bound_goes_with_the_plan(tmp_path: Path) -> None:
    path, plan = tmp_path / "m.onnx", tmp_path / "plan.json"
    onnx.save(chosen(), path)
    arguments = {"values": {"sr": 16000}, "max_evaluations": 2, "policy": None, "simulate": False}
    result = go_opt.optimize(path, "mcm-2x2", **arguments)  # type: ignore[arg-type]
    go_opt.model.codecs.plan_json.save_plan(result.plan, plan)
    assert go_opt.verify(path, "mcm-2x2", plan) == []
    assert np.isfinite(go_opt.evaluate(path, "mcm-2x2", plan).interval_s)
    with pytest.raises(go_opt.errors.InvalidInputError, match="no input to bind 'sr'"):
        go_opt.load("zoo:gpt2", values={"sr": 16000})
