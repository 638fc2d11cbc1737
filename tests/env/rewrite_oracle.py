"""Evaluates graphs over a prime field by what their ops are, as sent and rewritten.

A product is the sum that its rule says, scales and shifts are what they are, and a function of one element is
some polynomial. What a rewrite makes of weights is derived here from their elements one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.model.graph import NO_PRODUCER, Graph, OpRule, Rewrite
from go_opt.model.rule import NO_FACTOR, Access, Affine, Rule, factors_in

PRIME: Final = 2**31 - 1
Numbers = NDArray[np.int64]
Values = dict[str, Numbers]
_PRODUCTS: Final = ("Conv", "Einsum", "Gemm", "MatMul")


def random_values(graph: Graph, seed: int) -> Values:
    """The elements of inputs and weights by name."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(1, PRIME, int(graph.tensor_elements[k]))
        for k, name in enumerate(graph.tensor_names)
        if graph.tensor_producer[k] == NO_PRODUCER
    }


def evaluated(graph: Graph, given: Mapping[str, Numbers]) -> Values:
    """The elements of every tensor."""
    values = dict(given)
    for op, op_type in enumerate(graph.op_types):
        row = graph.known_rule_of(op)
        operands = [values[graph.tensor_names[k]] for k in row.operands]
        if op_type == "Split":
            results = _parted(row, operands[0])
        elif op_type == "Concat":
            results = [_joined(row, operands)]
        elif op_type in _PRODUCTS:
            results = [_product(row.rule, operands)]
        else:
            read = zip(operands, row.rule.operands, strict=True)
            seen = [one[_places(row.rule, access)] for one, access in read]
            result = np.zeros(int(graph.tensor_elements[row.results[0]]), np.int64)
            result[_places(row.rule, row.rule.results[0])] = _FUNCTIONS[op_type](*seen)
            results = [result]
        values |= {graph.tensor_names[k]: one for k, one in zip(row.results, results, strict=True)}
    return values


def inverse(x: Numbers) -> Numbers:
    """1 / x, by Fermat."""
    return np.array([pow(int(one), PRIME - 2, PRIME) for one in x.ravel()]).reshape(x.shape)


def _normalised(x: Numbers, gamma: Numbers, beta: Numbers, mean: Numbers, scale: Numbers) -> Numbers:
    """The variance is read as the reciprocal root that it becomes."""
    return ((x - mean) % PRIME * (gamma * scale % PRIME) + beta) % PRIME


_FUNCTIONS: Final[Mapping[str, Callable[..., Numbers]]] = {
    "Add": lambda x, y: (x + y) % PRIME,
    "Sub": lambda x, y: (x - y) % PRIME,
    "Mul": lambda x, y: x * y % PRIME,
    "Div": lambda x, y: x * inverse(y) % PRIME,
    "BatchNormalization": _normalised,
    "Relu": lambda x: (x * x % PRIME + 5) % PRIME,
    "Tanh": lambda x: (x * x % PRIME * x % PRIME + 11) % PRIME,
    "Softmax": lambda x: (x * x % PRIME + 3) % PRIME,  # here some function of each element
    "Transpose": lambda x: x,
}


def _grid(rule: Rule) -> Numbers:
    """[factors, points] every point of the loops."""
    sizes = [factor.size for factor in rule.factors]
    return np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), np.int64)


def _places(rule: Rule, access: Access, grid: Numbers | None = None) -> Numbers:
    """[points] the element that each point reads or writes; -1: padding."""
    at = _grid(rule) if grid is None else grid
    place, is_inside = np.zeros(at.shape[1], np.int64), np.ones(at.shape[1], np.bool_)
    for piece in (piece for dimension in access for piece in dimension):
        if isinstance(piece, Affine):
            of = [0 if factor == NO_FACTOR else at[factor] for factor in (piece.factor, piece.window)]
            index = piece.stride * of[0] + piece.dilation * of[1] - piece.before
            is_inside &= (index >= 0) & (index < piece.size)
        else:
            index = at[piece]
        place = place * rule.size(piece) + index
    return np.where(is_inside, place, -1)


def _product(rule: Rule, operands: Sequence[Numbers]) -> Numbers:
    terms = np.ones(_grid(rule).shape[1], np.int64)
    for values, access in zip(operands[:2], rule.operands[:2], strict=True):
        place = _places(rule, access)
        terms = terms * np.where(place < 0, 0, values[place]) % PRIME
    to = _places(rule, rule.results[0])
    result = np.zeros(math.prod(rule.shape(rule.results[0])), np.int64)
    np.add.at(result, to, terms)
    if len(operands) > 2:
        bias = np.zeros_like(result)
        bias[to] = operands[2][_places(rule, rule.operands[2])]
        result = result + bias
    return result % PRIME


