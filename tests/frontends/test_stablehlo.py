"""StableHLO text against the same function traced by JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import go_opt
from go_opt.errors import ModelError
from go_opt.model.graph import INPUT, MATRIX, WEIGHT, Graph
from tests.shaped import SAME_ROW, Window, shapes_of, windows_of


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def text(function: Callable[..., Any], *args: Any, names: bool = True) -> str:
    lowered: str = jax.jit(function).lower(*args).as_text(debug_info=names)
    return lowered


def matrix_flops(graph: Graph) -> float:
    return float(graph.op_flops[graph.op_class == MATRIX].sum())


def sizes(graph: Graph, kind: int) -> list[int]:
    return sorted(graph.tensor_elements[graph.tensor_kind == kind].tolist())


def dense(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    with jax.named_scope("mlp"):
        return jax.nn.relu(x @ params["w"] + params["b"])


DENSE = {"w": shape(8, 16), "b": shape(16)}, shape(2, 8)


def mixed(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def step(carry: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(carry @ weight), carry.sum()

    x, _ = jax.lax.scan(step, x @ params["w"], params["layers"])
    x = jax.lax.fori_loop(0, 2, lambda i, carry: carry @ params["more"][i], x)
    image = jax.lax.conv_general_dilated(params["image"] * x[0, 0], params["kernel"], (1, 1), "SAME")
    image = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    either = jax.lax.cond(x[0, 0] > 0, lambda: x @ x.T, lambda: jnp.ones((2, 2)))
    return jax.nn.softmax(x), image, jnp.argmax(x, -1), either, jax.lax.top_k(x, 2)


MIXED = (
    {
        "w": shape(8, 16),
        "layers": shape(3, 16, 16),
        "more": shape(2, 16, 16),
        "image": shape(1, 3, 8, 8),
        "kernel": shape(4, 3, 3, 3),
    },
    shape(2, 8),
)


def attention(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    x = params["embedding"][tokens]
    query, key, value = jnp.split(jnp.einsum("btd,de->bte", x, params["qkv"]), 3, axis=-1)
    scores = jnp.where(jnp.tri(8, dtype=bool), jnp.einsum("bqd,bkd->bqk", query, key), -jnp.inf)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), value).astype(jnp.float32)


ATTENTION = (
    {"embedding": shape(50, 16, dtype=jnp.bfloat16), "qkv": shape(16, 48, dtype=jnp.bfloat16)},
    shape(2, 8, dtype=jnp.int32),
)


def convolutions(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Along the width: rows 2 i - 1 to 2 i + 1 of a convolution, then rows 2 i and 2 i + 1 of a pooling."""
    layout = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, params["w"], (1, 2), ((2, 2), (1, 1)), None, (2, 1), layout)
    x = jax.lax.reduce_window(x + params["b"], -jnp.inf, jax.lax.max, (1, 3, 2, 1), (1, 1, 2, 1), "SAME")
    return x.reshape(1, -1) @ params["d"]


CONVOLUTIONS = (
    {"w": shape(3, 3, 3, 8), "b": shape(8), "d": shape(20 * 6 * 8, 10)},
    shape(1, 20, 24, 3),
)


def test_a_dense_layer() -> None:
    graph = go_opt.from_stablehlo(text(dense, *DENSE))
    assert graph.name == "dense"
    assert graph.op_names == ("mlp/dot_general", "mlp/add", "mlp/max")
    assert graph.op_types == ("MatMul", "Add", "Max")
    assert graph.op_flops.tolist() == [2 * 2 * 8 * 16, 32, 32]
    assert set(graph.tensor_names[:3]) == {"params['w']", "params['b']", "x"}
    assert sizes(graph, WEIGHT) == [16, 128]
    assert sizes(graph, INPUT) == [16]


