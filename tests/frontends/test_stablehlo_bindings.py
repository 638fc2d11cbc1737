"""What a caller binds to load JAX functions and StableHLO: open dimensions, and loops without a count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import go_opt
from go_opt import from_jax, from_stablehlo
from go_opt.errors import ModelError
from go_opt.model.bindings import Bindings
from go_opt.model.graph import INPUT, WEIGHT


def shape(*sizes: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def exported(function: Any, *arguments: Any) -> str:
    text: str = export.export(jax.jit(function))(*arguments).mlir_module()
    return text


@jax.jit
def attention(params: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope("attention"):
        query, key = x @ params["query"], jax.nn.relu(x @ params["key"])
        return jax.nn.softmax(query @ key.swapaxes(-1, -2)) @ x


def mixed(params: Any, x: jax.Array, image: jax.Array) -> Any:
    with jax.named_scope("block"):
        x = attention(params, x)
    flat = jnp.concatenate([x, jnp.zeros((x.shape[0], 1, 8))], 1).reshape(-1, 8)
    image = jax.lax.conv_general_dilated(image, params["kernel"], (2, 2), "SAME")
    image = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    either = jax.lax.cond(x.sum() > 0, lambda: x * 2.0, lambda: jnp.tanh(x))
    either = jax.lax.fori_loop(0, 2, lambda _, carry: jnp.exp(carry), either)
    moved = jax.lax.dynamic_update_slice(flat, flat.sum(0, keepdims=True), (0, 0))
    positions = jnp.arange(x.shape[1], dtype=jnp.float32) + x.sum(2)
    return moved, image, either, positions, jnp.cumsum(flat, 1), jnp.sort(x.reshape(x.shape[0], -1), 1)


def mixed_arguments(batch: Any, rows: Any) -> Any:
    params = {"query": shape(8, 8), "key": shape(8, 8), "kernel": shape(4, 3, 3, 3)}
    return params, shape(batch, rows, 8), shape(batch, 3, 8, 8)


def work(graph: go_opt.Graph) -> list[tuple[str, float, int]]:
    # `fori_loop` is a scan for JAX and a while loop in text.
    names = [name.replace("scan/", "while/") for name in graph.op_names]
    return sorted(
        (graph.op_types[i], float(graph.op_flops[i]), name.count("/")) for i, name in enumerate(names)
    )


@pytest.mark.parametrize(("batch", "rows"), [(2, 5), (1, 1), (3, 16)])
def test_text_with_open_dimensions_costs_what_the_function_does(batch: int, rows: int) -> None:
    text = exported(mixed, *mixed_arguments(*export.symbolic_shape("b, s")))
    dims = {"x[0]": batch, "x[1]": rows, "image[0]": batch}
    graph = from_stablehlo(text, dims=dims)
    traced = from_jax(mixed, *mixed_arguments(batch, rows))
    assert work(graph) == work(traced)
    assert "block/attention/dot_general" in graph.op_names
    for kind in INPUT, WEIGHT:
        of_text, of_jax = (sorted(one.tensor_elements[one.tensor_kind == kind]) for one in (graph, traced))
        assert of_text == of_jax
    assert graph.bindings == Bindings(dims=dims)


OPEN = """func.func @main(%x: tensor<?x4xf32>, %y: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = stablehlo.add %x, %y : tensor<?x4xf32>
  return %0 : tensor<?x4xf32> }"""
SIZED = """func.func @main(%x: tensor<?x4xf32>, %n: tensor<2xi32>) -> tensor<?x?xf32> {
  %0 = stablehlo.dynamic_reshape %x, %n : (tensor<?x4xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32> }"""


@pytest.mark.parametrize(
    ("text", "dims", "words"),
    [
        (OPEN, {}, r"^the model has unbound dimensions 'arg0\[0\]', 'arg1\[0\]': use `--dim 'arg0"),
        (OPEN, {"arg0[0]": 2}, r"unbound dimensions 'arg1\[0\]': use `--dim 'arg1\[0\]'=VALUE`"),
        (OPEN, {"arg0[1]": 4}, r"'arg0\[1\]' is not one of the model; it has 'arg0\[0\]', 'arg1\[0\]'"),
        (OPEN, {"arg0[0]": 0}, r"'arg0\[0\]' must be a positive integer, not 0"),
        (OPEN, {"arg0[0]": 2, "arg1[0]": 3}, "cannot be derived from its arguments: .*same shape"),
        (SIZED, {"arg0[0]": 2}, "cannot be derived from its arguments: .*dynamic shapes"),
        (OPEN.replace("?", "2"), {"b": 2}, "dimension 'b' is not one of the model; it has none"),
    ],
)  # fmt: skip
def test_dimensions_that_do_not_fit_are_refused(text: str, dims: dict[str, int], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        from_stablehlo(text, dims=dims)
    assert "\n" not in str(caught.value)


def test_sizes_by_constants_need_no_argument() -> None:
    text = """func.func @main(%x: tensor<2x4xf32>) -> tensor<?xf32> {
      %n = stablehlo.constant dense<8> : tensor<1xi32>
      %0 = stablehlo.dynamic_reshape %x, %n : (tensor<2x4xf32>, tensor<1xi32>) -> tensor<?xf32>
      %1 = stablehlo.exponential %0 : tensor<?xf32>
      return %1 : tensor<?xf32> }"""
    assert from_stablehlo(text).op_flops.tolist() == [8]


def halved(x: jax.Array) -> jax.Array:
    """Twice until it is small, in each step of a scan and after it."""

    def until_small(value: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: jnp.sum(v) > 1, lambda v: v * 0.5, value)

    y, _ = jax.lax.scan(lambda carry, _: (jnp.tanh(until_small(carry)), None), x, length=3)
    return until_small(y)


def test_loops_run_as_often_as_the_caller_says() -> None:
    x, text = shape(4), jax.jit(halved).lower(shape(4)).as_text(debug_info=True)
    with pytest.raises(ModelError, match=r"op 'scan/while' .*use `--trips scan/while=TRIPS`"):
        from_jax(halved, x)
    with pytest.raises(ModelError, match=r"op 'while' .*use `--trips while=TRIPS`"):
        from_jax(halved, x, trips={"scan/while": 2})
    graph = from_jax(halved, x, trips={"scan/while": 2, "while": 5})
    assert graph.op_types.count("Mul") == 3 * 2 + 5
    assert graph.bindings == Bindings(trips={"scan/while": 2, "while": 5})
    # In text the scan is a loop, too.
    of_text = from_stablehlo(text, trips={"while/while": 2, "while_1": 5})
    assert of_text.op_types == graph.op_types
    assert from_jax(halved, x, trips={"scan/while": 0, "while": 0}).op_types == ("Tanh",) * 3


@pytest.mark.parametrize(
    ("trips", "words"),
    [
        ({"l": 1}, "no loop 'l' whose trips can be bound"),
        ({"scan": 1}, "no loop 'scan' whose trips can be bound"),  # its count is known
        ({"while": -1}, "not -1"),
        ({"while": 513}, "'while': a loop of at least 513 steps is longer than max_scan_length=512"),
    ],
)
def test_trips_that_no_loop_can_have(trips: dict[str, int], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        from_jax(halved, shape(4), trips={"scan/while": 1, "while": 1} | trips)


def test_a_file_is_loaded_again_with_what_its_graph_says(tmp_path: Path) -> None:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: jnp.sum(v) > 1, lambda v: jnp.sin(v), x @ x)

    path = tmp_path / "m.mlir"
    path.write_text(exported(function, shape(*export.symbolic_shape("b, b"))))
    graph = go_opt.load(path, dims={"x[0]": 3, "x[1]": 3}, trips={"while": 2})
    again = go_opt.load(path, **vars(graph.bindings))
    assert again.op_flops.tolist() == graph.op_flops.tolist() == [54, 9, 9]
    with pytest.raises(ModelError, match="no input to bind 'x'"):
        go_opt.load(path, dims={"x[0]": 3, "x[1]": 3}, trips={"while": 2}, values={"x": 1})
