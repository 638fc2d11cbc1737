"""Sharding rules of ops from JAX, StableHLO and torch.export: functions whose rules are written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from go_opt.frontends.jax_frontend import from_jax, from_stablehlo
from go_opt.frontends.recording.recorder import Value
from go_opt.frontends.torch_frontend import from_torch
from go_opt.model.graph import WEIGHT, Graph
from go_opt.model.rule import Affine, Dimension, Product, Rule, product_of

TORCH = Path(__file__).parents[1] / "data" / "torch"


def _weight(*sizes: int) -> Any:
    return jnp.asarray(np.arange(math.prod(sizes), dtype=np.float32).reshape(sizes))


def _shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def _graphs(function: Callable[..., Any], *shapes: jax.ShapeDtypeStruct) -> tuple[Graph, Graph]:
    return from_jax(function, *shapes), from_stablehlo(jax.jit(function).lower(*shapes).as_text())


def _written(rule: Rule) -> str:
    """A rule as text: ``n i k:r, k j:r -> n i j`` of sizes and the kinds of factors that are not parallel."""

    def of_factor(i: int) -> str:
        kind = rule.factors[i].kind
        return str(rule.factors[i].size) + ("" if kind == "parallel" else kind[0])

    def of_piece(piece: int | Affine) -> str:
        if not isinstance(piece, Affine):
            return f"{of_factor(piece)}@{piece}"
        factor, window, *numbers = piece
        inside = "1" if window < 0 else f"{of_factor(window)}@{window}"
        return f"[{of_factor(factor)}@{factor} {inside} {' '.join(map(str, numbers))}]"

    def of_dimension(dimension: Dimension) -> str:
        return "*".join(map(of_piece, dimension)) or "1"

    def of_all(accesses: Any) -> str:
        return ", ".join(" ".join(map(of_dimension, access)) for access in accesses)

    return f"{of_all(rule.operands)} -> {of_all(rule.results)}"


def _rules(graph: Graph, op_type: str) -> list[str]:
    found = [graph.rule_of(op) for op, name in enumerate(graph.op_types) if name == op_type]
    return [_written(row.rule) if row is not None else "" for row in found]


_ROWS = _shape(6, 8)
_IMAGE = _shape(2, 9, 8, 4)


def _convolved(stride: int, groups: int = 1, size: int = 3, spread: int = 1) -> Callable[[Any], Any]:
    def function(image: Any) -> Any:
        weight = _weight(size, size, 4 // groups, 10)
        return lax.conv_general_dilated(
            image, weight, (stride, stride), ((1, 1), (0, 2)), (spread, spread),
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
        )  # fmt: skip

    return function


def _attended(x: Any) -> Any:
    scores = jnp.einsum("bthd,bshd->bhts", x, x + 1)
    return jnp.einsum("bhts,bshd->bthd", scores, x)


def _scanned(rows: Any) -> Any:
    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        return carry + row, carry

    return lax.scan(step, jnp.zeros(8), jnp.exp(rows))[1]


_CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...], str, list[str]]] = [
    ("dense", lambda x: x @ _weight(8, 5), (_ROWS,), "MatMul", ["6@0 8r@1, 8r@1 5@2 -> 6@0 5@2"]),
    # A transposed weight is seen in its own order.
    ("tied", lambda x: x @ _weight(5, 8).T, (_ROWS,), "MatMul", ["6@0 8r@1, 5@2 8r@1 -> 6@0 5@2"]),
    (
        "heads of a weight",
        lambda x: jnp.einsum("td,dhk->htk", x, _weight(8, 6).reshape(8, 2, 3)),
        (_ROWS,),
        "MatMul",
        ["8r@0 2@1 3@2, 6@3 8r@0 -> 2@1 3@2 6@3"],
    ),
    (
        "attention",
        _attended,
        (_shape(2, 5, 3, 4),),
        "MatMul",
        [
            "2@0 5@1 3@2 4r@3, 2@0 5@4 3@2 4r@3 -> 2@0 3@2 5@1 5@4",
            "2@0 5r@1 3@2 4@3, 2@0 3@2 5@4 5r@1 -> 2@0 3@2 4@3 5@4",
        ],
    ),
    (
        "heads that share keys",
        lambda q, k: jnp.einsum("bhtd,bhsd->bhts", q, jnp.repeat(k, 3, axis=1)),
        (_shape(2, 6, 5, 4), _shape(2, 2, 5, 4)),
        "MatMul",
        ["2@0 2@1*3@5 5@2 4r@3, 2@0 2@1 5@4 4r@3 -> 2@0 2@1*3@5 5@2 5@4"],
    ),
    (
        "scales of groups",
        lambda x: x * jnp.broadcast_to(_weight(2)[:, None], (2, 4)).reshape(8),
        (_ROWS,),
        "Mul",
        ["6@0 2@1*4@2, 2@1 -> 6@0 2@1*4@2"],
    ),
    (
        "convolution",
        _convolved(2),
        (_IMAGE,),
        "Conv",
        ["2@0 [5w@3 3r@4 2 1 1 9] [4w@5 3r@6 2 1 0 8] 4r@1, 3r@4 3r@6 4r@1 10@2 -> 2@0 5w@3 4w@5 10@2"],
    ),
    (
        "convolution of an image that is spread by copies",
        lambda x: _convolved(1, size=1)(jnp.repeat(x, 2, axis=1)),
        (_IMAGE,),
        "Conv",
        ["2@0 [20w@3 1 1 1 1 18] [10w@4 1 1 1 0 8] 4r@1, 1 1 4r@1 10@2 -> 2@0 20w@3 10w@4 10@2"],
    ),
    (
        "grouped convolution",
        _convolved(1, groups=2, size=1),
        (_IMAGE,),
        "Conv",
        ["2@0 [11w@4 1 1 1 1 9] [10w@5 1 1 1 0 8] 2@1*2r@2, 1 1 2r@2 2@1*5@3 -> 2@0 11w@4 10w@5 2@1*5@3"],
    ),
    (
        "transposed convolution",
        _convolved(1, size=2, spread=2),
        (_IMAGE,),
        "Conv",
        ["2@0 9w@3 8w@6 4r@1, 2w@4 2w@7 4r@1 10@2 -> 2@0 18w@5 16w@8 10@2"],
    ),
    (
        "pooling",
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "VALID"),
        (_IMAGE,),
        "MaxPool",
        ["2@0 [4w@1 3r@2 2 1 0 9] [4w@3 2r@4 2 1 0 8] 4@5 -> 2@0 4w@1 4w@3 4@5"],
    ),
    ("sum", lambda x: jnp.sum(x, 1), (_ROWS,), "ReduceSum", ["6@0 8r@1 -> 6@0"]),
    ("product", lambda x: jnp.prod(x, 0), (_ROWS,), "ReduceProd", ["6w@0 8@1 -> 8@1"]),
    ("sort", lambda x: jnp.sort(x, 0), (_ROWS,), "Sort", ["6w@0 8@1 -> 6w@0 8@1"]),
    ("best", lambda x: lax.top_k(x, 3)[0], (_ROWS,), "TopK", ["6@0 8w@3 -> 6@0 3w@1, 6@0 3w@2"]),
    (
        "padding",
        lambda x: jnp.pad(x, ((0, 0), (2, 1))),
        (_ROWS,),
        "Pad",
        ["6@0 [11w@1 1 1 1 2 8] -> 6@0 11w@1"],
    ),
    (
        "padding between elements",
        lambda x: lax.pad(x, 0.0, ((0, 0, 1), (1, -8, 1))),
        (_ROWS,),
        "Pad",
        ["6w@0 8w@2 -> 11w@1 8w@3"],
    ),
    ("slice", lambda x: x[1:6:2], (_ROWS,), "Slice", ["[3w@0 1 2 1 -1 6] 8@1 -> 3w@0 8@1"]),
    ("reversed", lambda x: x[::-1], (_ROWS,), "rev", ["6w@0 8@1 -> 6w@0 8@1"]),
    ("joined", lambda x: jnp.concatenate([x, x[:2]]), (_ROWS,), "Concat", ["6w@1 8@0, 2w@2 8@0 -> 8w@3 8@0"]),
    (
        "chosen slice",
        lambda x, i: lax.dynamic_slice(x, (i[0], i[0]), (2, 8)),
        (_ROWS, _shape(1, dtype=jnp.int32)),
        "Slice",
        ["6w@0 8@2, ,  -> 2w@1 8@2"],
    ),
    (
        "replaced slice",
        lambda x, i: lax.dynamic_update_slice(x, jnp.exp(x[:2]), (i[0], i[0])),
        (_ROWS, _shape(1, dtype=jnp.int32)),
        "ScatterND",
        ["6w@1 8@0, 2w@2 8@0, ,  -> 6w@1 8@0"],
    ),
    (
        "rows of a table",
        lambda i: _weight(50, 8).at[i].get(mode="clip"),
        (_shape(2, 3, dtype=jnp.int32),),
        "Gather",
        ["50r@2 8@3, 2@0 3@1 1 -> 2@0 3@1 8@3"],
    ),
    (
        "columns of a table",
        lambda x, i: x.at[:, i].get(mode="clip"),
        (_ROWS, _shape(3, dtype=jnp.int32)),
        "Gather",
        ["6@1 8r@2, 3@0 1 -> 6@1 3@0"],
    ),
    (
        "sums by segment",
        lambda x, i: jax.ops.segment_sum(x, i, 5),
        (_ROWS, _shape(6, dtype=jnp.int32)),
        "ScatterND",
        ["6r@0 1, 6r@0 8@2 -> 5w@1 8@2"],
    ),
    (
        "replaced rows",
        lambda x, i: x.at[i].set(jnp.exp(x[:3])),
        (_ROWS, _shape(3, dtype=jnp.int32)),
        "ScatterND",
        ["6w@1 8@2, 3w@0 1, 3w@0 8@2 -> 6w@1 8@2"],
    ),
]


@pytest.mark.parametrize("case", _CASES, ids=[case[0] for case in _CASES])
def test_rules_by_hand(case: tuple[str, Callable[..., Any], tuple[Any, ...], str, list[str]]) -> None:
    _, function, shapes, op_type, rules = case
    for graph in _graphs(function, *shapes):
        assert _rules(graph, op_type) == rules


def test_jax_and_stablehlo_have_the_same_rules() -> None:
    for name, function, shapes, _, _ in _CASES:
        traced, lowered = _graphs(function, *shapes)
        assert [row and row.rule for row in traced.op_rules] == [
            row and row.rule for row in lowered.op_rules
        ], name


def test_rules_of_the_steps_of_a_scan() -> None:
    graph = from_jax(_scanned, _ROWS)
    assert _rules(graph, "Slice") == ["6w@0 8@1 -> 1 8@1"] * 5
    assert _rules(graph, "Concat") == [f"{', '.join(['8@0'] * 5)} -> 6w@1 8@0"]


@pytest.mark.parametrize(
    ("name", "op_type", "rules"),
    [
        ("mlp", "Gemm", ["3@0 8r@1, 16@2 8r@1, 16@2 -> 3@0 16@2", "3@0 16r@1, 4@2 16r@1, 4@2 -> 3@0 4@2"]),
        (
            "cnn",
            "Conv",
            [
                "2@0 3r@1 [16w@3 3r@4 1 1 1 16] [16w@5 3r@6 1 1 1 16], 8@2 3r@1 3r@4 3r@6, 8@2"
                " -> 2@0 8@2 16w@3 16w@5",
                "2@0 4@1*2r@2 [6w@4 3r@5 1 1 0 8] [6w@6 3r@7 1 1 0 8], 4@1*4@3 2r@2 3r@5 3r@7"
                " -> 2@0 4@1*4@3 6w@4 6w@6",
            ],
        ),
        ("cnn", "MaxPool", ["2@0 8@1 [8w@2 2r@3 2 1 0 16] [8w@4 2r@5 2 1 0 16] -> 2@0 8@1 8w@2 8w@4"]),
        ("cnn", "GlobalAveragePool", ["2@0 16@1 6w@2 6w@3 -> 2@0 16@1 1 1"]),
        ("cnn", "Softmax", ["2@0 10w@1 -> 2@0 10w@1"]),
        ("odd", "Gather", ["50r@3 16@0, 2@1 8@2 -> 2@1 8@2 16@0"]),
        ("odd", "Slice", ["2@0 8w@1 16@2 -> 2@0 1 16@2"] * 2),
        (
            "odd",
            "MatMul",
            ["2@0 8@1 16r@2, 2@0 16r@2 8@3 -> 2@0 8@1 8@3", "2@0 8@1 8r@2, 2@0 8r@2 16@3 -> 2@0 8@1 16@3"],
        ),
        ("odd", "ReduceMax", ["2@0 8@1 16r@2 -> 2@0 8@1"]),
        (
            "odd",
            "Add",
            [
                "2@0 16@1, 2@0 16@1 -> 2@0 16@1",
                "2@0 8@1 16@2 -> 2@0 8@1 16@2",
                "2@0 8@1 16@2, 2@0 8@1 1 -> 2@0 8@1 16@2",
            ],
        ),
        ("odd", "Gemm", ["2@0 8@1 16r@2, 50@3 16r@2 -> 2@0 8@1 50@3"]),
        (
            "decoder",
            "Attention",
            ["2@0 2@1 8@2 8w@5, 2@0 2@1 8w@3 8w@6, 2@0 2@1 8w@4 8w@7 -> 2@0 2@1 8@2 8w@8"] * 6,
        ),
        ("decoder", "LayerNormalization", ["2@0 8@1 16w@2, 16w@2, 16w@2 -> 2@0 8@1 16w@2"] * 6),
        ("decoder", "Split", ["3w@4 2@0 2@1 8@2 8@3 -> 2@0 2@1 8@2 8@3" + ", 2@0 2@1 8@2 8@3" * 2] * 6),
    ],
)
def test_rules_of_torch(name: str, op_type: str, rules: list[str]) -> None:
    assert _rules(from_torch(TORCH / f"{name}.pt2"), op_type) == rules


def test_a_product_reads_a_tied_weight_as_the_table_does() -> None:
    """Products with a table that is transposed, and rows of it: the 50 words are its first axis."""
    table = _weight(50, 8)
    graph = from_jax(lambda i: table.at[i].get(mode="clip") @ table.T, _shape(3, dtype=jnp.int32))
    (weight,) = (int(k) for k in np.flatnonzero(graph.tensor_kind == WEIGHT))
    for row in graph.op_rules:
        if row is not None and weight in row.operands:
            words, features = row.rule.operands[row.operands.index(weight)]
            assert [row.rule.size(piece) for piece in (*words, *features)] == [50, 8]
    (product,) = (row for row, name in zip(graph.op_rules, graph.op_types, strict=True) if name == "MatMul")
    assert product is not None
    is_weight = tuple(bool(graph.tensor_kind[k] == WEIGHT) for k in product.operands)
    assert product_of(product.rule, is_weight) == Product(1, 3, 8, 50)


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_how_far_neighbours_in_a_view_are_apart(sizes: list[int], seed: int) -> None:
    """As in an array of the numbers of its elements, through views one after another."""
    rng = np.random.default_rng(seed)
    array = whole = np.arange(np.prod(sizes)).reshape(sizes)
    value = Value(tuple(sizes), "float32", "activation", "x")
    for _ in range(4):
        places: list[int] | None = None
        kind = rng.integers(3)
        if kind == 0:
            array = array[None, ...] if rng.random() < 0.5 else np.broadcast_to(array, (2, *array.shape))
            places = list(range(1, array.ndim))
        elif kind == 1:
            order = rng.permutation(array.ndim)
            array, places = array.transpose(order), [int(axis) for axis in np.argsort(order)]
        else:
            primes = [p for p in (2, 3) for power in range(1, 12) if array.size % p**power == 0]
            ends = sorted(rng.integers(0, len(primes) + 1, rng.integers(0, 4)))
            shape = [math.prod(one) for one in np.split(rng.permutation(primes), ends)]
            array = array.reshape([int(size) for size in shape])
        value = value.viewed((array.shape, "float32"), "view", places)
        if value.steps is None:
            assert kind == 2, "axes that are no product of those before"
            return
        offsets = np.zeros((), int)
        for pieces in value.steps:
            axis = np.zeros(1, int)
            for size, step in pieces:
                axis = np.add.outer(axis, step * np.arange(size)).ravel()
            offsets = np.add.outer(offsets, axis)
        assert (whole.ravel()[offsets] == array).all()