@pytest.mark.parametrize(
    ("function", "args"),
    [(dense, DENSE), (mixed, MIXED), (attention, ATTENTION), (convolutions, CONVOLUTIONS)],
)
def test_the_same_as_from_jax(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    graph = go_opt.from_stablehlo(text(function, *args))
    other = go_opt.from_jax(function, *args)
    assert matrix_flops(graph) == matrix_flops(other) > 0
    assert sizes(graph, WEIGHT) == sizes(other, WEIGHT)
    assert sizes(graph, INPUT) == sizes(other, INPUT)
    assert graph.op_flops.sum() == pytest.approx(other.op_flops.sum(), rel=0.02)
    assert np.array_equal(graph.op_dtype[graph.op_class == MATRIX], other.op_dtype[other.op_class == MATRIX])
    halos, others = (
        [windows for windows in windows_of(one).values() if windows != {SAME_ROW}] for one in (graph, other)
    )
    assert halos == others


def test_shapes_and_windows() -> None:
    """A tensor that is read in another shape than it has, here the pooled image, has none that is known."""
    graph = go_opt.from_jax(convolutions, *CONVOLUTIONS)
    windows = windows_of(graph)
    assert windows["conv_general_dilated"] == {Window(3, 2, 1)}
    assert "reduce_window_max" not in windows, "its rows are no axis for its reader"
    known = shapes_of(graph)
    shapes = {name: known.get(name) for name in (*graph.op_names, "x", "params['b']")}
    assert shapes == {
        "conv_general_dilated": (1, 20, 12, 8), "add": (1, 20, 12, 8), "reduce_window_max": None,
        "dot_general": (1, 10), "x": (1, 20, 24, 3), "params['b']": (1, 1, 1, 8),
    }  # fmt: skip


def test_arguments_without_names() -> None:
    """JAX writes names with debug info only."""
    bare = text(dense, *DENSE, names=False)
    assert sizes(go_opt.from_stablehlo(bare), INPUT) == [16, 16, 128]
    graph = go_opt.from_stablehlo(bare, weight_argnums=(0, 1), name="mine")
    assert graph.name == "mine"
    assert sizes(graph, WEIGHT) == [16, 128]
    with pytest.raises(ModelError, match="main has the arguments 0 to 2"):
        go_opt.from_stablehlo(bare, weight_argnums=(3,))


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.mlir").write_text(text(dense, *DENSE))
    graph = go_opt.load(tmp_path / "mine.mlir")
    assert (graph.name, graph.num_ops) == ("mine", 3)
    with pytest.raises(ModelError, match="dimension 'batch' is not one of the model; it has none"):
        go_opt.load(tmp_path / "mine.mlir", dims={"batch": 3})
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        go_opt.load(tmp_path / "gone.mlir")


def test_the_same_number_everywhere_is_no_weight() -> None:
    module = """
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %zeros = stablehlo.constant dense<0.0> : tensor<4x8xf32>
      %table = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
      %pair = stablehlo.concatenate %table, %table, %table, %table, dim = 0 : (tensor<2xf32>, tensor<2xf32>,
        tensor<2xf32>, tensor<2xf32>) -> tensor<8xf32>
      %row = stablehlo.broadcast_in_dim %pair, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
      %low = stablehlo.maximum %x, %zeros : tensor<4x8xf32>
      %sum = stablehlo.add %low, %row : tensor<4x8xf32>
      return %sum : tensor<4x8xf32>
    }"""
    graph = go_opt.from_stablehlo(module, name="f")
    assert graph.op_types == ("Max", "Add")
    assert sizes(graph, WEIGHT) == [8]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("module {", "the StableHLO text cannot be read"),
        ("module {}", "has no function main"),
        (
            "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }",
            r"the model has unbound dimensions .arg0.0..: use",
        ),
        (
            "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
            "%y = stablehlo.custom_call @mine(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
            "return %y : tensor<4xf32> }",
            "op 'mine': the custom call 'mine' has no cost",
        ),
    ],
)
def test_refused(module: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        go_opt.from_stablehlo(module)


def test_a_loop_that_is_too_long() -> None:
    with pytest.raises(ModelError, match="longer than max_scan_length=2"):
        go_opt.from_stablehlo(text(mixed, *MIXED), max_scan_length=2)
