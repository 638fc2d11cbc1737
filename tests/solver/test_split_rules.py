"""The rules of splits, proven from axioms of the operators.

As TASO does (Jia et al., SOSP 2019): first-order formulas say how products and sums pass through a
concatenation; z3 shows that the rule follows for two parts, and with the same for ``p - 1`` parts for ``p``.
Wrong rules must not follow. Numbers are compared in ``tests/env/test_splits.py``.
"""

from __future__ import annotations

import pytest
import z3

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
