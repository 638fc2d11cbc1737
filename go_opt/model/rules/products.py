"""Rules of contractions, and of layers that are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from go_opt.model.rule import Access, Shape
from go_opt.model.rules.maker import NoRuleError, RuleMaker


def _contraction(
    op: RuleMaker, terms: Sequence[Sequence[str]], result: Sequence[str], places: Sequence[int]
) -> None:
    """An Einsum: the labels of the operands at ``places`` and of the result."""
    sizes: dict[str, int] = {}
    for term, place in zip(terms, places, strict=True):
        for label, size in zip(term, op.input(place), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    of_label = {
        label: op.factor(label, "parallel" if label in result else "reduction", size)
        for label, size in sizes.items()
    }
    for term, place in zip(terms, places, strict=True):
        op.reads[place] = op.aligned(op.input(place), tuple(of_label[label] for label in term))
    op.writes[0] = op.aligned(op.outputs[0], tuple(of_label[label] for label in result))
    has_diagonal = any(len(set(term)) < len(term) for term in (result, *terms))
    if has_diagonal or len(op.outputs[0]) != len(result):
        raise NoRuleError


def einsum(op: RuleMaker) -> None:
    left, arrow, right = str(op.attributes["equation"]).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        right = "..." * ("..." in left) + "".join(sorted(one for one in letters if letters.count(one) == 1))
    places = [i for i in range(len(op.inputs)) if op.has(i)]
    most = max(len(op.input(i)) - len(term.replace("...", "")) for term, i in zip(terms, places, strict=True))

    def labels(term: str, rank: int) -> list[str]:
        named, dots, tail = term.partition("...")
        number = rank - len(named) - len(tail) if dots else 0
        return [*named, *(f"b{most - number + i}" for i in range(number)), *tail]

    of_operands = [labels(term, len(op.input(i))) for term, i in zip(terms, places, strict=True)]
    _contraction(op, of_operands, labels(right, len(op.outputs[0])), places)


def matmul(op: RuleMaker, places: tuple[int, int] = (0, 1)) -> None:
    if "equation" in op.attributes:
        einsum(op)
        return
    ranks = [len(op.input(place)) for place in places]
    most = max(2, *ranks)
    names = [f"b{i}" for i in range(most - 2)]
    left = ["i", "k"] if not op.attributes.get("transA") else ["k", "i"]
    right = ["k", "j"] if not op.attributes.get("transB") else ["j", "k"]
    left = [*names, *left][most - ranks[0] :] if ranks[0] > 1 else ["k"]
    right = [*names, *right][most - ranks[1] :] if ranks[1] > 1 else ["k"]
    result = [*names, *["i"] * (ranks[0] > 1), *["j"] * (ranks[1] > 1)]
    _contraction(op, (left, right), result, places)
    if any(op.has(place) and op.reads[place] is None for place in range(len(op.inputs))):
        _read_figures(op)


def gemm(op: RuleMaker) -> None:
    matmul(op)
    written = op.writes[0]
    if op.has(2) and written is not None:
        op.reads[2] = op.aligned(op.input(2), written)


def matmul_of_packed(op: RuleMaker) -> None:
    """A weight [columns, inner] that is stored in blocks, with figures for each block."""
    rows = op.factors("b", "parallel", op.outputs[0][:-1])
    inner, columns = (
        op.factor("k", "reduction", op.input(0)[-1]),
        op.factor("j", "parallel", op.outputs[0][-1]),
    )
    op.reads[0] = (*op.aligned(op.input(0)[:-1], rows), inner)
    op.reads[1] = (columns, inner)
    op.writes[0] = (*rows, columns)
    _read_figures(op)


def quantised_matmul(op: RuleMaker) -> None:
    matmul(op, (0, 3))


def _read_figures(op: RuleMaker) -> None:
    """Scales, zero points and a bias: along the columns, or whole."""
    written = op.writes[0]
    for place, shape in enumerate(op.inputs):
        if shape is None or op.reads[place] is not None or written is None:
            continue
        is_of_columns = len(shape) == 1 and shape[0] == op.outputs[0][-1]
        if is_of_columns or math.prod(shape) == 1:
            op.reads[place] = op.aligned(shape, written) if is_of_columns else tuple(() for _ in shape)
        else:  # figures for blocks of a weight, which are laid out with it
            op.reads[place] = tuple(() for _ in shape)


def recurrent(op: RuleMaker) -> None:
    """Layers of cells: sequences of a batch are independent."""
    of_batch = op.factor("n", "parallel", op.input(0)[1])
    rest: Callable[[str, Shape], Access] = lambda name, shape: op.factors(name, "whole", shape)  # noqa: E731
    op.reads[0] = (*rest("t", op.input(0)[:1]), of_batch, *rest("i", op.input(0)[2:]))
    for place in (4, 5, 6):
        if op.has(place):
            shape = op.input(place)
            of_shape = (
                (of_batch,)
                if place == 4
                else (*rest(f"s{place}_", shape[:1]), of_batch, *rest(f"h{place}_", shape[2:]))
            )
            op.reads[place] = op.aligned(shape, of_shape)
    op.read_whole()
    for place, shape in enumerate(op.outputs):
        op.writes[place] = op.aligned(
            shape, (*rest(f"y{place}_", shape[:-2]), of_batch, *rest(f"o{place}_", shape[-1:]))
        )
    if op.attributes.get("layout"):
        raise NoRuleError


def attention(op: RuleMaker) -> None:
    """Several products: samples are independent, and heads where they are an axis."""
    query, key, result = op.input(0), op.input(1), op.outputs[0]
    if len(query) != len(key) or len(query) not in (3, 4) or len(op.outputs) > 1:
        raise NoRuleError
    batch = op.factor("n", "parallel", result[0])
    if len(query) == 4:
        heads, groups = query[1], key[1]
        of_group, of_head = op.factor("g", "parallel", groups), op.factor("h", "parallel", heads // groups)
        rows = op.factor("i", "parallel", query[2])
        head = (*of_group, *of_head)
        op.reads[0] = (batch, head, rows, op.factor("k", "whole", query[3]))
        op.reads[1] = (batch, of_group, *op.factors("t", "whole", key[2:]))
        op.reads[2] = (batch, of_group, *op.factors("v", "whole", op.input(2)[2:]))
        op.writes[0] = (batch, head, rows, op.factor("o", "whole", result[3]))
        if op.has(3):
            op.reads[3] = op.aligned(
                op.input(3), (batch, head, rows, op.factor("m", "whole", op.input(3)[-1]))
            )
    else:
        rows = op.factor("i", "parallel", query[1])
        op.reads[0] = (batch, rows, op.factor("k", "whole", query[2]))
        op.reads[1] = (batch, *op.factors("t", "whole", key[1:]))
        op.reads[2] = (batch, *op.factors("v", "whole", op.input(2)[1:]))
        op.writes[0] = (batch, rows, op.factor("o", "whole", result[2]))
    op.read_whole()
