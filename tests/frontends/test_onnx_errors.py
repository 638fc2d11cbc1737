"""Bad ONNX models: one sentence of a GoOptError each, and nothing read outside the model's folder."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from go_opt import from_onnx
from go_opt.errors import GoOptError, GraphError, ModelError

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, shape: Sequence[str | int | None] | None, elem_type: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "toy", inputs, outputs, initializer=list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def external(name: str, dims: Sequence[int], elem_type: int, **fields: str | int) -> TensorProto:
    tensor = TensorProto(name=name, dims=dims, data_type=elem_type, data_location=TensorProto.EXTERNAL)
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def reshape_model(shape: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Reshape", ["x", "shape"], ["h"], name="view")
    relu = helper.make_node("Relu", ["h"], ["y"])
    return model([node, relu], [info("x", [2, 6])], [info("y", None)], [shape])


def test_missing_file_directory_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="Is a directory"):
        from_onnx(tmp_path)
    for content in (b"", b"hello, this is no model", b"\x00" * 64):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(ModelError, match=r"not an ONNX model"):
            from_onnx(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"path or an onnx.ModelProto, not int"):
        from_onnx(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("Relu", "a", "x", "y"), ("Exp", "b", "x", "y")], "op 'b' defines tensor 'y'"),
        ([("Relu", "a", "x", "x"), ("Exp", "b", "x", "y")], "op 'a' defines tensor 'x'"),
        ([("Relu", "a", "ghost", "y")], "op 'a' reads tensor 'ghost', which nothing defines"),
        ([("Relu", "a", "x", "h")], "'y'.* nothing defines"),
    ],
)
def test_structure(nodes: list[tuple[str, ...]], message: str) -> None:
    made = [helper.make_node(kind, [read], [write], name=name) for kind, name, read, write in nodes]
    with pytest.raises((GraphError, ModelError), match=message):
        from_onnx(model(made, [info("x", [2])], [info("y", [2])]))


def test_a_cycle_is_reported_by_its_ops() -> None:
    nodes = [
        helper.make_node("Add", ["x", "c"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"], name="two"),
        helper.make_node("Reshape", ["b", "s"], ["c"], name="three"),
    ]
    with pytest.raises(GraphError, match="cycle: 'one' -> 'two' -> 'three' -> 'one'"):
        from_onnx(model(nodes, [info("x", [2]), info("s", [1], INT64)], [info("b", [2])]))


def test_functions_that_grow_without_bound_are_refused_at_once() -> None:
    """A kilobyte of functions, each of which calls the one below twice: 2**16 ops, once half a minute."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local",
            f"f{depth}",
            ["x"],
            ["y"],
            [
                helper.make_node(
                    f"f{depth - 1}" if depth else "Relu", [x], [y], domain="local" if depth else ""
                )
                for x, y in ("xt", "ty")
            ],
            opsets,
        )
        for depth in range(16)
    ]

    def calling(depth: int) -> onnx.ModelProto:
        node = helper.make_node(f"f{depth}", ["x"], ["y"], domain="local")
        graph = helper.make_graph([node], "g", [info("x", [2])], [info("y", [2])])
        return helper.make_model(graph, opset_imports=opsets, functions=functions)

    assert from_onnx(calling(3)).num_ops == 16
    with pytest.raises(ModelError, match="more than 8300 nodes of 33"):
        from_onnx(calling(15))


def test_shapes_that_cannot_be() -> None:
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(ModelError, match=r"'x': dimension 0 is negative \(-3\)"):
        from_onnx(model(relu, [info("x", [-3])], [info("y", None)]))
    with pytest.raises(ModelError, match="tensor 'x' has more than"):
        from_onnx(model(relu, [info("x", [2**62] * 9)], [info("y", None)]))
    with pytest.raises(ModelError, match="'x' has 100000 dimensions, more than 64"):
        from_onnx(model(relu, [info("x", [1] * 100_000)], [info("y", None)]))
    with pytest.raises(ModelError, match="input 'x' has no shape"):
        from_onnx(model(relu, [info("x", None)], [info("y", None)]))
    product = [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")]
    with pytest.raises(ModelError, match=r"op 'mm' \(MatMul\): Incompatible dimensions"):
        from_onnx(model(product, [info("x", [2, 3]), info("w", [4, 5])], [info("y", None)]))


def test_a_stripped_constant_whose_values_are_needed_is_named() -> None:
    with pytest.raises(ModelError, match=r"op 'view' \(Reshape\) needs the values of 'shape'"):
        from_onnx(reshape_model(TensorProto(name="shape", dims=[2], data_type=INT64)))
    with pytest.raises(ModelError, match=r"'shape'"):
        from_onnx(reshape_model(external("shape", [2], INT64, location="weights.bin")))


def test_sequences_are_refused_by_name() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], name="split"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    with pytest.raises(ModelError, match=r"op 'split' \(SplitToSequence\): sequences"):
        from_onnx(model(nodes, [info("x", [2])], [info("y", None)]))


def test_a_small_constant_is_read_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 8 + np.asarray([3, 4], dtype=np.int64).tobytes())
    shape = external("shape", [2], INT64, location="weights.bin", offset=8, length=16)
    onnx.save(reshape_model(shape), tmp_path / "m.onnx")
    assert from_onnx(tmp_path / "m.onnx").op_flops.tolist() == [12]


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "a/../../secret.bin", "/etc/hostname", "link.bin", "C:\\secret", "..\\secret", ""],
)
def test_external_data_outside_the_folder_is_refused_even_if_unused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    unused = external("unused", [4], FLOAT, location=location)
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])], [unused])
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"'unused': its external data .* not inside the model's folder"):
        from_onnx(folder / "m.onnx")


def test_external_data_in_subgraphs_is_checked_too() -> None:
    inner = helper.make_node("Constant", [], ["c"], value=external("c", [2], FLOAT, location="/etc/passwd"))
    body = helper.make_graph([inner], "body", [], [info("c", [2])])
    choice = helper.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=body)
    with pytest.raises(ModelError, match="'/etc/passwd'"):
        from_onnx(model([choice], [info("cond", [], TensorProto.BOOL)], [info("y", [2])]))


def test_damaged_files_never_raise_anything_else(tmp_path: Path) -> None:
    rng = random.Random(0)
    original = (LIGHT / "light_squeezenet.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    messages = []
    for round_number in range(150):
        damaged = bytearray(original)
        if round_number % 3 == 0:
            damaged = damaged[: rng.randrange(len(damaged))]
        for _ in range(rng.choice([1, 3, 30]) if damaged else 0):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            from_onnx(path)
        except GoOptError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


def test_truncated_constant_data() -> None:
    shape = numpy_helper.from_array(np.asarray([3, 4], dtype=np.int64), "shape")
    shape.raw_data = shape.raw_data[:5]
    with pytest.raises(ModelError, match="'shape'"):
        from_onnx(reshape_model(shape))
