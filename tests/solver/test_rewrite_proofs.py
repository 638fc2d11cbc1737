"""The rules of rewrites, proven from axioms of the operators by z3; wrong rules do not follow.

Shown for two products, and so for more, one after another. Numbers are compared in
``tests/env/test_rewrites.py``.
"""

from __future__ import annotations

import pytest
import z3

from tests.solver.test_split_rules import Tensor, function

# Concatenations of columns and of rows, and their parts; products; a function of each element; an affine map
# of columns by two rows of numbers, and what it makes of a weight and of a bias.
COLUMNS, LEFT, RIGHT = function("columns", 2), function("left", 1), function("right", 1)
ROWS, TOP, BOTTOM = function("rows", 2), function("top", 1), function("bottom", 1)
PRODUCT, EACH = function("product", 2), function("each", 1)
ADD, SCALE = function("add", 2), function("scale", 2)  # a row of numbers, to or with each row
SUM, TIMES = function("sum", 2), function("times", 2)  # of two rows of numbers
LESS = function("less", 2)  # a row of numbers less each row
TURN, EINSUM = function("turn", 1), function("einsum", 2)  # reads its first operand by columns
X, Y, W, V, B, S, T, MINUS = z3.Consts("x y w v b s t minus", Tensor)


def axiom(left: z3.ExprRef, right: z3.ExprRef, *variables: z3.ExprRef) -> z3.BoolRef:
    """An equation that is used from left to right, so that instances have an end."""
    return z3.ForAll(list(variables), left == right, patterns=[left])


AXIOMS = {  # by rule: it follows from these alone
    "merge": [
        axiom(LEFT(COLUMNS(X, Y)), X, X, Y),
        axiom(RIGHT(COLUMNS(X, Y)), Y, X, Y),
        axiom(PRODUCT(X, COLUMNS(W, V)), COLUMNS(PRODUCT(X, W), PRODUCT(X, V)), X, W, V),
        axiom(ADD(COLUMNS(X, Y), COLUMNS(S, T)), COLUMNS(ADD(X, S), ADD(Y, T)), X, Y, S, T),
        axiom(EACH(COLUMNS(X, Y)), COLUMNS(EACH(X), EACH(Y)), X, Y),
    ],
    "batch": [
        axiom(TOP(ROWS(X, Y)), X, X, Y),
        axiom(BOTTOM(ROWS(X, Y)), Y, X, Y),
        axiom(PRODUCT(ROWS(X, Y), W), ROWS(PRODUCT(X, W), PRODUCT(Y, W)), X, Y, W),
        axiom(ADD(ROWS(X, Y), B), ROWS(ADD(X, B), ADD(Y, B)), X, Y, B),
        axiom(EACH(ROWS(X, Y)), ROWS(EACH(X), EACH(Y)), X, Y),
    ],
    "fold": [
        axiom(SCALE(PRODUCT(X, W), S), PRODUCT(X, SCALE(W, S)), X, W, S),
        axiom(SCALE(ADD(X, B), S), ADD(SCALE(X, S), TIMES(B, S)), X, B, S),
        axiom(ADD(ADD(X, B), T), ADD(X, SUM(B, T)), X, B, T),
        axiom(LESS(T, X), ADD(SCALE(X, MINUS), T), X, T),
    ],
    "transpose": [
        axiom(TURN(TURN(X)), X, X),
        axiom(TURN(PRODUCT(X, Y)), PRODUCT(TURN(Y), TURN(X)), X, Y),
        axiom(EINSUM(X, Y), PRODUCT(TURN(X), Y), X, Y),
    ],
}


def follows(name: str, claim: z3.BoolRef, at_most_ms: int = 20_000) -> bool:
    """Whether a claim follows from the axioms of its rule."""
    solver = z3.Solver()
    solver.set("timeout", at_most_ms)
    solver.add(*AXIOMS[name.split(",")[0]], z3.Not(claim))
    return solver.check() == z3.unsat


def linear(x: z3.ExprRef, w: z3.ExprRef, b: z3.ExprRef) -> z3.ExprRef:
    return ADD(PRODUCT(x, w), b)


MERGED, BATCHED = EACH(linear(X, COLUMNS(W, V), COLUMNS(S, T))), EACH(linear(ROWS(X, Y), W, B))
RIGHT_RULES = {
    "merge, the first": EACH(linear(X, W, S)) == LEFT(MERGED),
    "merge, the second": EACH(linear(X, V, T)) == RIGHT(MERGED),
    "batch, the first": EACH(linear(X, W, B)) == TOP(BATCHED),
    "batch, the second": EACH(linear(Y, W, B)) == BOTTOM(BATCHED),
    "fold": ADD(SCALE(linear(X, W, B), S), T) == linear(X, SCALE(W, S), SUM(TIMES(B, S), T)),
    "fold, a constant less": LESS(T, linear(X, W, B)) == linear(X, SCALE(W, MINUS), SUM(TIMES(B, MINUS), T)),
    "transpose, what is read": PRODUCT(TURN(X), Y) == EINSUM(X, Y),
    "transpose, what is written": TURN(PRODUCT(X, TURN(Y))) == PRODUCT(Y, TURN(X)),
    "transpose, both": TURN(PRODUCT(TURN(X), Y)) == EINSUM(Y, X),
}
WRONG_RULES = {
    "merge, parts exchanged": EACH(linear(X, W, S)) == RIGHT(MERGED),
    "merge, of two tensors": EACH(linear(Y, V, T)) == RIGHT(MERGED),
    "batch, another weight": EACH(linear(Y, V, B)) == BOTTOM(BATCHED),
    "batch, another bias": EACH(linear(Y, W, S)) == BOTTOM(BATCHED),
    "batch, a function that not all have": linear(Y, W, B) == BOTTOM(BATCHED),
    "fold, the bias is not scaled": ADD(SCALE(linear(X, W, B), S), T) == linear(X, SCALE(W, S), SUM(B, T)),
    "fold, a constant less a product with the same weight": LESS(T, linear(X, W, B))
    == linear(X, W, SUM(TIMES(B, MINUS), T)),
    "transpose, not turned": PRODUCT(TURN(X), Y) == PRODUCT(X, Y),
    "transpose, in the same order": TURN(PRODUCT(X, TURN(Y))) == PRODUCT(X, TURN(Y)),
    "fold, shifted first": SCALE(ADD(linear(X, W, B), T), S) == linear(X, SCALE(W, S), SUM(TIMES(B, S), T)),
}


@pytest.mark.parametrize("name", RIGHT_RULES)
def test_rules_follow(name: str) -> None:
    assert follows(name, RIGHT_RULES[name])


@pytest.mark.parametrize("name", WRONG_RULES)
def test_wrong_rules_do_not_follow(name: str) -> None:
    assert not follows(name, WRONG_RULES[name], at_most_ms=300)
