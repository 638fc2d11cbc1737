"""The rules of splits, proven: from axioms of the operators, and over a prime field.

From axioms, as TASO does (Jia et al., SOSP 2019): first-order formulas that say how products and sums pass
through a concatenation; z3 shows that the rule follows for two parts, and with the same for ``p - 1`` parts
for ``p``. Over a prime field, as Mirage does (Wu et al., OSDI 2025): sums and products are exact there, so
that an equality which holds for random numbers of random shapes is one of polynomials, up to a chance of
about the degree over the prime. Wrong rules must fail both ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import z3
from hypothesis import given, settings
from numpy.typing import NDArray

from go_opt.env.copies.columns import split_sizes
from go_opt.env.copies.rows import rows_needed
from go_opt.model.axes import Window, heads_apart, row_axis, row_shapes, row_windows
from go_opt.model.graph import Graph
from tests.shaped import ShapedBuilder
from tests.strategies import examples, seeds

PRIME = 2**31 - 1
Tensor = z3.DeclareSort("Tensor")


def function(name: str, arity: int) -> z3.FuncDeclRef:
    return z3.Function(name, *[Tensor] * (arity + 1))


# One concatenation and its two halves, along columns: of weights, of biases and of outputs.
CONCAT, FIRST, REST = function("concat", 2), function("first", 1), function("rest", 1)
PRODUCT, ADD = function("product", 2), function("add", 2)  # x W or a convolution; with a bias of columns
PARTS = function("parts", 2)  # what the parts of an op of p - 1 parts give, joined
X, W, B, Y, Z, A, C = z3.Consts("x w b y z a c", Tensor)

AXIOMS = [
    z3.ForAll([W], CONCAT(FIRST(W), REST(W)) == W),
    z3.ForAll([X, Y, Z], PRODUCT(X, CONCAT(Y, Z)) == CONCAT(PRODUCT(X, Y), PRODUCT(X, Z))),
    z3.ForAll([Y, Z, A, C], ADD(CONCAT(Y, Z), CONCAT(A, C)) == CONCAT(ADD(Y, A), ADD(Z, C))),
]


def follows(claim: z3.BoolRef, *hypotheses: z3.BoolRef, at_most_ms: int = 20_000) -> bool:
    """What does not follow is not decided: instances of the axioms have no end."""
    solver = z3.Solver()
    solver.set("timeout", at_most_ms)
    solver.add(*AXIOMS, *hypotheses, z3.Not(claim))
    return solver.check() == z3.unsat


def test_two_parts_are_the_product() -> None:
    assert follows(CONCAT(PRODUCT(X, FIRST(W)), PRODUCT(X, REST(W))) == PRODUCT(X, W))


def test_two_parts_are_the_product_with_its_bias() -> None:
    parts = (ADD(PRODUCT(X, half(W)), half(B)) for half in (FIRST, REST))
    assert follows(CONCAT(*parts) == ADD(PRODUCT(X, W), B))


def test_one_part_more() -> None:
    """If the parts of the rest of the columns are its product, then with the first they are the whole."""
    rule = z3.ForAll([Y], PARTS(X, Y) == PRODUCT(X, Y))
    assert follows(CONCAT(PRODUCT(X, FIRST(W)), PARTS(X, REST(W))) == PRODUCT(X, W), rule)


@pytest.mark.parametrize(
    "wrong",
    [
        CONCAT(PRODUCT(X, REST(W)), PRODUCT(X, FIRST(W))),  # in another order
        CONCAT(PRODUCT(X, FIRST(W)), PRODUCT(X, FIRST(W))),  # one part twice
        CONCAT(PRODUCT(FIRST(X), FIRST(W)), PRODUCT(REST(X), REST(W))),  # the activation in parts as well
        CONCAT(PRODUCT(FIRST(W), X), PRODUCT(REST(W), X)),  # the other operand
        ADD(PRODUCT(X, FIRST(W)), PRODUCT(X, REST(W))),  # summed
    ],
)
def test_wrong_rules_do_not_follow(wrong: z3.ExprRef) -> None:
    assert not follows(wrong == PRODUCT(X, W), at_most_ms=300)


def test_a_bias_that_is_not_divided_does_not_follow() -> None:
    parts = (ADD(PRODUCT(X, half(W)), B) for half in (FIRST, REST))
    assert not follows(CONCAT(*parts) == ADD(PRODUCT(X, W), B), at_most_ms=300)


# ------------------------------------------------------------------ over a prime field

Numbers = NDArray[np.object_]
Op = Callable[[Numbers, Numbers, Numbers], Numbers]


def field(rng: np.random.Generator, *shape: int) -> Numbers:
    return rng.integers(0, PRIME, shape).astype(object)


def matmul(x: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """x [M, K] by w [K, N] and b [N]."""
    return (x @ w + b) % PRIME


def conv(x: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """x [C, H, W] by w [N, C, h, w] and b [N], without padding."""
    height, width = (size - window + 1 for size, window in zip(x.shape[1:], w.shape[2:], strict=True))
    rows = [
        [(w * x[:, i : i + w.shape[2], j : j + w.shape[3]]).sum(axis=(1, 2, 3)) + b for j in range(width)]
        for i in range(height)
    ]
    return np.moveaxis(np.array(rows), 2, 0) % PRIME


def drawn(rng: np.random.Generator, kind: str) -> tuple[Op, Numbers, Numbers, Numbers, int, int]:
    """An op with numbers for it, and the axes of the weight and of the output that columns are along."""
    outer, inner, columns = (int(n) for n in rng.integers((1, 1, 3), (4, 5, 9)))
    if kind == "matmul":
        return matmul, field(rng, outer, inner), field(rng, inner, columns), field(rng, columns), 1, 1
    image, window = field(rng, inner, 4, 5), field(rng, columns, inner, int(rng.integers(1, 4)), 2)
    return conv, image, window, field(rng, columns), 0, 0


def slices(w: Numbers, parts: int, axis: int) -> list[Numbers]:
    stops = np.cumsum(split_sizes(w.shape[axis], parts))[:-1]
    return np.split(w, stops, axis=axis)


@pytest.mark.parametrize("kind", ["matmul", "conv"])
@given(seed=seeds)
@settings(max_examples=examples(10), deadline=None)
def test_the_axioms_hold_of_numbers(kind: str, seed: int) -> None:
    """Of what does not hold, anything would follow."""
    op, x, w, b, axis, output = drawn(np.random.default_rng(seed), kind)
    first, rest = slices(w, 2, axis)
    assert np.array_equal(np.concatenate([first, rest], axis), w)
    none = 0 * b
    without = [op(x, half, none[: half.shape[axis]]) for half in (first, rest)]
    assert np.array_equal(np.concatenate(without, output), op(x, w, none))
    shape = [-1 if along == output else 1 for along in range(without[0].ndim)]
    sums = [(part + bias.reshape(shape)) % PRIME for part, bias in zip(without, slices(b, 2, 0), strict=True)]
    assert np.array_equal(np.concatenate(sums, output), op(x, w, b))


@pytest.mark.parametrize("kind", ["matmul", "conv"])
@given(seed=seeds)
@settings(max_examples=examples(20), deadline=None)
def test_parts_over_a_prime_field(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    op, x, w, b, axis, output = drawn(rng, kind)
    parts = int(rng.integers(2, w.shape[axis] + 1))
    pairs = list(zip(slices(w, parts, axis), slices(b, parts, 0), strict=True))
    whole = op(x, w, b)
    assert np.array_equal(np.concatenate([op(x, *pair) for pair in pairs], axis=output), whole)
    wrong = [
        [op(x, *pair) for pair in reversed(pairs)],  # in another order
        [op(x, *pair) for pair in [pairs[0], *pairs[:-1]]],  # one part twice, one not at all
        [op(x, pair[0], 0 * pair[1]) for pair in pairs],  # without the bias
        [op((x + 1) % PRIME, *pairs[0]), *(op(x, *pair) for pair in pairs[1:])],  # another activation
    ]
    for results in wrong:
        joined = np.concatenate(results, axis=output)
        assert joined.shape != whole.shape or not np.array_equal(joined, whole)


# ------------------------------------------------------------------ rows, and windows over them

SIZE, BEFORE, NUMBER, START, STOP, ROW, AT = z3.Ints("size before number start stop row at")


def read_by_part(stride: int, *, halo: int = 0, padding: int = 0) -> tuple[z3.BoolRef, z3.BoolRef]:
    """What holds of a part of a window, and that it reads the row of the image that the whole op reads.

    Output ``ROW`` of rows ``START`` to ``STOP`` reads ``AT`` of its ``SIZE`` rows: of the whole image the row
    ``reads``, of the part's rows and padding the row ``local``. Outside the rows is padding.

    Args:
      halo: rows that the part has too few in front; padding: that it has too much.
    """
    first = START * stride - BEFORE
    low = z3.If(first > 0, first, 0) + halo
    end = (STOP - 1) * stride - BEFORE + SIZE
    high = z3.If(end < NUMBER, end, NUMBER)
    pad = z3.If(first < 0, -first, 0) + padding
    reads, local = ROW * stride - BEFORE + AT, (ROW - START) * stride - pad + AT
    holds = z3.And(
        NUMBER > 0, BEFORE >= 0, BEFORE < SIZE, START >= 0, START <= ROW, ROW < STOP, AT >= 0, AT < SIZE,
        (STOP - 1) * stride - BEFORE < NUMBER,
    )  # fmt: skip
    is_in, is_in_part = z3.And(reads >= 0, reads < NUMBER), z3.And(local >= 0, local < high - low)
    return holds, z3.And(is_in == is_in_part, z3.Implies(is_in, local + low == reads))


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_a_part_reads_the_rows_that_the_whole_reads(stride: int) -> None:
    holds, is_same = read_by_part(stride)
    solver = z3.Solver()
    solver.add(holds, z3.Not(is_same))
    assert solver.check() == z3.unsat
    for wrong in ({"halo": 1}, {"halo": -1}, {"padding": 1}):
        holds, is_same = read_by_part(stride, **wrong)
        solver = z3.Solver()
        solver.add(holds, z3.Not(is_same))
        assert solver.check() == z3.sat


@given(seed=seeds)
@settings(max_examples=examples(20), deadline=None)
def test_parts_by_rows_over_a_prime_field(seed: int) -> None:
    """A convolution with a bias on rows and padding of its own, for any cut of its output."""
    rng = np.random.default_rng(seed)
    size, stride = (int(n) for n in rng.integers(1, (5, 4)))
    before = int(rng.integers(0, size))
    rows = int(rng.integers(size, 12))
    x, w, b = field(rng, 2, rows, 3), field(rng, 2, 2, size, 2), field(rng, 2)

    def padded(image: Numbers, front: int, behind: int) -> Numbers:
        zeros = [np.zeros((2, n, 3), dtype=object) for n in (front, behind)]
        return conv(np.concatenate([zeros[0], image, zeros[1]], axis=1), w, b)[:, ::stride]

    whole = padded(x, before, before)
    window, number = Window(size, stride, before), whole.shape[1]
    stops = sorted({*rng.integers(1, number + 1, 2).tolist(), number})
    parts, wrong = [], []
    for start, stop in zip([0, *stops[:-1]], stops, strict=True):
        first, last = start * stride - before, (stop - 1) * stride - before + size
        low, high = rows_needed(window, start, stop, rows)
        parts.append(padded(x[:, low:high], max(0, -first), max(0, last - rows)))
        wrong.append(padded(x[:, low:high], max(0, -first), max(0, last - rows)) if start == 0 else parts[0])
    assert np.array_equal(np.concatenate(parts, axis=1), whole)
    if len(parts) > 1:  # the first rows again
        joined = np.concatenate(wrong, axis=1)
        assert joined.shape != whole.shape or not np.array_equal(joined, whole)


# ------------------------------------------------------------------ rows that ops keep apart

ROWS, TOP, BOTTOM = function("rows", 2), function("top", 1), function("bottom", 1)
EACH = function("each", 1)  # any function of a row, such as a distribution over its columns
Q, K, V = z3.Consts("q k v", Tensor)


def rule(variables: list[z3.ExprRef], joined: z3.ExprRef, whole: z3.ExprRef) -> z3.QuantifierRef:
    """``joined`` rows are ``whole``; used where the rows are joined."""
    return z3.ForAll(variables, joined == whole, patterns=[joined])


ROW_AXIOMS = [
    rule([X], ROWS(TOP(X), BOTTOM(X)), X),
    rule([X, Y, Z], ROWS(PRODUCT(X, Z), PRODUCT(Y, Z)), PRODUCT(ROWS(X, Y), Z)),
    rule([X, Y], ROWS(EACH(X), EACH(Y)), EACH(ROWS(X, Y))),
    rule([Y, Z, A, C], ROWS(ADD(Y, A), ADD(Z, C)), ADD(ROWS(Y, Z), ROWS(A, C))),
]


def attention(q: z3.ExprRef, k: z3.ExprRef, v: z3.ExprRef, mask: z3.ExprRef) -> z3.ExprRef:
    return PRODUCT(EACH(ADD(PRODUCT(q, k), mask)), v)


def test_attention_by_rows_of_queries_and_of_the_mask() -> None:
    parts = [attention(half(Q), K, V, half(B)) for half in (TOP, BOTTOM)]
    assert follows(ROWS(*parts) == attention(Q, K, V, B), *ROW_AXIOMS)


@pytest.mark.parametrize(
    "wrong",
    [
        [attention(half(Q), K, half(V), half(B)) for half in (TOP, BOTTOM)],  # the values in parts as well
        [attention(half(Q), half(K), V, half(B)) for half in (TOP, BOTTOM)],  # the keys
        [attention(half(Q), K, V, B) for half in (TOP, BOTTOM)],  # all of the mask
        [attention(half(Q), K, V, half(B)) for half in (BOTTOM, TOP)],  # in another order
    ],
)
def test_wrong_attention_does_not_follow(wrong: list[z3.ExprRef]) -> None:
    assert not follows(ROWS(*wrong) == attention(Q, K, V, B), *ROW_AXIOMS, at_most_ms=300)


def mixed(x: Numbers, axis: int) -> Numbers:
    """Stands for any function that mixes the elements along one axis, in each place its own way."""
    places = np.arange(1, x.shape[axis] + 1).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return (x * (places * x).sum(axis=axis, keepdims=True)) % PRIME


@given(seed=seeds)
@settings(max_examples=examples(100), deadline=None)
def test_what_keeps_rows_apart_over_a_prime_field(seed: int) -> None:
    """Rows of each operand that the table says give rows of the output; with other axes it would be wrong."""
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(2, 5, int(rng.integers(2, 5))).tolist())
    axis, perm = int(rng.integers(len(sizes))), tuple(rng.permutation(len(sizes)).tolist())
    x = field(rng, *sizes)
    other = field(
        rng, *(size if rng.random() < 0.6 else 1 for size in sizes[int(rng.integers(len(sizes))) :])
    )
    same = tuple(range(len(sizes)))
    true, untrue, operands, op = [
        (("Transpose", {"perm": perm}), ("Transpose", {"perm": same}), [x], lambda x: np.transpose(x, perm)),
        (("Softmax", {"axis": axis}), ("Relu", {}), [x], lambda x: mixed(x, axis)),
        (("Concat", {"axis": axis}), None, [x, 3 * x], lambda *both: np.concatenate(both, axis)),
        (("Add", {}), None, [x, other], lambda x, y: (x + y) % PRIME),
    ][rng.integers(4)]
    whole = op(*operands)
    merged = [rng.random() < 0.5 for _ in range(3)]
    kept, shapes = windows_of(*true, operands, whole, merged)
    claimed = windows_of(*untrue, operands, whole, merged)[0] if untrue is not None else None
    for windows in (kept, claimed):
        if not windows:
            continue
        row = row_axis(whole.shape, shapes["y"])
        assert row is not None
        stops = sorted({int(rng.integers(1, whole.shape[row])), whole.shape[row]})
        parts = []
        for start, stop in zip([0, *stops[:-1]], stops, strict=True):
            taken = []
            for i, array in enumerate(operands):
                along = row_axis(array.shape, shapes[f"t{i}"]) if f"t{i}" in windows else None
                taken.append(array if along is None else array.take(range(start, stop), along))
            try:
                parts.append(op(*taken))
            except ValueError:  # sizes that do not fit
                parts.append(field(rng, 1))
        apart = {(*part.shape[:row], *part.shape[row + 1 :]) for part in parts}
        equal = len(apart) == 1 and np.array_equal(np.concatenate(parts, row), whole)
        assert equal == bool(kept)


def windows_of(
    op_type: str,
    attributes: Mapping[str, Any],
    operands: Sequence[Numbers],
    result: Numbers,
    merged: Sequence[bool],
) -> tuple[set[str], dict[str, tuple[int, ...]]]:
    """The operands of which an op keeps rows apart, and shapes; others may see the first two axes as one."""
    graph = one_op(op_type, attributes, operands, result, merged)
    windows = row_windows(graph).get(graph.op_index["op"], {})
    shapes = {graph.tensor_names[k]: shape for k, shape in row_shapes(graph).items()}
    return {graph.tensor_names[k] for k in windows}, shapes


def one_op(
    op_type: str,
    attributes: Mapping[str, Any],
    operands: Sequence[Numbers],
    result: Numbers,
    merged: Sequence[bool] = (),
) -> Graph:
    b = ShapedBuilder("one op")
    kind = "matrix" if op_type == "MatMul" else "vector"
    for i, array in enumerate(operands):
        b.add_tensor(f"t{i}", array.shape, "float32", "input")
    reads: list[tuple[str, int | None]] = [(f"t{i}", None) for i in range(len(operands))]
    b.add_op(
        "op", op_type, kind, flops=1.0, dtype="float32", reads=reads, writes=[("y", result.shape, "float32")],
        attributes=attributes,
    )  # fmt: skip
    tensors = [*((f"t{i}", array.shape) for i, array in enumerate(operands)), ("y", result.shape)]
    for (name, shape), is_merged in zip(tensors, merged, strict=False):
        if is_merged and len(shape) > 2:
            view = (shape[0] * shape[1], *shape[2:])
            b.add_view(f"{name} merged", name, view)
            b.add_op(
                f"reader of {name}", "Relu", "vector", flops=1.0, dtype="float32",
                reads=[(f"{name} merged", None)], writes=[(f"{name} read", view, "float32")],
            )  # fmt: skip
    return b.build()


# ------------------------------------------------------------------ the inner dimension, behind columns

# Terms lie along the columns of the left operand and the rows of the right one.
INNER_AXIOMS = [
    *ROW_AXIOMS[:1],
    rule([A, C, Y, Z], ADD(PRODUCT(A, Y), PRODUCT(C, Z)), PRODUCT(CONCAT(A, C), ROWS(Y, Z))),
    rule([A, C], CONCAT(EACH(A), EACH(C)), EACH(CONCAT(A, C))),
]


def hidden(w: z3.ExprRef, b: z3.ExprRef) -> z3.ExprRef:
    return EACH(ADD(PRODUCT(X, w), b))


def feed_forward(parts: list[tuple[z3.FuncDeclRef, z3.FuncDeclRef]]) -> z3.ExprRef:
    """Columns of the first product, with their biases, and the rows of V that they meet in the second."""
    return ADD(*(PRODUCT(hidden(columns(W), columns(B)), rows(V)) for columns, rows in parts))


def test_columns_that_meet_in_the_inner_dimension_are_not_joined() -> None:
    parts = feed_forward([(FIRST, TOP), (REST, BOTTOM)])
    halves = [hidden(half(W), half(B)) for half in (FIRST, REST)]
    # First the parts are one product of what they would give joined, then that is what the whole op gives.
    assert follows(parts == PRODUCT(CONCAT(*halves), V), *INNER_AXIOMS)
    assert follows(CONCAT(*halves) == hidden(W, B), *INNER_AXIOMS)


def test_one_partial_result_more() -> None:
    """If the parts of the other terms add up to their product, then with the first they are the whole."""
    known = rule([Y, Z], PARTS(Y, Z), PRODUCT(Y, Z))
    parts = ADD(PRODUCT(FIRST(X), TOP(W)), PARTS(REST(X), BOTTOM(W)))
    assert follows(parts == PRODUCT(X, W), known, *INNER_AXIOMS)


@pytest.mark.parametrize(
    "wrong",
    [
        feed_forward([(FIRST, BOTTOM), (REST, TOP)]),  # other rows
        feed_forward([(FIRST, TOP), (FIRST, BOTTOM)]),  # some columns twice
        CONCAT(*(PRODUCT(hidden(c(W), c(B)), r(V)) for c, r in ((FIRST, TOP), (REST, BOTTOM)))),  # joined
        ADD(*(PRODUCT(hidden(half(W), B), r(V)) for half, r in ((FIRST, TOP), (REST, BOTTOM)))),  # all biases
        ADD(*(EACH(PRODUCT(X, PRODUCT(c(W), r(V)))) for c, r in ((FIRST, TOP), (REST, BOTTOM)))),  # late
    ],
)
def test_wrong_sums_do_not_follow(wrong: z3.ExprRef) -> None:
    assert not follows(wrong == PRODUCT(hidden(W, B), V), *INNER_AXIOMS, at_most_ms=300)


@given(seed=seeds)
@settings(max_examples=examples(30), deadline=None)
def test_columns_and_sums_over_a_prime_field(seed: int) -> None:
    """Two products with an element-wise polynomial and biases between and behind them."""
    rng = np.random.default_rng(seed)
    outer, inner, terms, columns = (int(n) for n in rng.integers((1, 1, 4, 1), (4, 5, 9, 5)))
    x, w, b = field(rng, outer, inner), field(rng, inner, terms), field(rng, terms)
    v, c, scale = field(rng, terms, columns), field(rng, columns), field(rng, outer, terms)

    def each(y: Numbers, scale: Numbers) -> Numbers:
        return (y * y * y + 5 * y * scale + 7) % PRIME

    whole = matmul(each(matmul(x, w, b), scale), v, c)
    sizes = int(rng.integers(2, terms + 1))
    groups = zip(
        *(slices(one, sizes, axis) for one, axis in ((w, 1), (b, 0), (scale, 1), (v, 0))), strict=True
    )
    parts = [(each(matmul(x, w_i, b_i), s_i), v_i) for w_i, b_i, s_i, v_i in groups]
    none = 0 * c

    def added(pairs: list[tuple[Numbers, Numbers]], biases: list[Numbers]) -> Numbers:
        return sum(matmul(y, v_i, bias) for (y, v_i), bias in zip(pairs, biases, strict=True)) % PRIME

    once = [c, *[none] * (len(parts) - 1)]
    assert np.array_equal(added(parts, once), whole)
    assert not np.array_equal(added(parts, [c] * len(parts)), whole)  # the bias in every part
    assert not np.array_equal(added(parts[1:], once[1:]), whole)  # a part is missing
    assert not np.array_equal(added([parts[0], *parts[:-1]], once), whole) or len(parts) == 1  # one twice
    late = sum(each(matmul(y, v_i, none), none + 1) for y, v_i in parts) % PRIME
    assert not np.array_equal(late, whole)  # an element-wise op of partial results


# ------------------------------------------------------------------ heads of attention

# Heads lie one behind another where a Transpose has turned columns, of which each head has some.
HEADS, TURN, BACK = function("heads", 2), function("turn", 1), function("back", 1)
OUT, M = z3.Consts("o m", Tensor)

HEAD_AXIOMS = [
    *INNER_AXIOMS[:2],
    rule([X, Y, Z], CONCAT(PRODUCT(X, Y), PRODUCT(X, Z)), PRODUCT(X, CONCAT(Y, Z))),
    rule([A, C], HEADS(TURN(A), TURN(C)), TURN(CONCAT(A, C))),
    rule([A, C, Y, Z], HEADS(PRODUCT(A, Y), PRODUCT(C, Z)), PRODUCT(HEADS(A, C), HEADS(Y, Z))),
    rule([A, C, M], HEADS(ADD(A, M), ADD(C, M)), ADD(HEADS(A, C), M)),
    rule([A, C], HEADS(EACH(A), EACH(C)), EACH(HEADS(A, C))),
    rule([A, C], CONCAT(BACK(A), BACK(C)), BACK(HEADS(A, C))),
]


def some_heads(q: z3.ExprRef, k: z3.ExprRef, v: z3.ExprRef) -> z3.ExprRef:
    """Attention, and its result as columns, of heads whose queries, keys and values have these weights."""
    return BACK(attention(*(TURN(PRODUCT(X, weight)) for weight in (q, k, v)), M))


def summed(parts: list[tuple[z3.FuncDeclRef, ...]]) -> z3.ExprRef:
    """Products of some heads with rows of O, added; of queries, keys, values and O which half."""
    return ADD(*(PRODUCT(some_heads(q(Q), k(K), v(V)), rows(OUT)) for q, k, v, rows in parts))


def test_heads_that_meet_in_the_inner_dimension_are_not_joined() -> None:
    halves = [some_heads(half(Q), half(K), half(V)) for half in (FIRST, REST)]
    parts = summed([(FIRST, FIRST, FIRST, TOP), (REST, REST, REST, BOTTOM)])
    assert follows(parts == PRODUCT(CONCAT(*halves), OUT), *HEAD_AXIOMS)
    # What the halves give joined is what the whole gives: columns, turned, as heads, and turned back.
    for weight in (Q, K, V):
        turned = [TURN(PRODUCT(X, half(weight))) for half in (FIRST, REST)]
        assert follows(HEADS(*turned) == TURN(PRODUCT(X, weight)), *HEAD_AXIOMS)
    heads = [z3.Consts(f"{name}1 {name}2", Tensor) for name in "qkv"]
    each = [attention(*one, M) for one in zip(*heads, strict=True)]
    joined = attention(*(HEADS(*pair) for pair in heads), M)
    assert follows(HEADS(*each) == joined, *HEAD_AXIOMS)
    assert follows(CONCAT(*map(BACK, heads[0])) == BACK(HEADS(*heads[0])), *HEAD_AXIOMS)


@pytest.mark.parametrize(
    "wrong",
    [
        [(FIRST, FIRST, FIRST, BOTTOM), (REST, REST, REST, TOP)],  # other rows
        [(FIRST, REST, FIRST, TOP), (REST, FIRST, REST, BOTTOM)],  # keys of other heads
        [(FIRST, FIRST, FIRST, TOP), (REST, REST, FIRST, BOTTOM)],  # values of one part twice
        [(TOP, FIRST, FIRST, TOP), (BOTTOM, REST, REST, BOTTOM)],  # queries of no columns
    ],
)
def test_wrong_heads_do_not_follow(wrong: list[tuple[z3.FuncDeclRef, ...]]) -> None:
    assert not follows(summed(wrong) == PRODUCT(some_heads(Q, K, V), OUT), *HEAD_AXIOMS, at_most_ms=300)


@given(seed=seeds)
@settings(max_examples=examples(30), deadline=None)
def test_attention_by_heads_over_a_prime_field(seed: int) -> None:
    """With a polynomial that mixes the scores of a row, as a distribution does."""
    rng = np.random.default_rng(seed)
    tokens, inner, heads, of_head, columns = (int(n) for n in rng.integers((2, 1, 2, 2, 1), (5, 4, 6, 4, 4)))
    x, mask, o = field(rng, tokens, inner), field(rng, tokens, tokens), field(rng, heads * of_head, columns)
    weights = [field(rng, inner, heads * of_head) for _ in range(3)]

    def context(q: Numbers, k: Numbers, v: Numbers) -> Numbers:
        split = [((x @ w) % PRIME).reshape(tokens, -1, of_head).transpose(1, 0, 2) for w in (q, k, v)]
        scores = mixed((split[0] @ split[1].transpose(0, 2, 1) + mask) % PRIME, 2)
        return ((scores @ split[2]) % PRIME).transpose(1, 0, 2).reshape(tokens, -1)

    whole = context(*weights) @ o % PRIME
    number = int(rng.integers(2, heads + 1))
    stops = of_head * np.cumsum(split_sizes(heads, number))[:-1]
    q, k, v = ([*np.split(weight, stops, axis=1)] for weight in weights)
    terms = np.split(o, stops)

    def added(q: list[Numbers], k: list[Numbers], v: list[Numbers], o: list[Numbers]) -> Numbers:
        return sum(context(*one) @ rows for *one, rows in zip(q, k, v, o, strict=True)) % PRIME

    assert np.array_equal(added(q, k, v, terms), whole)
    if heads % number == 0:  # else other parts have other sizes
        assert not np.array_equal(added(q, k[::-1], v, terms), whole) or number == 1
        assert not np.array_equal(added(q, k, v[1:] + v[:1], terms), whole)
        assert not np.array_equal(added(q, k, v, terms[1:] + terms[:1]), whole)
    assert not np.array_equal(added(q[1:], k[1:], v[1:], terms[1:]), whole)  # a part is missing


@given(seed=seeds)
@settings(max_examples=examples(100), deadline=None)
def test_what_keeps_heads_apart_over_a_prime_field(seed: int) -> None:
    """Heads of each operand that the table says give heads of the output, and no others do."""
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(2, 5, int(rng.integers(2, 5))).tolist())
    rank = len(sizes)
    axis, perm = int(rng.integers(rank)), tuple(rng.permutation(rank).tolist())
    x, last = field(rng, *sizes), field(rng, *sizes[:-2], sizes[-1], 3)
    other = field(rng, *(size if rng.random() < 0.6 else 1 for size in sizes[int(rng.integers(rank)) :]))
    true, untrue, operands, op = [
        (
            ("Transpose", {"perm": perm}),
            ("Transpose", {"perm": tuple(range(rank))}),
            [x],
            lambda x: np.transpose(x, perm),
        ),
        (("Softmax", {"axis": axis}), ("Relu", {}), [x], lambda x: mixed(x, axis)),
        (("MatMul", {}), None, [x, last], lambda x, y: x @ y % PRIME),
        (("Add", {}), None, [x, other], lambda x, y: (x + y) % PRIME),
    ][rng.integers(4)]
    whole = op(*operands)

    def kept(op_type: str, attributes: Mapping[str, Any]) -> list[tuple[int, dict[str, int]]]:
        graph = one_op(op_type, attributes, operands, whole)
        row = graph.rule_of(graph.op_index["op"])
        if row is None:
            return []
        found = heads_apart(row, graph.tensor_elements.tolist(), is_product=op_type == "MatMul")
        return [(one.number, {graph.tensor_names[k]: n for k, n in one.behind.items()}) for one in found]

    right = kept(*true)
    for number, behind in (*right, *(kept(*untrue) if untrue is not None else ())):

        def of(
            array: Numbers,
            tensor: str,
            start: int,
            stop: int,
            number: int = number,
            behind: Mapping[str, int] = behind,
        ) -> Numbers:
            """Some heads, seen as the array is."""
            if tensor not in behind:
                return array
            before = [math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]
            at = next(i for i, n in enumerate(before) if (n, array.shape[i]) == (behind[tensor], number))
            return array.take(range(start, stop), at)

        stop = int(rng.integers(1, number))
        equal = True
        for part in ((0, stop), (stop, number)):
            try:
                result = op(*(of(array, f"t{i}", *part) for i, array in enumerate(operands)))
            except ValueError:  # sizes that do not fit
                equal = False
            else:
                equal &= np.array_equal(result, of(whole, "y", *part))
        assert equal == ((number, behind) in right)
