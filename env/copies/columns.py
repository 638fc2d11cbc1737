"""Which ops can be divided by columns or along the inner dimension, and which ops pass columns on.

A product of an activation and a weight, ``y[t, n] = sum over k of x[t, k] w[k, n]``, is divided by its
*columns* n, or by the terms k of its sums, its *inner dimension*. Columns that are not joined pass through
element-wise ops to a product that divides its sums alike (Megatron-LM: Shoeybi et al., 2019), and whole
*heads* of columns through attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import Final, NamedTuple

from go_opt.errors import PlanError
from go_opt.model.axes import kept_heads, row_shapes
from go_opt.model.graph import ACTIVATION, MATRIX, WEIGHT, Graph, OpRule
from go_opt.model.op_costs import is_elementwise
from go_opt.model.plan import Split
from go_opt.model.rule import factors_in, multiplicands

SPLITTABLE: Final = ("Conv", "Gemm", "MatMul")
SUMS: Final = ("Gemm", "MatMul")  # may be divided along the inner dimension


class Columns(NamedTuple):
    """The columns of an op, or its heads, for splitting it."""

    number: int  # of columns or heads of the output
    output: int  # tensor
    weights: tuple[int, ...]  # tensors with a slice for each part; the others are read whole
    activations: tuple[int, ...] = ()  # read in parts, which other ops wrote
    behind: Mapping[int, int] = MappingProxyType({})  # of heads: tensor -> elements between one and the next

    def run(self, tensor: int) -> int:
        """Elements of all columns or heads that lie side by side."""
        return self.number * self.behind.get(tensor, 1)


class Inner(NamedTuple):
    """The inner dimension of a product, for splitting it."""

    number: int  # of terms of each sum
    output: int  # tensor
    activation: int  # tensor with a slice for each part
    weight: int  # the same
    once: tuple[int, ...]  # tensors that the first part alone reads, such as a bias


def columns_of(graph: Graph, op: int) -> Columns | None:
    """The columns of the product ``op``, which its weight adds; None if it cannot be split by columns."""
    row, output = graph.rule_of(op), only_output(graph, op)
    is_product = graph.op_types[op] in SPLITTABLE and graph.op_class[op] == MATRIX
    if row is None or output is None or not is_product or graph.op_flops[op] <= 0:
        return None
    reads, rule = graph.reads_of(op), row.rule
    weights = [k for k, touched in reads if _is_whole_weight(graph, k, touched)]
    operands = _factors(row)
    of_weight = [operands[i][1] for i in multiplicands(rule) if operands[i][0] in weights]
    if len(of_weight) != 1 or len(weights) == len(reads):
        return None
    columns = of_weight[0] & factors_in(rule.results[0])
    number = rule.points(columns)
    if number < 2 or any(rule.factors[i].kind == "whole" for i in columns):
        return None
    divided = dict.fromkeys(k for k, factors in operands if k in weights and factors & columns)
    return Columns(number, output, tuple(divided))


def _factors(row: OpRule) -> list[tuple[int, set[int]]]:
    """The operands of an op with the factors that each runs over."""
    return [(k, factors_in(access)) for k, access in zip(row.operands, row.rule.operands, strict=True)]


def passed_columns(graph: Graph, op: int, number: int) -> Columns | None:
    """The columns of an element-wise op of which an operand has ``number`` columns; None if it mixes them.

    An operand with as many elements as the output has the same order of elements, whatever its views are.
    """
    output = only_output(graph, op)
    if output is None or not is_elementwise(graph.op_types[op]):
        return None
    elements = int(graph.tensor_elements[output])
    weights, activations = [], []
    for k, touched in graph.reads_of(op):
        size = int(graph.tensor_elements[k])
        if touched != size or elements % number:
            return None
        if graph.tensor_kind[k] == ACTIVATION and size == elements:
            activations.append(k)
        elif graph.tensor_kind[k] == WEIGHT and size in (number, elements) and _ends(graph, k, number):
            weights.append(k)
        elif size != 1:
            return None
    return Columns(number, output, tuple(weights), tuple(activations)) if activations else None


def heads_of(graph: Graph, op: int, parts: int) -> Columns | None:
    """The heads that ``op`` keeps apart; None if parts would not have as many, and two or more.

    A Transpose of one head may be a view, which is no op.
    """
    heads, output = kept_heads(graph).get(op), only_output(graph, op)
    if heads is None or output is None or heads.number % parts or heads.number < 2 * parts:
        return None
    read = [k for k, _ in graph.reads_of(op) if k in heads.behind]
    weights = tuple(k for k in read if graph.tensor_kind[k] == WEIGHT)
    activations = tuple(k for k in read if graph.tensor_kind[k] != WEIGHT)
    return Columns(heads.number, output, weights, activations, heads.behind) if activations else None


def inner_of(graph: Graph, op: int) -> Inner | None:
    """The inner dimension of ``op``; None if it is no product of an activation and one weight."""
    row, columns = graph.rule_of(op), columns_of(graph, op) if graph.op_types[op] in SUMS else None
    if row is None or columns is None:
        return None
    reads, rule = graph.reads_of(op), row.rule
    number = rule.points({i for i, factor in enumerate(rule.factors) if factor.kind == "reduction"})
    pair = [row.operands[i] for i in multiplicands(rule)]
    (weight,) = (k for k in pair if graph.tensor_kind[k] == WEIGHT)
    left = [k for k, _ in reads if graph.tensor_kind[k] != WEIGHT]
    is_whole = all(touched == graph.tensor_elements[k] for k, touched in reads)
    if number < 2 or not is_whole or len(left) != 1 or graph.tensor_kind[left[0]] != ACTIVATION:
        return None
    rows = int(graph.tensor_elements[columns.output]) // columns.number
    if graph.tensor_elements[left[0]] != rows * number:
        return None
    once = tuple(k for k, _ in reads if k not in (weight, left[0]))
    return Inner(number, columns.output, left[0], weight, once)


def lie_last(graph: Graph, tensor: int, number: int) -> bool:
    """Whether ``number`` columns lie along the last dimensions of all views of a tensor."""
    rows = int(graph.tensor_elements[tensor]) // number
    return rows == 1 or (_ends(graph, tensor, number) and rows % number != 0)


def held_columns(graph: Graph, splits: Mapping[int, Split]) -> dict[int, Columns]:
    """The columns of each op of ``splits`` that is split by columns or heads; ops of the graph in order.

    Raises:
      PlanError: an op cannot be split like that, or its parts are not joined although an op needs it whole.
    """
    found: dict[int, Columns] = {}
    held: dict[int, tuple[int, int]] = {}  # tensors in parts that are not joined: run of columns, parts
    takers: dict[int, list[int]] = {}  # of such tensors: ops whose parts read the same parts
    for op in sorted(splits):
        split, reads = splits[op], [k for k, _ in graph.reads_of(op)]
        if split.kind == "inner":
            inner = inner_of(graph, op)
            if inner and held.get(inner.activation) == (inner.number, split.parts):
                takers[inner.activation].append(op)
        if split.kind not in ("columns", "heads"):
            continue
        one = columns_of(graph, op) if split.kind == "columns" else heads_of(graph, op, split.parts)
        numbers = {held[k][0] for k in reads if k in held and held[k][1] == split.parts}
        if one is None and len(numbers) == 1 and split.kind == "columns":
            one = passed_columns(graph, op, *numbers)
        if one is None or any(held.get(k) != (one.run(k), split.parts) for k in one.activations):
            raise PlanError(f"splits: op {split.op!r} cannot be split by {split.kind}.", field="splits")
        found[op] = one
        for k in one.activations:
            takers[k].append(op)
        if not split.joined and (one.activations or lie_last(graph, one.output, one.number)):
            held[one.output], takers[one.output] = (one.run(one.output), split.parts), []
    for op, one in found.items():
        k = one.output
        readers = graph.readers_of(k)
        is_taken = bool(readers) and takers.get(k) == readers and not graph.tensor_is_output[k]
        if not (splits[op].joined or is_taken or stays_in_parts(graph, one)):
            where = f"splits: op {splits[op].op!r} is read by others than the host"
            raise PlanError(f"{where}, which need it whole.", field="splits")
    return found


def stays_in_parts(graph: Graph, columns: Columns) -> bool:
    """Whether only the host reads the output, so that it need not be joined."""
    k = columns.output
    return bool(graph.tensor_is_output[k]) and graph.reader_ptr[k] == graph.reader_ptr[k + 1]


def split_sizes(count: int, parts: int) -> list[int]:
    """Columns of each part: as equal as possible, the larger first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def _is_whole_weight(graph: Graph, tensor: int, touched: int) -> bool:
    return graph.tensor_kind[tensor] == WEIGHT and touched == graph.tensor_elements[tensor]


def _ends(graph: Graph, tensor: int, number: int) -> bool:
    """Whether the last dimensions of a tensor have ``number`` elements; False if they are not known."""
    return number in accumulate(reversed(row_shapes(graph).get(tensor, ())), mul)


def only_output(graph: Graph, op: int) -> int | None:
    """The output of an op with one, unless the seconds of its parts are not known."""
    outputs = graph.outputs_of(op)
    return None if len(outputs) != 1 or graph.is_measured(op) else outputs[0]
