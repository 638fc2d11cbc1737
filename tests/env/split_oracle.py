"""Evaluates graphs over a prime field from sharding rules alone, whole or with ops in parts.

An op is any function that its rule allows: a sum of products over reductions, and along axes that are not
divided a mixture in which each place has a factor of its own. A tensor of a split graph holds some elements
of a tensor of the whole graph; a part that lacks an element which its rule says it reads is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.env.copies.divisions import JOINED_BY
from go_opt.env.copies.parts import SplitGraph
from go_opt.env.copies.pieces import Piece, Range
from go_opt.env.copies.splits import JOIN, TAKE
from go_opt.model.graph import NO_PRODUCER, STATE, Graph
from go_opt.model.plan import CollectiveOp
from go_opt.model.rule import NO_FACTOR, Access, Affine, Rule, factors_in

PRIME: Final = 2**31 - 1
ABSENT: Final = -1
NOTHING: Final = -1  # what a tensor holds that has no elements, and only puts ops in order
Numbers = NDArray[np.int64]  # the elements of a tensor; those that it does not hold are ABSENT
_ADDED: Final = (
    "Conv",
    "Gemm",
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "ScatterND",
)  # what is no factor is added once


def whole_values(graph: Graph) -> list[Numbers]:
    """The elements of each tensor [K]."""
    values = [_given(graph, k) for k in range(graph.num_tensors)]
    for op in range(graph.num_ops):
        row = graph.rule_of(op)
        assert row is not None
        operands = [values[k] for k in row.operands]
        for k, found in zip(row.results, _of_part(graph, op, (), operands), strict=True):
            values[k] = found
    return values


def split_outputs(graph: Graph, split: SplitGraph) -> list[tuple[tuple[int, bool], Numbers]]:
    """What is left: of which tensor of the whole graph, and the elements that it holds.

    The host reads outputs (False); the next inference reads the next values of states (True).
    """
    after, held = split.graph, split.held
    names = after.tensor_names
    content = [held[name].tensor if name in held else graph.tensor_index.get(name, NOTHING) for name in names]
    values = []
    for i, k in enumerate(content):
        name, given = after.tensor_names[i], _given(graph, k) if k != NOTHING else np.zeros(0, np.int64)
        piece = held[name].piece if name in held else ()
        values.append(np.where(_is_in(piece, len(given)), given, ABSENT))
    for op in range(after.num_ops):
        name, outputs = after.op_names[op], after.outputs_of(op)
        read = [k for k, _ in after.reads_of(op)]
        if name in split.parts:
            part = split.parts[name]
            found = _part_of(graph, part.op, part.ranges, read, content, values)
        elif _is_unchanged(graph, split, name):
            found = _part_of(graph, graph.op_index[name], (), read, content, values)
        else:
            found = {}
            for k in (one for one in outputs if after.tensor_elements[one]):
                written = after.tensor_names[k]
                piece = held[written].piece if written in held else ()
                producer = graph.op_types[graph.tensor_producer[content[k]]]
                read = [one for one, touched in after.reads_of(op) if touched and content[one] == content[k]]
                sources = [values[one] for one in read]
                found[content[k]] = _moved(after.op_types[op], sources, piece, producer)
        for k in outputs:
            values[k] = found.get(content[k], values[k])
    for k in range(after.num_tensors):
        assert (values[k] != ABSENT).sum() == after.tensor_elements[k], after.tensor_names[k]
    for op in range(after.num_ops):
        for k, touched in after.reads_of(op):
            is_order = touched == 0 and (after.tensor_kind[k] == STATE or after.tensor_elements[k] == 0)
            assert is_order or 0 < touched <= after.tensor_elements[k], (op, after.tensor_names[k])
    left = [(False, k) for k in np.flatnonzero(after.tensor_is_output).tolist()]
    left += dict.fromkeys((True, state.next) for state in after.states)
    return [((content[k], is_next), values[k]) for is_next, k in left]


def _is_unchanged(graph: Graph, split: SplitGraph, name: str) -> bool:
    divided = {part.op for part in split.parts.values()}
    return name in graph.op_index and graph.op_index[name] not in divided


def _given(graph: Graph, k: int) -> Numbers:
    """Random numbers of an input or weight, and of a tensor that is not computed yet none."""
    elements = int(graph.tensor_elements[k])
    if graph.tensor_producer[k] != NO_PRODUCER:
        return np.full(elements, ABSENT)
    return np.random.default_rng([k, elements]).integers(0, PRIME, elements)


def _is_in(piece: Piece, elements: int) -> NDArray[np.bool_]:
    place = np.arange(elements)
    inside = np.ones(elements, np.bool_)
    for cut in piece:
        inside &= (cut.start <= place % cut.period) & (place % cut.period < cut.stop)
    return inside


def _moved(op_type: str, sources: Sequence[Numbers], piece: Piece, producer: str) -> Numbers:
    """What takes, joins, adds or exchanges: the elements of ``piece`` that are written.

    Args:
      producer: the type of the op whose results they are.
    """
    inside = _is_in(piece, len(sources[0]))
    is_held = np.array([one != ABSENT for one in sources])
    if op_type == CollectiveOp.SEND:
        assert len(sources) == 1
        assert (is_held[0] == inside).all(), "not handed over as it is"
        return sources[0]
    if op_type in ("AllGather", "AllToAll"):
        assert (is_held.sum(0) == 1).all(), "elements are exchanged twice, or missing"
        return np.where(inside, np.max(sources, axis=0), ABSENT)
    if op_type in ("AllReduce", "ReduceScatter"):
        assert is_held.all(), "an element is missing"
        assert len(sources) > 1
        slices = [np.where(inside, one, ABSENT) for one in sources]
        return _moved(JOINED_BY[producer], slices, piece, producer)
    if op_type == JOIN:
        assert (is_held.sum(0) == inside).all(), "elements are joined twice, or missing"
        return np.max(sources, axis=0)
    assert is_held[:, inside].all(), "an element is missing"
    if op_type == TAKE:
        assert len(sources) == 1
        return np.where(inside, sources[0], ABSENT)
    assert (is_held == inside).all(), "sums of different elements"
    joined = {"Add": lambda x: np.sum(x, axis=0) % PRIME, "Max": lambda x: np.max(x, axis=0)}[op_type]
    return np.where(inside, joined(sources), ABSENT)


def _part_of(
    graph: Graph, op: int, ranges: tuple[Range, ...], read: Sequence[int], content: Sequence[int],
    values: Sequence[Numbers],
) -> Mapping[int, Numbers]:  # fmt: skip
    row = graph.rule_of(op)
    assert row is not None
    of_tensor: dict[int, Numbers] = {}
    for k in read:
        before = of_tensor.get(content[k], np.full(len(values[k]), ABSENT))
        of_tensor[content[k]] = np.where(values[k] != ABSENT, values[k], before)
    nothing = np.full(0, ABSENT)
    operands = [of_tensor.get(k, nothing) for k in row.operands]
    return dict(zip(row.results, _of_part(graph, op, ranges, operands), strict=True))


def _of_part(graph: Graph, op: int, ranges: tuple[Range, ...], operands: Sequence[Numbers]) -> list[Numbers]:
    """The results of the points of an op within ranges, absent elsewhere."""
    row, op_type = graph.rule_of(op), graph.op_types[op]
    assert row is not None
    rule, cut = row.rule, {one.factor: (one.start, one.stop) for one in ranges}
    grid = np.ix_(*(np.arange(*cut.get(i, (0, one.size))) for i, one in enumerate(rule.factors)))
    summed = {i for i, one in enumerate(rule.factors) if one.kind == "reduction"}
    is_sum = bool(summed) and op_type in JOINED_BY
    is_first = all(cut.get(i, (0, 0))[0] == 0 for i in summed)
    of_terms: list[Any] = []
    of_rest: list[Any] = []
    for i, (access, values) in enumerate(zip(rule.operands, operands, strict=True)):
        is_added = is_sum and op_type in _ADDED and not factors_in(access) & summed
        if is_added and not is_first:
            continue
        read = _read(rule, access, values, grid)
        mixed = _mixed(rule, factors_in(access), read, grid, seed=(op, i))
        (of_rest if is_added else of_terms).append(mixed)
    written = set().union(*map(factors_in, rule.results))
    other = [i for i in range(len(rule.factors)) if i not in written]
    if is_sum:
        found = np.ones((), np.int64)
        for one in of_terms:
            found = found * one % PRIME
        found = _joined(found, other, op_type)
        for one in of_rest:
            found = _joined_two(found, _joined(one, other, "Add"), op_type)
    else:
        found = np.ones((), np.int64)
        for i, one in enumerate(of_terms):
            found = found * (_joined(one, other, "Add") + i + 1) % PRIME
    results = []
    for r, (k, access) in enumerate(zip(row.results, rule.results, strict=True)):
        mine = _mixed(rule, factors_in(access), found, grid, seed=(op, r, 0))
        index, _ = _index(rule, access, grid)
        result = np.full(int(graph.tensor_elements[k]), ABSENT)
        result[index] = mine
        results.append(result)
    return results


def _joined(values: Any, axes: Sequence[int], op_type: str) -> Any:
    for axis in axes if values.ndim else ():
        joined = np.max if JOINED_BY.get(op_type) == "Max" else np.sum
        values = joined(values, axis=axis, keepdims=True) % PRIME
    return values


def _joined_two(one: Any, other: Any, op_type: str) -> Any:
    return np.maximum(one, other) if JOINED_BY[op_type] == "Max" else (one + other) % PRIME


def _mixed(rule: Rule, factors: set[int], values: Any, grid: tuple[Any, ...], seed: tuple[int, ...]) -> Any:
    """Values times numbers that belong to each place along the factors that are not divided."""
    for i in factors:
        if rule.factors[i].kind == "whole":
            numbers = np.random.default_rng([*seed, i]).integers(1, PRIME, rule.factors[i].size)
            values = values * numbers[grid[i]] % PRIME
    return values


def _index(rule: Rule, access: Access, grid: tuple[Any, ...]) -> tuple[Any, Any]:
    """Of the points of a grid: the elements that they read, and whether these are no padding."""
    index: Any = np.zeros((1,) * len(grid), np.int64)
    inside: Any = np.ones((1,) * len(grid), np.bool_)
    for piece in (piece for dimension in access for piece in dimension):
        if isinstance(piece, Affine):
            along = 0 if piece.factor == NO_FACTOR else grid[piece.factor]
            within = 0 if piece.window == NO_FACTOR else grid[piece.window]
            place = piece.stride * along + piece.dilation * within - piece.before
            inside = inside & (place >= 0) & (place < piece.size)
        else:
            place = grid[piece]
        index = index * rule.size(piece) + place
    return index, inside


def _read(rule: Rule, access: Access, values: Numbers, grid: tuple[Any, ...]) -> Any:
    index, inside = _index(rule, access, grid)
    index, inside = np.broadcast_arrays(index, inside)
    found = np.zeros(index.shape, np.int64)
    needed = index[inside]
    assert ABSENT not in values[needed], "an element is not read"
    found[inside] = values[needed]
    return found
