"""More rows, columns, terms, heads or samples never cost less; parts of an op cost at least its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.env import cost_tables, divided_tables, load_target, target_names
from go_opt.env.copies.divisions import split_sizes
from go_opt.model.graph import Graph
from go_opt.model.op_costs import OpSignature, op_cost
from tests.shaped import ShapedBuilder

# One of those that have the same kinds of chips, however many.
TARGETS: Final = list(
    {
        repr([replace(kind, count=1) for kind in target.kinds]): target
        for target in map(load_target, target_names())
    }.values()
)
Sizes = Mapping[str, int]


class Operand(NamedTuple):
    kind: str
    shape: tuple[int, ...]


class Case(NamedTuple):
    """Operands and outputs of an op as functions of sizes by letter."""

    op_type: str
    operands: Callable[..., list[Operand]]
    outputs: Callable[..., list[tuple[int, ...]]]
    attributes: Callable[..., dict[str, Any]] = lambda **_: {}


def x(*shape: int) -> Operand:
    return Operand("input", shape)


def w(*shape: int) -> Operand:
    return Operand("weight", shape)


# b samples, h heads, g heads of keys, m rows, k terms, n columns, s side of an image, f of a window.
CASES: Final = {
    "linear": Case("MatMul", lambda m, k, n: [x(m, k), w(k, n)], lambda m, k, n: [(m, n)]),
    "linear with bias": Case("Gemm", lambda m, k, n: [x(m, k), w(k, n), w(n)], lambda m, k, n: [(m, n)]),
    "linear plus activation": Case(
        "Gemm", lambda m, k, n: [x(m, k), w(k, n), x(m, n)], lambda m, k, n: [(m, n)]
    ),
    "activations with bias": Case("Gemm", lambda m, k, n: [x(m, k), x(k, n), w(n)], lambda m, k, n: [(m, n)]),
    "activations": Case(
        "MatMul", lambda b, h, m, k, n: [x(b, h, m, k), x(b, h, k, n)], lambda b, h, m, k, n: [(b, h, m, n)]
    ),
    "experts": Case("MatMul", lambda b, m, k, n: [x(b, m, k), w(b, k, n)], lambda b, m, k, n: [(b, m, n)]),
    "gram": Case("MatMul", lambda b, m, k: [x(b, m, k)], lambda b, m, k: [(b, m, m)]),
    "quantised activations": Case(
        "QLinearMatMul",
        lambda m, k, n: [x(m, k), w(1), w(1), x(k, n), w(n), w(n), w(1), w(1)],
        lambda m, k, n: [(m, n)],
    ),
    "packed weights": Case(
        "MatMulNBits",
        lambda m, k, n: [x(m, k), w(n, -(-k // 2)), w(n)],
        lambda m, k, n: [(m, n)],
        lambda m, k, n: {"K": k},
    ),
    "routed experts": Case(
        "MoE",
        lambda m, k, n: [x(m, k), x(m, 4), w(4, n, k), w(4, n), w(4, k, n), w(4, k)],
        lambda m, k, n: [(m, k)],
        lambda **_: {"k": 2},
    ),
    "einsum": Case(
        "Einsum",
        lambda b, m, k, n: [x(b, m, k), x(b, n, k)],
        lambda b, m, k, n: [(b, m, n)],
        lambda **_: {"equation": "bmk,bnk->bmn"},
    ),
    "three operands": Case(
        "Einsum",
        lambda m, k, n: [x(m, k), x(k, n), x(n)],
        lambda m, k, n: [(m,)],
        lambda **_: {"equation": "mk,kn,n->m"},
    ),
    "convolution": Case(
        "Conv",
        lambda b, s, k, n, f: [x(b, k, s, s), w(n, k, f, f), w(n)],
        lambda b, s, k, n, f: [(b, n, s, s)],
    ),
    "convolution plus activation": Case(
        "FusedConv",
        lambda b, s, k, n, f: [x(b, k, s, s), w(n, k, f, f), w(n), x(b, n, s, s)],
        lambda b, s, k, n, f: [(b, n, s, s)],
    ),
    "depthwise": Case(
        "Conv", lambda b, s, n, f: [x(b, n, s, s), w(n, 1, f, f)], lambda b, s, n, f: [(b, n, s, s)]
    ),
    "transposed convolution": Case(
        "ConvTranspose",
        lambda b, s, k, n, f: [x(b, k, s, s), w(k, n, f, f), w(n)],
        lambda b, s, k, n, f: [(b, n, 2 * s + f, 2 * s + f)],
    ),
    "attention": Case(
        "Attention",
        lambda b, h, g, m, n, k: [x(b, h * g, m, k), x(b, g, n, k), x(b, g, n, k)],
        lambda b, h, g, m, n, k: [(b, h * g, m, k)],
    ),
    "joined heads": Case(
        "MultiHeadAttention",
        lambda b, h, m, k: [x(b, m, h * k), x(b, m, h * k), x(b, m, h * k)],
        lambda b, h, m, k: [(b, m, h * k)],
        lambda b, h, m, k: {"num_heads": h},
    ),
    "recurrent": Case(
        "LSTM",
        lambda b, m, k, n: [x(m, b, k), w(1, 4 * n, k), w(1, 4 * n, n), w(1, 8 * n)],
        lambda b, m, k, n: [(m, 1, b, n), (1, b, n), (1, b, n)],
    ),
    "element-wise": Case("Gelu", lambda b, m: [x(b, m)], lambda b, m: [(b, m)]),
    "broadcast": Case("Add", lambda b, m: [x(b, m), w(m)], lambda b, m: [(b, m)]),
    "softmax": Case("Softmax", lambda b, m: [x(b, m)], lambda b, m: [(b, m)]),
    "normalisation": Case(
        "LayerNormalization", lambda b, m: [x(b, m), w(m), w(m)], lambda b, m: [(b, m), (b, 1), (b, 1)]
    ),
    "reduction": Case("ReduceMean", lambda b, m: [x(b, m)], lambda b, m: [(b, 1)]),
    "selection": Case(
        "TopK", lambda b, m, k: [x(b, m + k)], lambda b, m, k: [(b, k), (b, k)]
    ),
    "pooling": Case(
        "MaxPool",
        lambda b, s, n, f: [x(b, n, s + f, s + f)],
        lambda b, s, n, f: [(b, n, s, s)],
        lambda f, **_: {"kernel_shape": [f, f]},
    ),
    "resize": Case(
        "Resize", lambda b, s, n, f: [x(b, n, s, s)], lambda b, s, n, f: [(b, n, s * f, s * f)],
        lambda **_: {"mode": "linear"},
    ),
    "transpose": Case("Transpose", lambda b, m: [x(b, m)], lambda b, m: [(m, b)]),
    "look-up": Case("Gather", lambda b, m, n: [w(n, m), x(b)], lambda b, m, n: [(b, m)]),
    "join": Case("Concat", lambda b, m, n: [x(b, m), x(b, n)], lambda b, m, n: [(b, m + n)]),
    "unknown": Case("Mystery", lambda b, m: [x(b, m)], lambda b, m: [(b, m)]),
}  # fmt: skip


def one_op(case: Case, sizes: Sizes) -> Graph:
    operands, outputs = case.operands(**sizes), case.outputs(**sizes)
    attributes = case.attributes(**sizes)
    cost = op_cost(
        OpSignature(case.op_type, tuple(one.shape for one in operands), tuple(outputs), attributes)
    )
    b = ShapedBuilder("one op")
    for i, one in enumerate(operands):
        b.add_tensor(f"x{i}", one.shape, "float32", one.kind)
    reads = [(f"x{i}", touched) for i, touched in enumerate(cost.touched)]
    writes = [(f"y{i}", shape, "float32") for i, shape in enumerate(outputs)]
    b.add_op(
        "op", case.op_type, cost.op_class, flops=cost.flops, dtype="float32", reads=reads, writes=writes,
        attributes=attributes,
    )  # fmt: skip
    for name, _, _ in writes:
        b.mark_output(name)
    return b.build()


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(data=st.data())
def test_more_never_costs_less(name: str, data: st.DataObject) -> None:
    """Along one dimension, on every shipped target, and for the kernel and the work alone."""
    case = CASES[name]
    letters = [*signature(case.operands).parameters]
    most = {"f": 7, "s": 64, "h": 32, "g": 8, "b": 64}
    sizes = {one: data.draw(st.integers(1, most.get(one, 3000)), one) for one in letters}
    grown = data.draw(st.sampled_from(letters))
    more = sizes | {grown: sizes[grown] + data.draw(st.integers(1, max(sizes[grown], 4)), "more")}
    less, greater = one_op(case, sizes), one_op(case, more)
    for target in TARGETS:
        few, many = (cost_tables(graph, target) for graph in (less, greater))
        assert (few.own_s() <= many.own_s() * (1 + 1e-9)).all(), target.name
        assert (few.kernel_floor_s() <= many.kernel_floor_s() * (1 + 1e-9)).all(), target.name


@pytest.mark.parametrize("name", ["linear with bias", "activations"])
@settings(max_examples=30)
@given(data=st.data())
def test_parts_cost_at_least_the_bound_of_the_op(name: str, data: st.DataObject) -> None:
    """Bounds of ops that may be split use no rate above that of the parts, and count the starts of two."""
    divided = "mkn" if name == "linear with bias" else "hm"  # columns, terms and rows; heads and rows
    sizes = {one: data.draw(st.integers(2, 300), one) for one in "mkn"}
    sizes |= {"b": 1, "h": data.draw(st.integers(2, 8), "h")} if "h" in divided else {}
    letter = data.draw(st.sampled_from(divided))
    parts = data.draw(st.integers(2, min(6, sizes[letter])), "parts")
    whole = one_op(CASES[name], sizes)
    pieces = [one_op(CASES[name], sizes | {letter: size}) for size in split_sizes(sizes[letter], parts)]
    for target in TARGETS:
        bound_s = divided_tables(whole, target, np.ones(1, np.bool_)).own_s()
        parts_s = sum(cost_tables(piece, target).own_s() for piece in pieces)
        if target.kinds[0].kernels is not None and len(pieces) > 1:
            parts_s = parts_s + cost_tables(whole, target).kernel_overhead_s[:, None]
        assert (bound_s <= parts_s * (1 + 1e-9)).all(), target.name