def _parted(row: OpRule, values: Numbers) -> list[Numbers]:
    whole = row.rule.shape(row.rule.operands[0])
    shapes = [row.rule.shape(access) for access in row.rule.results]
    axis = next(i for i, size in enumerate(whole) if size != shapes[0][i])
    stops = np.cumsum([shape[axis] for shape in shapes])[:-1]
    return [one.ravel() for one in np.split(values.reshape(whole), stops, axis)]


def _joined(row: OpRule, values: Sequence[Numbers]) -> Numbers:
    shapes, whole = map(row.rule.shape, row.rule.operands), row.rule.shape(row.rule.results[0])
    arrays = [one.reshape(shape) for one, shape in zip(values, shapes, strict=True)]
    axis = next(i for i, size in enumerate(whole) if size != arrays[0].shape[i])
    return np.concatenate(arrays, axis).ravel()


def rewritten_values(sent: Graph, made: Graph, rewrites: Sequence[Rewrite], given: Values) -> Values:
    """The inputs and weights of a rewritten graph, from those of the graph as sent.

    Args:
      made: the graph after the first, after the second of ``rewrites``, …: here, after all of them.
    """
    values = dict(given)
    for one in rewrites:
        if one.rule == "fold":
            _fold(sent, one, values)
    for one in rewrites:
        if one.rule == "merge":
            _merge(sent, made, one, values)
    return {name: one for name, one in values.items() if name in made.tensor_index}


def _fold(sent: Graph, one: Rewrite, values: Values) -> None:
    product, *affine = (sent.op_index[name] for name in one.ops)
    row = sent.known_rule_of(product)
    rule = row.rule
    shared = factors_in(rule.operands[1]) & factors_in(rule.results[0])
    columns = sorted(shared, key=_flat(rule.results[0]).index)
    count = math.prod(rule.factors[i].size for i in columns)
    names = [sent.tensor_names[k] for k in row.operands]
    scale = np.ones(count, np.int64)
    shift = values[names[2]] if len(names) > 2 else np.zeros(count, np.int64)
    tensor = row.results[0]
    for op in affine:
        of = sent.known_rule_of(op)
        place = of.operands.index(tensor)
        given = [np.resize(values.get(sent.tensor_names[k], 0), count) for k in of.operands]
        unit, nothing = np.ones(count, np.int64), np.zeros(count, np.int64)
        at = [_FUNCTIONS[sent.op_types[op]](*given[:place], x, *given[place + 1 :]) for x in (nothing, unit)]
        factor = (at[1] - at[0]) % PRIME
        scale, shift = scale * factor % PRIME, (shift * factor + at[0]) % PRIME
        tensor = of.results[0]
    at = _places(rule, rule.operands[1])
    column = np.zeros_like(at)
    for factor in columns:
        column = column * rule.factors[factor].size + _grid(rule)[factor]
    weight = values[names[1]].copy()
    weight[at] = values[names[1]][at] * scale[column] % PRIME
    values |= {f"{one.ops[0]}/folded weight": weight, f"{one.ops[0]}/folded bias": shift}
    for k in sent.known_rule_of(affine[-1]).results:
        values.pop(sent.tensor_names[k], None)


def _merge(sent: Graph, made: Graph, one: Rewrite, values: Values) -> None:
    """Joined constants, along the dimension that has the columns."""
    heads = [name for name in one.ops if sent.op_types[sent.op_index[name]] in _PRODUCTS]
    length = len(one.ops) // len(heads)
    for step in range(length):
        alike = one.ops[step::length]
        rows = [made_row for name in alike if (made_row := _row_before(sent, values, name))]
        joined = made.known_rule_of(made.op_index[f"{alike[0]} and {len(heads) - 1} more"])
        for i, (k, access) in enumerate(zip(joined.operands, joined.rule.operands, strict=True)):
            name = made.tensor_names[k]
            if not name.endswith(f"/operand {i}"):
                continue
            shapes = [row.shape(row.operands[i]) for row, _ in rows]
            axis = next(a for a, sizes in enumerate(zip(*shapes, joined.rule.shape(access), strict=True))
                        if sizes[-1] != sizes[0])  # fmt: skip
            arrays = [values[names[i]].reshape(shape) for (_, names), shape in zip(rows, shapes, strict=True)]
            values[name] = np.concatenate(arrays, axis).ravel()


def _row_before(sent: Graph, values: Values, name: str) -> tuple[Rule, list[str]]:
    """The rule of an op, folded or not, and the names of its operands."""
    row = sent.known_rule_of(sent.op_index[name])
    names, rule = [sent.tensor_names[k] for k in row.operands], row.rule
    if f"{name}/folded bias" in values:
        scaled = f"{name}/folded weight"
        names = [names[0], scaled, f"{name}/folded bias"]
        if len(rule.operands) < 3:
            columns = factors_in(rule.operands[1]) & factors_in(rule.results[0])
            rule = rule._replace(operands=(*rule.operands, (tuple(columns),)))
    return rule, names


def _flat(access: Access) -> list[int | Affine]:
    return [piece for dimension in access for piece in dimension]
