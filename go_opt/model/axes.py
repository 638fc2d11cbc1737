"""What sharding rules say of rows and heads: shapes that readers share, windows over rows, heads kept apart.

An axis of a tensor is known by the numbers of blocks before it and of elements along it, which a reshaping of
other axes does not change: the tokens of ``[1, T, H * W]`` are those of ``[1, T, H, W]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from types import MappingProxyType
from typing import Final, NamedTuple

from go_opt.model.graph import INPUT, MATRIX, WEIGHT, Graph, OpRule
from go_opt.model.rule import NO_FACTOR, Access, Affine, Rule, factors_in, multiplicands

Shape = tuple[int, ...]

LEAST_BATCH: Final = 8  # images whose batch is what rows divide, not the images
WINDOWED: Final = ("AveragePool", "Conv", "MaxPool")
_SIZED: Final = ("Resize", "Upsample")  # their arguments are sizes of the whole result


class Window(NamedTuple):
    """The input rows that an output row of an op needs.

    Rows lie along the second-to-last dimension. Output row ``i`` needs ``size`` input rows that start
    at ``i * stride - before``; some may be padding.
    """

    size: int
    stride: int
    before: int  # rows of padding


SAME_ROW: Final = Window(size=1, stride=1, before=0)


class Heads(NamedTuple):
    """The heads of attention that an op, no product with a weight, keeps apart.

    Head ``i`` of what it writes needs head ``i`` alone of each operand in ``behind``, and the others whole.
    """

    number: int
    behind: Mapping[
        int, int
    ]  # tensor that it reads or writes -> elements behind an element of the heads' axis


class Place(NamedTuple):
    """Where a factor, or a dimension that is read through a window, lies in a tensor."""

    piece: int | Affine
    blocks: int  # before it
    size: int
    behind: int  # elements


@lru_cache(maxsize=4096)
def places(rule: Rule, access: Access) -> tuple[Place, ...]:
    """The factors of an operand or result, from major to minor."""
    pieces = [piece for dimension in access for piece in dimension]
    sizes = [rule.size(piece) for piece in pieces]
    blocks = [1, *accumulate(sizes, mul)]
    return tuple(
        Place(piece, before, size, blocks[-1] // (before * size))
        for piece, before, size in zip(pieces, blocks[:-1], sizes, strict=True)
    )


def place_of(rule: Rule, access: Access, factor: int) -> Place | None:
    """Where a factor lies in an operand or result; None if it does not, or is read through a window."""
    return next((place for place in places(rule, access) if place.piece == factor), None)


@lru_cache(maxsize=16)
def tensor_shapes(graph: Graph) -> Mapping[int, Shape]:
    """The dimensions of tensors that all ops with a rule see.

    A tensor that some op sees in part, or whose rows are no axis for some op, is left out.
    """
    seen: dict[int, dict[Shape, None]] = {}
    for row in graph.op_rules:
        if row is not None:
            for k, access in _tensors(row):
                seen.setdefault(k, {})[row.rule.shape(access)] = None
    elements = graph.tensor_elements.tolist()
    shapes = {k: common_shape(views) for k, views in seen.items()}
    return MappingProxyType(
        {k: shape for k, shape in shapes.items() if shape and math.prod(shape) == elements[k]}
    )


@lru_cache(maxsize=16)
def row_shapes(graph: Graph) -> Mapping[int, Shape]:
    """Shapes whose rows lie along the second-to-last axis; of a batch, the images and their elements."""
    shapes, kinds = tensor_shapes(graph), graph.tensor_kind.tolist()
    batch = batch_of([shapes.get(k, ()) for k, kind in enumerate(kinds) if kind == INPUT])
    if not batch:
        return shapes
    return MappingProxyType(  # images are apart in nearly all ops
        {
            k: (batch, math.prod(shape) // batch)
            for k, shape in shapes.items()
            if kinds[k] != WEIGHT and shape[0] == batch
        }
    )


def _tensors(row: OpRule) -> Iterable[tuple[int, Access]]:
    yield from zip(row.operands, row.rule.operands, strict=True)
    yield from zip(row.results, row.rule.results, strict=True)


def common_shape(shapes: Iterable[Shape]) -> Shape:
    """The axes that all views of a tensor have; () unless its rows are an axis of each of them."""
    shape, *others = found = list(dict.fromkeys(shapes))
    if not others:
        return shape
    if len({math.prod(one) for one in found}) > 1:  # some op reads a part
        return ()
    stops = sorted(set.intersection(*({1, *accumulate(one, mul)} for one in found)))
    common = tuple(after // before for before, after in pairwise(stops) if before)
    return common if len(common) > 1 and all(row_axis(one, common) is not None for one in found) else ()


def row_axis(view: Shape, shape: Shape) -> int | None:
    """The axis of a view along which the rows lie, the second-to-last axis of ``shape``; None if none is."""
    if len(shape) < 2:
        return None
    if view == shape:
        return len(view) - 2
    outer, number = math.prod(shape[:-2]), shape[-2]
    before = accumulate(view, mul, initial=1)
    found = (i for i, blocks in enumerate(before) if blocks == outer and view[i : i + 1] == (number,))
    return next(found, None)


def batch_of(inputs: Sequence[Shape]) -> int:
    """The number of images in every input of a model, if all inputs are such batches; else 0."""
    sizes = {shape[0] if len(shape) > 3 else 0 for shape in inputs}
    batch = sizes.pop() if len(sizes) == 1 else 0
    return batch if batch >= LEAST_BATCH else 0


@lru_cache(maxsize=16)
def row_windows(graph: Graph) -> Mapping[int, Mapping[int, Window]]:
    """For ops that keep rows apart: the window over the rows of each operand that has them, by tensor.

    Of products, the left operand has rows.
    """
    shapes = row_shapes(graph)
    found = {}
    for op, row in enumerate(graph.op_rules):
        if row is not None and len(row.results) == 1 and graph.op_types[op] not in _SIZED:
            windows = _windows(row, shapes, graph.op_types[op] in WINDOWED)
            if windows:
                found[op] = windows
    return MappingProxyType(found)


def _windows(row: OpRule, shapes: Mapping[int, Shape], is_windowed: bool) -> dict[int, Window]:
    rule, shape = row.rule, shapes.get(row.results[0], ())
    factor = _row_factor(rule, rule.results[0], shape)
    if factor is None or rule.factors[factor].kind not in ("parallel", "window"):
        return {}
    windows: dict[int, Window] = {}
    for k, access in zip(row.operands, rule.operands, strict=True):
        window = _window(rule, access, factor, shapes.get(k, ()), is_windowed)
        if window is None or windows.setdefault(k, window) != window:  # read twice, in two ways
            return {}
    return {k: window for k, window in windows.items() if window != _NO_ROWS}


_NO_ROWS: Final = Window(size=0, stride=0, before=0)


def _row_factor(rule: Rule, access: Access, shape: Shape) -> int | None:
    """The factor along the second-to-last axis of ``shape``."""
    if len(shape) < 2 or shape[-2] < 2:
        return None
    blocks, number = math.prod(shape[:-2]), shape[-2]
    here = [one.piece for one in places(rule, access) if (one.blocks, one.size) == (blocks, number)]
    return here[0] if here and isinstance(here[0], int) else None


def _window(rule: Rule, access: Access, factor: int, shape: Shape, is_windowed: bool) -> Window | None:
    """The rows of an operand that a row of the result needs; None if they are no rows of it."""
    for place in places(rule, access):
        piece = place.piece
        if (piece.factor if isinstance(piece, Affine) else piece) != factor:
            continue
        if len(shape) < 2 or (place.blocks, place.size) != (math.prod(shape[:-2]), shape[-2]):
            return None
        if not isinstance(piece, Affine):
            return SAME_ROW
        size = rule.factors[piece.window].size if piece.window != NO_FACTOR else 1
        window = Window((size - 1) * piece.dilation + 1, piece.stride, piece.before)
        return window if is_windowed and piece.before >= 0 else None
    return _NO_ROWS


@lru_cache(maxsize=16)
def kept_heads(graph: Graph) -> Mapping[int, Heads]:
    """The heads that ops keep apart: those of both operands of products, as far as other ops pass them on."""
    elements = graph.tensor_elements.tolist()
    kept: dict[int, list[Heads]] = {}
    near: dict[int, list[int]] = {}
    for op, row in enumerate(graph.op_rules):
        if row is not None and len(row.results) == 1:
            kept[op] = heads_apart(row, elements, is_product=bool(graph.op_class[op] == MATRIX))
            for k in dict.fromkeys(k for one in kept[op] for k in one.behind):
                near.setdefault(k, []).append(op)
    lies: dict[int, tuple[int, int]] = {}  # tensor -> heads, elements behind
    found: dict[int, Heads] = {}
    waiting: list[int] = []

    def take(op: int, heads: Heads) -> None:
        found[op] = heads
        for k, behind in heads.behind.items():
            if k not in lies:
                lies[k] = heads.number, behind
                waiting.append(k)

    for op in (op for op in kept if graph.op_class[op] == MATRIX):
        of_two = [one for one in kept[op] if len(one.behind) > 2]
        if op not in found and of_two:
            take(op, of_two[-1])
        while waiting:
            k = waiting.pop()
            for other in (one for one in near[k] if one not in found):
                alike = [one for one in kept[other] if (one.number, one.behind.get(k)) == lies[k]]
                if alike:
                    take(other, alike[0])
    return MappingProxyType(found)


def heads_apart(row: OpRule, elements: Sequence[int], *, is_product: bool) -> list[Heads]:
    """Each factor along which an op with one result keeps elements apart, as heads.

    Args:
      elements: of all tensors of the graph.
    """
    rule, (written,) = row.rule, row.results
    operands = list(zip(row.operands, rule.operands, strict=True))
    if any(math.prod(rule.shape(access)) != elements[k] for k, access in operands):
        return []
    both = [factors_in(rule.operands[i]) for i in multiplicands(rule)] if is_product else []
    if is_product and not both:
        return []
    found = []
    for place in places(rule, rule.results[0]):
        if isinstance(place.piece, Affine) or rule.factors[place.piece].kind != "parallel":
            continue
        if any(place.piece not in factors for factors in both):
            continue  # rows or columns of a product
        behind, is_kept = {written: place.behind}, True
        for k, access in operands:
            there = place_of(rule, access, place.piece)
            if there is not None:
                is_kept &= behind.setdefault(k, there.behind) == there.behind
            elif k in behind:
                is_kept = False  # the op also reads it whole
        if is_kept and len(behind) > 1:
            found.append(Heads(place.size, behind))
    return found
