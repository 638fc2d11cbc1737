"""Programs of torch.export, read without torch; tests/torch_programs.py wrote the files."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import go_opt
from go_opt.errors import ModelError
from go_opt.frontends.torch.aten import Operand, operator_cost
from go_opt.frontends.torch.program import Sizes
from go_opt.model.graph import INPUT, MATRIX, WEIGHT, Graph
from tests.shaped import Window, shapes_of, windows_of
from tests.torch_programs import FOLDER, exported, models

ONNX_DIMS = {"cnn": None, "decoder": {"s27": 8}, "mlp": {"s31": 3}}


def load(name: str, **options: Any) -> Graph:
    return go_opt.load(FOLDER / f"{name}.pt2", **options)


def matrix_flops(graph: Graph) -> float:
    return float(graph.op_flops[graph.op_class == MATRIX].sum())


def sources(graph: Graph, kind: int) -> dict[str, int]:
    """Tensor -> elements of the weights or of the inputs."""
    rows = zip(graph.tensor_names, graph.tensor_elements.tolist(), graph.tensor_kind, strict=True)
    return {name: elements for name, elements, of in rows if of == kind}


def reads(graph: Graph, op: str) -> set[str]:
    found = graph.reader_tensor[graph.reader_op == graph.op_index[op]]
    return {graph.tensor_names[tensor] for tensor in found}


def op_types(graph: Graph) -> list[tuple[str, str]]:
    return list(zip(graph.op_names, graph.op_types, strict=True))


def flops(graph: Graph, op: str) -> float:
    return float(graph.op_flops[graph.op_index[op]])


def test_a_network_of_convolutions() -> None:
    """On [2, 3, 16, 16]: a padded 3x3 window, a pooling by 2, a 3x3 window of 4 groups, a dense layer."""
    graph = load("cnn")
    assert graph.op_names == (
        "0/conv2d", "1/relu", "2/max_pool2d", "3/conv2d", "4/silu", "5/adaptive_avg_pool2d", "7/linear",
        "8/softmax",
    )  # fmt: skip
    assert flops(graph, "0/conv2d") == 2 * (2 * 8 * 16 * 16) * (3 * 9) + 2 * 8 * 16 * 16
    assert flops(graph, "2/max_pool2d") == 4 * (2 * 8 * 8 * 8)
    assert flops(graph, "3/conv2d") == 2 * (2 * 16 * 6 * 6) * (2 * 9)
    assert flops(graph, "5/adaptive_avg_pool2d") == 2 * 16 * 6 * 6
    assert flops(graph, "7/linear") == 2 * (2 * 10) * 16 + 2 * 10
    assert sources(graph, WEIGHT) == {
        "0.weight": 8 * 27, "0.bias": 8, "3.weight": 16 * 18, "7.weight": 160, "7.bias": 10,
    }  # fmt: skip
    assert sources(graph, INPUT) == {"input": 2 * 3 * 16 * 16}
    assert [found for _, found in windows(graph)] == [
        {Window(3, 1, 1)}, {Window(2, 2, 0)}, {Window(3, 1, 0)},
    ]  # fmt: skip
    assert shapes_of(graph)["3/conv2d"] == (2, 16, 6, 6)


def test_a_decoder() -> None:
    """Two sequences of 8 steps, width 16, 2 heads."""
    graph = load("decoder")
    block = [name.removeprefix("layers.3") for name in graph.op_names if name.startswith("layers.3")]
    assert block == [
        ".norm/layer_norm", ".qkv/linear", "/permute", "/unbind", "/scaled_dot_product_attention",
        "/transpose", "/add", ".up/linear", "/gelu", ".down/linear", "/add_1",
    ]  # fmt: skip
    assert flops(graph, "layers.3.qkv/linear") == 2 * 16 * 16 * 48 + 16 * 48
    scores = 2 * 8 * 8
    assert flops(graph, "layers.3/scaled_dot_product_attention") == 4 * scores * 16 + 6 * scores * 2
    assert reads(graph, "layers.3/add") == {"layers.2/add_1", "layers.3/transpose"}
    assert "layers.3.qkv.bias" in reads(graph, "layers.3.qkv/linear")
    block_weights = 2 * 16 + (16 + 1) * 48 + (16 + 1) * 64 + (64 + 1) * 16
    assert sum(sources(graph, WEIGHT).values()) == 50 * 16 + 6 * block_weights + (16 + 1) * 50


def windows(graph: Graph) -> list[tuple[str, set[Window]]]:
    """Of convolutions and pooling, by type."""
    found = windows_of(graph)
    return [
        (op_type, found[op])
        for op, op_type in op_types(graph)
        if op_type in ("AveragePool", "Conv", "MaxPool") and op in found
    ]


@pytest.mark.parametrize("name", ["cnn", "decoder", "mlp"])
def test_the_same_model_as_onnx(name: str) -> None:
    graph, other = load(name), go_opt.load(FOLDER / f"{name}.onnx", dims=ONNX_DIMS[name])
    weights = sources(other, WEIGHT)
    # ONNX has the scale of attention as a weight, one in each block.
    assert sum(sources(graph, WEIGHT).values()) == sum(size for size in weights.values() if size > 1)
    assert graph.op_flops.sum() == pytest.approx(other.op_flops.sum(), rel=0.01)
    if name != "decoder":  # where attention is one op here, and softmax a part of it
        assert matrix_flops(graph) == matrix_flops(other)
        assert windows(graph) == windows(other)


def test_the_same_model_in_jax() -> None:
    def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        x = jax.nn.gelu(x @ params["up"] + params["a"], approximate=False)
        return x @ params["down"] + params["b"]

    shapes = {"up": (8, 16), "a": (16,), "down": (16, 4), "b": (4,)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    other = go_opt.from_jax(mlp, params, jax.ShapeDtypeStruct((3, 8), jnp.float32))
    graph = load("mlp")
    assert matrix_flops(graph) == matrix_flops(other) + 3 * 16 + 3 * 4  # a bias is an op there
    assert sorted(sources(graph, WEIGHT).values()) == sorted(sources(other, WEIGHT).values())


def test_what_exports_hold_beside_layers() -> None:
    graph = load("odd")
    assert reads(graph, "copy") == {"mul", "select_1"}  # y[:, 0] = x[:, 1]
    assert reads(graph, "mul") == {"relu/relu"}
    assert reads(graph, "add_1") == {"copy"}  # after the write, without gradients
    assert reads(graph, "matmul_1") == {"matmul", "relu/relu"}  # in another type
    assert [name for name in sources(graph, WEIGHT) if not name.startswith("lstm")] == ["head.weight"]
    assert reads(graph, "head/linear") == {"head.weight", "lstm/lstm"}
    rows, matrices = 2 * 8, 2 * (32 * 16 + 32 * 8)
    assert flops(graph, "lstm/lstm") == 2 * rows * matrices + 4 * rows * 2 * 32


def test_dimensions() -> None:
    short, long = load("decoder"), load("decoder", dims={"ids[1]": 32})
    assert long.bindings.dims == {"ids[1]": 32}
    assert flops(long, "head/linear") == 4 * flops(short, "head/linear")
    scores = 2 * 32 * 32
    assert flops(long, "layers.0/scaled_dot_product_attention") == 4 * scores * 16 + 6 * scores * 2
    with pytest.raises(ModelError, match=r"no dimension 'seq'; it has ids\[1\]"):
        load("decoder", dims={"seq": 3})
    with pytest.raises(ModelError, match="is 65, where the model was exported for 0 to 64"):
        load("decoder", dims={"ids[1]": 65})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("Symbol('s0', positive=True, integer=True)", 6),
        ("Add(Integer(1), Mul(Integer(2), Symbol('s0', integer=True)))", 13),
        ("FloorDiv(Add(Symbol('s0', integer=True), Integer(-1)), Integer(2))", 2),
        ("Max(Integer(1), PythonMod(Symbol('s0', integer=True), Integer(4)))", 2),
        ("Pow(Symbol('s0', integer=True), Integer(2))", 36),
    ],
)
def test_sizes_are_computed(text: str, size: int) -> None:
    assert sizes({"s0": 6}).size({"as_expr": {"expr_str": text, "hint": {"as_int": 0}}}, "x") == size


def sizes(dims: dict[str, int]) -> Sizes:
    module = {"graph": {"tensor_values": {}, "sym_int_values": {}}, "signature": {"input_specs": []}}
    return Sizes({"graph_module": module, "range_constraints": {name: {} for name in dims}}, dims)


def test_sizes_that_are_not_known() -> None:
    with pytest.raises(ModelError, match="depends on values: bind dimension 'u0'"):
        sizes({}).size({"as_expr": {"expr_str": "Symbol('u0', integer=True)"}}, "tensor 'x'")
    with pytest.raises(
        ModelError, match=r"tensor 'x' has the size __import__\('os'\), which from_torch cannot"
    ):
        sizes({}).size({"as_expr": {"expr_str": "__import__('os')"}}, "tensor 'x'")


@pytest.mark.parametrize(
    ("target", "attributes", "operands", "output", "op_type", "flops"),
    [
        ("addmm", {}, {"self": (7,), "mat1": (3, 5), "mat2": (5, 7)}, (3, 7), "Gemm", 2 * 3 * 5 * 7 + 21),
        ("bmm", {}, {"self": (2, 3, 5), "mat2": (2, 5, 7)}, (2, 3, 7), "MatMul", 2 * 2 * 3 * 5 * 7),
        ("conv1d", {}, {"input": (1, 4, 9), "weight": (8, 4, 3)}, (1, 8, 7), "Conv", 2 * 56 * 12),
        (
            "convolution", {"transposed": True}, {"input": (1, 4, 5, 5), "weight": (4, 2, 2, 2)},
            (1, 2, 10, 10), "ConvTranspose", 2 * 100 * 8,
        ),
        ("einsum", {"equation": "ij,jk->ik"}, {"tensors": (3, 5), "tensors ": (5, 7)}, (3, 7), "Einsum", 210),
        ("max_pool2d", {"kernel_size": [3]}, {"self": (1, 2, 8, 8)}, (1, 2, 6, 6), "MaxPool", 9 * 72),
        ("adaptive_avg_pool2d", {}, {"self": (1, 2, 8, 8)}, (1, 2, 2, 2), "AveragePool", 16 * 8),
        ("upsample_bilinear2d", {}, {"input": (1, 2, 4, 4)}, (1, 2, 8, 8), "Resize", 7 * 128),
        ("upsample_nearest2d", {}, {"input": (1, 2, 4, 4)}, (1, 2, 8, 8), "Resize", 0),
        ("var", {}, {"self": (4, 8)}, (4,), "var", 4 * 32),
        ("max", {}, {"self": (4, 8), "other": (4, 8)}, (4, 8), "Max", 32),
        ("max", {}, {"self": (4, 8)}, (), "ReduceMax", 32),
        ("roll", {}, {"self": (4, 8)}, (4, 8), "roll", 0),
        ("mylib.scan", {}, {"x": (4, 8)}, (4, 8), "mylib.scan", 32),
    ],
)  # fmt: skip
def test_operators(
    target: str,
    attributes: dict[str, Any],
    operands: dict[str, tuple[int, ...]],
    output: tuple[int, ...],
    op_type: str,
    flops: float,
) -> None:
    rows = [Operand(name, shape) for name, shape in operands.items()]
    found, cost = operator_cost(target, attributes, rows, [output])
    assert (found, cost.flops) == (op_type, flops)


def test_a_lookup_reads_only_what_it_gives() -> None:
    rows = [Operand("weight", (50, 16)), Operand("indices", (2, 8))]
    assert operator_cost("embedding", {}, rows, [(2, 8, 16)])[1].touched == (256, None)


def edited(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """The archive of the MLP with another program."""
    with zipfile.ZipFile(FOLDER / "mlp.pt2") as source:
        name = source.namelist()[0]
        program = json.loads(source.read(name))
    edit(program)
    with zipfile.ZipFile(folder / "edited.pt2", "w") as archive:
        archive.writestr(name, json.dumps(program))
    return folder / "edited.pt2"


def nodes(program: dict[str, Any]) -> Any:
    return program["graph_module"]["graph"]["nodes"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda p: nodes(p)[1].update(target="torch.ops.higher_order.cond"),
            "op '1/cond': from_torch cannot",
        ),
        (
            lambda p: nodes(p)[1].update(target="torch.ops.aten._transformer_encoder_layer_fwd.default"),
            "op '1/transformer_encoder_layer_fwd': from_torch cannot cost",
        ),
        (lambda p: p["schema_version"].update(major=5), "has schema 5, where 8 is known"),
        (
            lambda p: p["graph_module"]["graph"]["tensor_values"]["gelu"].update(dtype=33),
            "tensor 'gelu' has torch's scalar type 33",
        ),
        (lambda p: nodes(p)[1].pop("inputs"), "'edited' is malformed"),
        (lambda p: p.pop("graph_module"), "'edited' is malformed"),
    ],
)
def test_refused(edit: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        go_opt.load(edited(tmp_path, edit))


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    whole = (FOLDER / "mlp.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="truncated or no archive"):
        go_opt.load(tmp_path / "cut.pt2")
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        go_opt.load(tmp_path / "gone.pt2")
    with zipfile.ZipFile(tmp_path / "empty.pt2", "w") as archive:
        archive.writestr("data.pkl", b"")
    with pytest.raises(ModelError, match="has 0 programs"):
        go_opt.load(tmp_path / "empty.pt2")


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # of its own LSTM
@pytest.mark.parametrize("name", ["cnn", "decoder", "mlp", "odd"])
def test_from_memory(name: str) -> None:
    """With torch installed: the files are what their models export."""
    pytest.importorskip("torch")
    assert name in models()
    graph = go_opt.from_torch(exported(name))
    assert graph.fingerprint == load(name).fingerprint
    assert np.array_equal(graph.op_flops, load(name).op_flops)
