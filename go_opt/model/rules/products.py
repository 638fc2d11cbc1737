"""Rules of contractions, and of layers that are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from go_opt.model.rule import Access, Dimension, FactorKind, Shape
from go_opt.model.rules.maker import NoRuleError, RuleMaker


def _contraction(
    op: RuleMaker,
    terms: Sequence[Sequence[str]],
    result: Sequence[str],
    places: Sequence[int],
    whole: Sequence[str] = (),
) -> None:
    """An Einsum: the labels of the operands at ``places`` and of the result, and those not to be divided."""
    sizes: dict[str, int] = {}
    for term, place in zip(terms, places, strict=True):
        for label, size in zip(term, op.input(place), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    of_label = {
        label: op.factor(
            label, "whole" if label in whole else "parallel" if label in result else "reduction", size
        )
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


# Quantised products: which operand the figures from a place on belong to, (left, right, result).
_LEFT, _RIGHT, _RESULT = range(3)
_FIGURES: Final[Mapping[str, Mapping[int, int]]] = {
    "DynamicQuantizeMatMul": {2: _RIGHT, 3: _RIGHT},
    "MatMulInteger": {2: _LEFT, 3: _RIGHT},
    "MatMulIntegerToFloat": {2: _LEFT, 3: _RIGHT, 4: _LEFT, 5: _RIGHT},
    "QLinearMatMul": {1: _LEFT, 2: _LEFT, 4: _RIGHT, 5: _RIGHT, 6: _RESULT, 7: _RESULT},
}


def matmul(op: RuleMaker) -> None:
    if "equation" in op.attributes:
        einsum(op)
        return
    if op.attributes.get("transBatchA") or op.attributes.get("transBatchB"):
        raise NoRuleError
    places = (0, 3) if op.op_type == "QLinearMatMul" else (0, 1)
    ranks = [len(op.input(place)) for place in places]
    most = max(2, *ranks)
    names = [f"b{i}" for i in range(most - 2)]
    left = ["i", "k"] if not op.attributes.get("transA") else ["k", "i"]
    right = ["k", "j"] if not op.attributes.get("transB") else ["j", "k"]
    left = [*names, *left][most - ranks[0] :] if ranks[0] > 1 else ["k"]
    right = [*names, *right][most - ranks[1] :] if ranks[1] > 1 else ["k"]
    result = [*names, *["i"] * (ranks[0] > 1), *["j"] * (ranks[1] > 1)]
    whole: Sequence[str] = ()
    if op.op_type == "QLinearMatMul" or op.attributes.get("activation"):
        whole = ["k"]  # the sum is rounded, or goes through a function
    elif op.op_type == "DynamicQuantizeMatMul":
        whole = left  # the scale is that of the whole operand
    _contraction(op, (left, right), result, places, whole)
    _read_figures(op, places)


def _read_figures(op: RuleMaker, places: Sequence[int]) -> None:
    """Scales and zero points: one, for each row or column, or broadcast to an operand; a bias."""
    matrices = (op.reads[places[0]], op.reads[places[1]], op.writes[0])
    for place in range(len(op.inputs)):
        if op.has(place) and op.reads[place] is None:
            shape, of = op.input(place), _FIGURES.get(op.op_type, {}).get(place)
            matrix = matrices[_RESULT if of is None else of] or ()
            is_of_rows = of in (_LEFT, _RESULT) and len(shape) == 1
            op.reads[place] = op.aligned(shape, matrix[-2:-1] if is_of_rows else matrix)
            if op.op_type == "MatMul" and math.prod(shape) > 1:
                raise NoRuleError  # scales of rows or blocks, of which operand is not known


def matmul_of_packed(op: RuleMaker) -> None:
    """A weight [columns, inner] that is stored in blocks of its rows, with figures [columns, blocks]."""
    inner, columns = op.input(0)[-1], op.outputs[0][-1]
    rows, of_columns = op.factors("b", "parallel", op.outputs[0][:-1]), op.factor("j", "parallel", columns)
    block = op.attributes.get("block_size") or inner
    is_ordered = op.op_type == "MatMulNBits" and op.has(4)  # the block of each inner element is listed
    is_divided = "block_size" in op.attributes and inner % block == 0 and not is_ordered
    kind: FactorKind = "reduction" if is_divided else "whole"
    blocks = (
        op.factor("k", kind, inner // block) if is_divided else op.factor("c", "whole", -(-inner // block))
    )
    of_inner = (*blocks, *op.factor("l", kind, block)) if is_divided else op.factor("k", kind, inner)
    op.reads[0] = (*op.aligned(op.input(0)[:-1], rows), of_inner)
    op.reads[1], op.writes[0] = (of_columns, of_inner), (*rows, of_columns)
    op.packed |= {1, 2, 3}
    figures = (2, 3) if op.op_type == "MatMulNBits" else (2,) if op.op_type == "MatMulBnb4" else ()
    if op.op_type == "MatMulBnb4" and not is_divided:
        raise NoRuleError  # blocks go over the ends of rows
    for place in figures:
        if op.has(place):
            op.reads[place] = (of_columns, blocks)
    if op.op_type == "MatMulNBits" and op.has(5):
        op.reads[5] = (of_columns,)
    op.read_whole()


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
    """Several products: samples and heads are independent, and rows unless a mask goes by their number.

    Queries are [batch, heads, rows, width] or [batch, rows, heads * width]. Keys may have fewer heads, one
    for each group of heads.
    """
    query, key, value, result = op.input(0), op.input(1), op.input(2), op.outputs[0]
    is_joined, is_ours = len(query) == 3, op.op_type == "Attention"
    if len(query) != len(key) or len(query) not in (3, 4):
        raise NoRuleError
    heads = query[1] if not is_joined else op.attributes.get("q_num_heads" if is_ours else "num_heads", 1)
    groups = key[1] if not is_joined else op.attributes.get("kv_num_heads", heads)
    is_causal = op.attributes.get("is_causal") or op.attributes.get("unidirectional")
    # A bias of queries, keys and values, one after another, has heads as an axis if all are as wide.
    has_bias = not is_ours and op.has(3)
    is_uneven = has_bias and op.input(3) != (3 * query[-1],)
    batch = op.factor("n", "parallel", result[0])
    group = op.factor("g", "whole" if is_uneven else "parallel", groups)
    keeps = len(op.outputs) > 1  # keys and values of all heads of a group and of all rows
    head = (*group, *op.factor("h", "whole" if keeps else "parallel", heads // groups))
    rows = op.factor("i", "whole" if is_causal or keeps else "parallel", query[-2])
    of_keys, of_values = op.factor("t", "whole", key[-2]), op.factor("u", "whole", value[-2])
    joined, joined_groups = (heads, groups) if is_joined else (1, 1)
    widths = [
        op.factor(name, "whole", shape[-1] // number)
        for name, shape, number in zip(
            "klvo",
            (query, key, value, result),
            (joined, joined_groups, joined_groups, joined),
            strict=True,
        )
    ]

    def access(of_heads: Dimension, of_rows: Dimension, width: Dimension) -> Access:
        return (batch, of_rows, (*of_heads, *width)) if is_joined else (batch, of_heads, of_rows, width)

    op.reads[0], op.writes[0] = access(head, rows, widths[0]), access(head, rows, widths[3])
    op.reads[1], op.reads[2] = access(group, of_keys, widths[1]), access(group, of_values, widths[2])
    for place, shape in enumerate(op.outputs[1:], start=1):
        if len(shape) != 4 or place > 2:
            raise NoRuleError
        op.writes[place] = op.aligned(shape[:2], (batch, group)) + op.factors(
            f"y{place}_", "whole", shape[2:]
        )
    if is_uneven:
        op.reads[3] = op.factors("b", "whole", op.input(3))
    elif has_bias:
        op.reads[3] = ((*op.factor("b", "whole", 3), *head, *widths[0]),)
    for place in range(3, len(op.inputs)):
        if op.has(place) and op.reads[place] is None:
            op.reads[place] = _beside_attention(op, place, (batch, group, head, rows))


def grouped_attention(op: RuleMaker) -> None:
    """ONNX Runtime's GroupQueryAttention: each head of keys and values serves a group of heads of queries.

    Queries are [batch, rows, heads * width], with keys and values behind them if these are no inputs of their
    own; past and present are [batch, heads of keys, rows, width]. Samples are independent, and groups unless
    queries, keys and values are packed. Rows see none behind them.
    """
    query, result = op.input(0), op.outputs[0]
    heads = op.attributes["num_heads"]
    groups, is_packed = op.attributes.get("kv_num_heads", heads), not op.has(1)
    if len(query) != 3 or len(result) != 3:
        raise NoRuleError
    batch = op.factor("n", "parallel", result[0])
    group = op.factor("g", "whole" if is_packed else "parallel", groups)
    member, rows = op.factor("h", "whole", heads // groups), op.factor("i", "whole", result[1])
    width = op.factor("k", "whole", result[2] // heads)
    op.writes[0] = (batch, rows, (*group, *member, *width))
    op.reads[0] = (batch, rows, op.factor("p", "whole", query[2])) if is_packed else op.writes[0]
    for place in (1, 2):
        if op.has(place):
            shape = op.input(place)
            of_key = op.factor("lo"[place - 1], "whole", shape[2] // groups)
            op.reads[place] = (batch, op.factor("tu"[place - 1], "whole", shape[1]), (*group, *of_key))
    for place in (3, 4):
        if op.has(place):
            shape = op.input(place)
            kept = op.factors(f"w{place}_", "whole", shape[2:])
            op.reads[place] = op.aligned(shape[:2], (batch, group)) + kept
    for place, shape in enumerate(op.outputs[1:], start=1):
        if len(shape) != 4 or place > 2:
            raise NoRuleError
        kept = op.factors(f"y{place}_", "whole", shape[2:])
        op.writes[place] = op.aligned(shape[:2], (batch, group)) + kept
    for place in (5, 9, 10):  # lengths, positions, a bias of scores
        if op.has(place) and (shape := op.input(place)):
            first = op.exact(shape[0], batch) if shape[0] > 1 else ()
            heads_of = [op.aligned(shape[1:2], ((*group, *member),))[0]] if place == 10 else []
            rest = op.factors(f"w{place}_", "whole", shape[1 + len(heads_of) :])
            op.reads[place] = (first, *heads_of, *rest)
    if op.has(11):  # a score of each head that no key has
        op.reads[11] = op.aligned(op.input(11), ((*group, *member),))
    op.read_whole()


def _beside_attention(op: RuleMaker, place: int, seen: tuple[Dimension, ...]) -> Access:
    """A mask, a bias, or keys and values of the past."""
    (batch, group, head, rows), shape = seen, op.input(place)
    mask = 3 if op.op_type == "Attention" else 5
    if len(shape) == 4 and place != mask:
        return op.aligned(shape[:2], (batch, group)) + op.factors(f"w{place}_", "whole", shape[2:])
    last = op.factor(f"w{place}_", "whole", shape[-1])
    if place == mask:
        return op.aligned(shape, (batch, head, rows, last))
    between = (rows,) if len(shape) == 3 else ()
    return (op.exact(shape[0], batch), *between, *((last,) if len(shape) > 1 else ()))
