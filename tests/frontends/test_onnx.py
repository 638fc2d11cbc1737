"""ONNX models made in the test, with numbers worked by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from go_opt import from_onnx
from go_opt.errors import ModelError
from go_opt.model.graph import DATA_MOVEMENT, INPUT, MATRIX, WEIGHT, Graph

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64


def info(name: str, shape: Sequence[str | int | None] | None, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def weight(name: str, shape: Sequence[int], elem_type: int = FLOAT) -> TensorProto:
    """An initializer without its data, as stripped exports have it."""
    return TensorProto(name=name, dims=shape, data_type=elem_type)


def ints(name: str, values: int | list[int]) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=np.int64), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
    *,
    opset: int = 20,
    **kwargs: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "toy", inputs, outputs, initializer=list(initializers), **kwargs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def tensors(graph: Graph, kind: int) -> dict[str, int]:
    return {
        name: int(elements)
        for name, elements, its in zip(
            graph.tensor_names, graph.tensor_elements, graph.tensor_kind, strict=True
        )
        if its == kind
    }


def touched(graph: Graph, tensor: str) -> list[int]:
    k = graph.tensor_names.index(tensor)
    return [int(n) for n in graph.reader_elements[graph.reader_ptr[k] : graph.reader_ptr[k + 1]]]


def test_a_layer() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("Add", ["h", "b"], ["s"], name="bias"),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = from_onnx(
        model(nodes, [info("x", [2, 4])], [info("y", [2, 8])], [weight("w", [4, 8]), weight("b", [8])])
    )
    assert graph.op_names == ("mm", "bias", "Relu_y")
    assert graph.op_flops.tolist() == [2 * 2 * 4 * 8, 16, 16]
    assert tensors(graph, WEIGHT) == {"w": 32, "b": 8}
    assert tensors(graph, INPUT) == {"x": 8}
    assert graph.tensor_is_output[graph.tensor_names.index("y")]


def test_shape_arithmetic_folds_and_views_are_aliases() -> None:
    # x [2, 3, 4] -> Reshape to [Shape(x)[0], -1] -> MatMul: one op is left.
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "axis"], ["rows1"]),
        helper.make_node("Concat", ["rows1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Identity", ["flat"], ["same"]),
        helper.make_node("MatMul", ["same", "w"], ["y"], name="mm"),
    ]
    constants = [ints("zero", 0), ints("axis", [0]), ints("rest", [-1]), weight("w", [12, 5])]
    graph = from_onnx(model(nodes, [info("x", [2, 3, 4])], [info("y", [2, 5])], constants))
    assert graph.op_names == ("mm",)
    assert graph.op_flops.tolist() == [2 * 2 * 12 * 5]
    assert touched(graph, "x") == [24]
    assert tensors(graph, WEIGHT) == {"w": 60}


def test_tied_embedding_is_one_tensor() -> None:
    # The table is read by rows at the bottom and as a whole, transposed, at the top.
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="embed"),
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["e", "head"], ["y"], name="logits"),
    ]
    graph = from_onnx(
        model(nodes, [info("ids", [6], INT64)], [info("y", [6, 100])], [weight("table", [100, 8])])
    )
    assert graph.op_names == ("embed", "logits")
    assert tensors(graph, WEIGHT) == {"table": 800}
    assert touched(graph, "table") == [6 * 8, 800]
    assert graph.op_class.tolist() == [DATA_MOVEMENT, MATRIX]


def test_arithmetic_on_weights_vanishes() -> None:
    # scale / sqrt(var) is one weight of 8; the sources are read by nobody else.
    nodes = [
        helper.make_node("Sqrt", ["var"], ["std"]),
        helper.make_node("Div", ["scale", "std"], ["factor"]),
        helper.make_node("Cast", ["factor"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["x", "half"], ["y"], name="mul"),
    ]
    graph = from_onnx(
        model(
            nodes,
            [info("x", [2, 8], TensorProto.FLOAT16)],
            [info("y", [2, 8], TensorProto.FLOAT16)],
            [weight("var", [8]), weight("scale", [8])],
        )
    )
    assert graph.op_names == ("mul",)
    assert tensors(graph, WEIGHT) == {"half": 8}


def test_large_generated_constants_are_weights_without_values() -> None:
    # A causal mask of 1000 x 1000, filled and cut to a triangle at load time.
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["ones"]),
        helper.make_node("Trilu", ["ones"], ["mask"], upper=0),
        helper.make_node("Add", ["x", "mask"], ["y"]),
    ]
    graph = from_onnx(
        model(nodes, [info("x", [1000, 1000])], [info("y", None)], [ints("size", [1000, 1000])])
    )
    assert graph.op_types == ("Add",)
    assert tensors(graph, WEIGHT) == {"mask": 1_000_000}


def test_a_quantized_weight_stays_quantized() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    constants = [weight("q", [4, 8], TensorProto.INT8), weight("scale", [])]
    graph = from_onnx(model(nodes, [info("x", [2, 4])], [info("y", [2, 8])], constants))
    assert graph.op_types == ("MatMul",)
    k = graph.tensor_names.index("q")
    assert graph.tensor_dtype[k] == 9  # int8
    assert graph.op_dtype.tolist() == [1]  # computed in float32


def test_dead_ops_and_ops_that_change_nothing_are_dropped() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["unused"]),
        helper.make_node("Cast", ["x"], ["same"], to=FLOAT),
        helper.make_node("Transpose", ["same"], ["moved"], perm=[1, 0, 2]),  # only a dimension of 1 moves
        helper.make_node("Dropout", ["moved"], ["kept", "mask"]),
        helper.make_node("Relu", ["kept"], ["y"], name="relu"),
    ]
    graph = from_onnx(model(nodes, [info("x", [1, 3, 4])], [info("y", [3, 1, 4])]))
    assert graph.op_names == ("relu",)


def test_nodes_in_any_order() -> None:
    nodes = [
        helper.make_node("Relu", ["h"], ["y"], name="second"),
        helper.make_node("Exp", ["x"], ["h"], name="first"),
    ]
    assert from_onnx(model(nodes, [info("x", [2])], [info("y", [2])])).op_names == ("first", "second")


def test_dimensions_are_bound_by_name() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    dynamic = model(nodes, [info("x", ["batch", None, "2*batch"])], [info("y", None)])
    graph = from_onnx(dynamic, dims={"batch": 3, "x[1]": 5})
    assert graph.tensor_elements.tolist() == [90, 90]  # 3 · 5 · 6
    assert dict(graph.bindings.dims) == {"batch": 3, "x[1]": 5}
    with pytest.raises(ModelError, match=r"'batch', 'x\[1\]': .*--dim batch=VALUE --dim 'x\[1\]'=VALUE"):
        from_onnx(dynamic)
    with pytest.raises(ModelError, match=r"'seq' is not one of model 'toy'; it has 'batch', 'x\[1\]'"):
        from_onnx(dynamic, dims={"batch": 3, "x[1]": 5, "seq": 1})
    bad_values: list[Any] = [0, -1, True, 1.5]
    for bad in bad_values:
        with pytest.raises(ModelError, match="'batch' must be a positive integer"):
            from_onnx(dynamic, dims={"batch": bad, "x[1]": 5})


def test_custom_ops_need_their_shape_in_the_file() -> None:
    nodes = [
        helper.make_node("Magic", ["x"], ["h"], domain="custom", name="m"),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    arguments = nodes, [info("x", ["n"])], [info("y", None)]
    graph = from_onnx(model(*arguments, value_info=[info("h", ["n", 7])]), dims={"n": 2})
    assert graph.op_types == ("Magic", "Relu")
    assert graph.op_flops.tolist() == [14, 14]
    with pytest.raises(ModelError, match=r"op 'm' \(custom.Magic\) has no known output shape"):
        from_onnx(model(*arguments), dims={"n": 2})


def test_sizes_known_only_at_run_time_can_be_bound() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], name="nz"),
        helper.make_node("Cast", ["i"], ["y"], to=FLOAT),
    ]
    stated = model(nodes, [info("x", [8])], [info("y", None)], value_info=[info("i", [1, "found"], INT64)])
    assert from_onnx(stated, dims={"found": 3}).op_flops.tolist() == [3, 3]
    with pytest.raises(ModelError, match=r"op 'nz' \(NonZero\) .*--dim found=VALUE"):
        from_onnx(stated)
    with pytest.raises(ModelError, match="values known only at run time"):
        from_onnx(model(nodes, [info("x", [8])], [info("y", None)]))


def test_local_functions_are_inlined() -> None:
    layer = helper.make_function(
        "custom",
        "Layer",
        ["a", "w"],
        ["b"],
        [
            helper.make_node("MatMul", ["a", "w"], ["t"], name="mm"),
            helper.make_node("Relu", ["t"], ["b"], name="act"),
        ],
        [helper.make_opsetid("", 20)],
    )
    nodes = [
        helper.make_node("Layer", ["x", "w"], ["h"], domain="custom"),
        helper.make_node("Layer", ["h", "w"], ["y"], domain="custom"),
    ]
    proto = model(nodes, [info("x", [2, 4])], [info("y", [2, 4])], [weight("w", [4, 4])])
    proto.functions.append(layer)
    graph = from_onnx(proto)
    assert graph.op_types == ("MatMul", "Relu", "MatMul", "Relu")
    assert len(set(graph.op_names)) == 4


@pytest.mark.parametrize("opset", [7, 13, 18, 23])
def test_opsets(opset: int) -> None:
    # Squeeze takes its axes as an attribute before 13 and as an input since.
    axes: dict[str, Any] = {"axes": [0]} if opset < 13 else {}
    inputs = ["x"] if opset < 13 else ["x", "axes"]
    nodes = [helper.make_node("Squeeze", inputs, ["h"], **axes), helper.make_node("Softmax", ["h"], ["y"])]
    constants = [] if opset < 13 else [ints("axes", [0])]
    graph = from_onnx(model(nodes, [info("x", [1, 3, 4])], [info("y", [3, 4])], constants, opset=opset))
    assert graph.op_flops.tolist() == [60]


def test_five_thousand_nodes_load_in_three_seconds() -> None:
    nodes, last = [], "x"
    for i in range(2500):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", "b"], [f"a{i}"]))
        last = f"a{i}"
    proto = model(
        nodes, [info("x", [8, 64])], [info(last, [8, 64])], [weight("w", [64, 64]), weight("b", [64])]
    )
    start_s = time.process_time()  # others may be at work
    graph = from_onnx(proto)
    assert graph.num_ops == 5000
    assert time.process_time() - start_s < 3.0


def test_zero_sized_tensors_are_fine() -> None:
    nodes = [helper.make_node("Concat", ["x", "past"], ["y"], axis=0)]
    graph = from_onnx(model(nodes, [info("x", [2, 3]), info("past", [0, 3])], [info("y", [2, 3])]))
    assert tensors(graph, INPUT) == {"x": 6, "past": 0}


def test_the_model_is_not_changed() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", ["n"])], [info("y", ["n"])])
    before = proto.SerializeToString(deterministic=True)
    from_onnx(proto, dims={"n": 4})
    assert proto.SerializeToString(deterministic=True) == before
    assert isinstance(proto, onnx.ModelProto)
