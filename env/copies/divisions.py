"""Along which factors ops can be divided, and where the parts of each op end.

Any parallel factor, or one that an image is read along through windows, divides an op into parts that write
pieces of its results; a reduction divides it into parts that write partial results, which are added. Ops
that are divided alike read each other's parts, if the cuts of the tensor between them have the same period:
columns pass through element-wise ops to a product that divides its sums (Megatron-LM: Shoeybi et al., 2019),
heads through attention, rows through an image model. Parts are *skewed*: the same part of a reader needs
nothing of the next part, so that halos pass from a part to later ones and no element is computed twice
(skewed tiling of loops: Wolf and Lam, PLDI 1991).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.env.copies.pieces import Range, piece_of, reach_of
from go_opt.errors import PlanError
from go_opt.model.graph import ACTIVATION, MATRIX, WEIGHT, Graph, OpRule
from go_opt.model.plan import Split
from go_opt.model.rule import Access, Affine, Place, Rule, multiplicands, places

# Ops whose partial results are added, or joined by another op.
JOINED_BY: Final[Mapping[str, str]] = {
    "Conv": "Add", "Gemm": "Add", "MatMul": "Add", "ReduceMax": "Max", "ReduceMin": "Min", "ReduceSum": "Add",
}  # fmt: skip
_BIASED: Final = ("Conv", "Gemm")  # what others read beside the operands of a product may be a scale
_WINDOWED: Final = ("AveragePool", "Conv", "MaxPool")  # whose padding can be that of a part
_SIZED: Final = ("Resize", "Upsample")  # their arguments are sizes of the whole result
# Factors that an attribute counts, by the letters of their names, where parts would be another op.
_COUNTED: Final[Mapping[str, str]] = {"DepthToSpace": "b", "SpaceToDepth": "b"}


class Division(NamedTuple):
    """One factor of an op along which it is divided."""

    op: int
    factor: int
    parts: int
    joined: bool = True  # False: parts of its readers that are divided alike end with its parts


@lru_cache(maxsize=16)
def divisible_factors(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """For each op [N], the factors along which it can be divided."""
    return tuple(
        ()
        if (row := graph.rule_of(op)) is None or graph.is_measured(op) or graph.op_types[op] in _SIZED
        else tuple(i for i in range(len(row.rule.factors)) if _can_be_divided(graph, op, row, i))
        for op in range(graph.num_ops)
    )


def _can_be_divided(graph: Graph, op: int, row: OpRule, factor: int) -> bool:
    rule, op_type = row.rule, graph.op_types[op]
    kind = rule.factors[factor].kind
    if kind == "whole" or not row.results or rule.factors[factor].name[0] in _COUNTED.get(op_type, ""):
        return False
    read = [place for access in rule.operands if (place := _place_in(rule, access, factor)) is not None]
    if not read or any(_is_window(access, factor) for access in rule.operands):
        return False
    pieces = [place.piece for place in read if isinstance(place.piece, Affine)]
    if pieces and (op_type not in _WINDOWED or any(piece.before < 0 for piece in pieces)):
        return False
    return kind != "reduction" or _is_sum(graph, op, row, factor)


def _is_sum(graph: Graph, op: int, row: OpRule, factor: int) -> bool:
    """Whether the results of an op are sums of the results of its parts along a reduction."""
    rule, op_type = row.rule, graph.op_types[op]
    if op_type not in JOINED_BY or len(row.results) > 1:
        return False
    multiplied = multiplicands(rule)
    is_product = all(_place_in(rule, rule.operands[i], factor) for i in multiplied) and (
        len(multiplied) == len(rule.operands) or op_type in _BIASED
    )
    return graph.op_class[op] != MATRIX or (len(multiplied) == 2 and is_product)


def _is_window(access: Access, factor: int) -> bool:
    return any(isinstance(one, Affine) and one.window == factor for dimension in access for one in dimension)


def _place_in(rule: Rule, access: Access, factor: int) -> Place | None:
    """Where a factor lies in an operand or result, maybe read through a window."""
    for place in places(rule, access):
        if (place.piece.factor if isinstance(place.piece, Affine) else place.piece) == factor:
            return place
    return None


def period_in(row: OpRule, tensor: int, factor: int) -> int:
    """The period of cuts along a factor in a tensor of the op; 0 if it does not run over it."""
    for k, access in _tensors(row):
        place = _place_in(row.rule, access, factor) if k == tensor else None
        if place is not None:
            return place.size * place.behind
    return 0


def _tensors(row: OpRule) -> Iterator[tuple[int, Access]]:
    yield from zip(row.results, row.rule.results, strict=True)
    yield from zip(row.operands, row.rule.operands, strict=True)


def divisions_of(graph: Graph, splits: Sequence[Split]) -> dict[int, list[Division]]:
    """The divisions of each op that ``splits`` name, those that are added last.

    Raises:
      PlanError: an op is not in the graph, or cannot be divided like that; the message names it.
    """
    found: dict[int, list[Division]] = {}
    for split in splits:
        op = graph.op_index.get(split.op)
        if op is None:
            raise PlanError(f"splits: the graph has no op {split.op!r}.", field="splits")
        where, row = f"splits: op {split.op!r}", graph.rule_of(op)
        factors = row.rule.factors if row is not None else ()
        factor = next((i for i, one in enumerate(factors) if one.name == split.factor), None)
        if factor is None or factor not in divisible_factors(graph)[op]:
            raise PlanError(f"{where} cannot be split along {split.factor!r}.", field="splits")
        if not 2 <= split.parts <= factors[factor].size:
            size = factors[factor].size
            message = f"{where} has {size} steps along {split.factor!r} for {split.parts} parts."
            raise PlanError(message, field="splits")
        if factors[factor].kind == "reduction" and not split.joined:
            raise PlanError(f"{where} has partial results, which must be joined.", field="splits")
        divisions = found.setdefault(op, [])
        if any(one.factor == factor for one in divisions):
            raise PlanError(f"{where} is split twice along {split.factor!r}.", field="splits")
        divisions.append(Division(op, factor, split.parts, split.joined))
    for op, divisions in found.items():
        row = graph.rule_of(op)
        assert row is not None
        divisions.sort(key=lambda one: row.rule.factors[one.factor].kind == "reduction")
    return found


def stops_of(graph: Graph, divisions: Mapping[int, Sequence[Division]]) -> dict[Division, list[int]]:
    """Where the parts of each division end (exclusive), in steps of its factor.

    Divisions that read each other's parts, which are not joined, end together: no part needs anything of the
    next part, and the parts have equal shares of the work.

    Raises:
      PlanError: an op has too few steps for its parts, or a part would read padding alone.
    """
    readers = {one: _part_readers(graph, one, divisions) for of_op in divisions.values() for one in of_op}
    stops: dict[Division, list[int]] = {}
    for group in _groups(readers):
        ends = _balanced(graph, group, readers)
        if ends is None:
            name = graph.op_names[group[0].op]
            message = f"splits: op {name!r} has too few steps for {group[0].parts} parts."
            raise PlanError(message, field="splits")
        stops |= ends
    for one, found in stops.items():
        if any(_reads_padding(_rule(graph, one), one.factor, *pair) for pair in pairwise([0, *found])):
            message = f"splits: op {graph.op_names[one.op]!r} would have a part that reads padding alone."
            raise PlanError(message, field="splits")
    return stops


def _reads_padding(rule: Rule, factor: int, start: int, stop: int) -> bool:
    pieces = [piece_of(rule, access, (Range(factor, start, stop),)) for access in rule.operands]
    return any(cut.stop <= cut.start for piece in pieces for cut in piece)


def _part_readers(
    graph: Graph, of: Division, divisions: Mapping[int, Sequence[Division]]
) -> list[tuple[Division, int]]:
    """The divisions that read the parts of a division, each with the tensor."""
    row = graph.rule_of(of.op)
    assert row is not None
    if of.joined:
        return []
    found = []
    for k in row.results:
        period = period_in(row, k, of.factor)
        for reader in graph.readers_of(k):
            for one in divisions.get(reader, ()):
                there = graph.rule_of(reader)
                if there is not None and one.parts == of.parts and _reads_at(there, k, one.factor, period):
                    found.append((one, k))
    return found


def _reads_at(row: OpRule, tensor: int, factor: int, period: int) -> bool:
    """Whether all operands of an op that are ``tensor`` are read along a factor with this period."""
    found = [
        _place_in(row.rule, access, factor)
        for k, access in zip(row.operands, row.rule.operands, strict=True)
        if k == tensor
    ]
    return all(place is not None and place.size * place.behind == period for place in found)


def _groups(readers: Mapping[Division, Sequence[tuple[Division, int]]]) -> Iterable[list[Division]]:
    """Groups of divisions that parts connect, each in topological order."""
    group_of = {one: [one] for one in readers}
    for one, found in readers.items():
        for reader, _ in found:
            mine, other = group_of[one], group_of[reader]
            if mine is not other:
                mine += other
                group_of |= dict.fromkeys(other, mine)
    return {id(group): sorted(group) for group in group_of.values()}.values()


def _balanced(
    graph: Graph, group: list[Division], readers: Mapping[Division, Sequence[tuple[Division, int]]]
) -> dict[Division, list[int]] | None:
    """Stops that give the parts equal FLOPs, as far as the steps of the last ops allow; None without any."""
    parts = group[0].parts
    number = {one: _rule(graph, one).factors[one.factor].size for one in group}
    least = {one: 2 if graph.op_types[one.op] == "Transpose" else 1 for one in group}  # of one it is a view
    if len(group) == 1 and least[group[0]] == 1:
        sizes = split_sizes(number[group[0]], parts)
        return {group[0]: np.cumsum(sizes).tolist()} if sizes[-1] > 0 else None
    finest = max(number[one] for one in group if not readers[one])
    share = np.arange(1, finest) / finest
    stop: dict[Division, LongArray] = {}  # [shares] of each division
    work, all_work = np.zeros(len(share)), 0.0
    is_open: BoolArray = np.ones(len(share), np.bool_)
    for one in reversed(group):
        steps = np.rint(share * number[one]).astype(np.int64)
        for i, (reader, k) in enumerate(readers[one]):
            needed, unit = _needed(graph, reader, k, stop[reader]), _behind(graph, one, k)
            is_open &= needed % unit == 0
            steps = needed // unit if i == 0 else np.maximum(steps, needed // unit)
        stop[one] = steps
        is_open &= (steps >= least[one]) & (steps <= number[one] - least[one])
        work += graph.op_flops[one.op] * steps / number[one]
        all_work += graph.op_flops[one.op]
    chosen: list[int] = []
    for part in range(1, parts):
        far = np.abs(work - all_work * part / parts)
        for one in group if chosen else ():
            is_open &= stop[one] >= stop[one][chosen[-1]] + least[one]
        if not is_open.any():
            return None
        chosen.append(int(np.argmin(np.where(is_open, far, np.inf))))
    return {one: [*stop[one][chosen].tolist(), number[one]] for one in group}


def _rule(graph: Graph, one: Division) -> Rule:
    row = graph.rule_of(one.op)
    assert row is not None
    return row.rule


def _needed(graph: Graph, one: Division, tensor: int, stop: LongArray) -> LongArray:
    """The element of each period of ``tensor`` behind what the steps before ``stop`` read."""
    row = graph.rule_of(one.op)
    assert row is not None
    ends = [
        _end(row.rule, place, stop) * place.behind
        for k, access in zip(row.operands, row.rule.operands, strict=True)
        if k == tensor and (place := _place_in(row.rule, access, one.factor)) is not None
    ]
    most: LongArray = np.max(ends, axis=0)
    return most


def _end(rule: Rule, place: Place, stop: LongArray) -> LongArray:
    piece = place.piece
    if not isinstance(piece, Affine):
        return stop
    return np.minimum(piece.size, (stop - 1) * piece.stride - piece.before + reach_of(rule, piece))


def _behind(graph: Graph, one: Division, tensor: int) -> int:
    """The elements of a result behind one step of a factor."""
    row = graph.rule_of(one.op)
    assert row is not None
    place = _place_in(row.rule, row.rule.results[row.results.index(tensor)], one.factor)
    assert place is not None
    return place.behind


def split_sizes(count: int, parts: int) -> list[int]:
    """Steps of each part: as equal as possible, the larger first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def weight_factor(graph: Graph, op: int) -> int | None:
    """The largest parallel factor of the largest weight of an op, such as its columns or channels."""
    row = graph.rule_of(op)
    if row is None:
        return None
    of_weights = [
        (int(graph.tensor_elements[k]), access)
        for k, access in zip(row.operands, row.rule.operands, strict=True)
        if graph.tensor_kind[k] == WEIGHT
    ]
    if not of_weights:
        return None
    _, access = max(of_weights, key=lambda one: one[0])
    found = [
        factor
        for factor in divisible_factors(graph)[op]
        if row.rule.factors[factor].kind == "parallel" and _place_in(row.rule, access, factor)
    ]
    return max(found, key=lambda factor: row.rule.factors[factor].size, default=None)


def sum_factor(graph: Graph, op: int) -> int | None:
    """The largest reduction of a product of an activation and a weight; None if it has none."""
    row = graph.rule_of(op)
    if row is None or graph.op_class[op] != MATRIX:
        return None
    kinds = sorted(int(graph.tensor_kind[row.operands[i]]) for i in multiplicands(row.rule))
    found = [i for i in divisible_factors(graph)[op] if row.rule.factors[i].kind == "reduction"]
    if kinds != [ACTIVATION, WEIGHT]:
        return None
    return max(found, key=lambda factor: row.rule.factors[factor].size, default=None)
