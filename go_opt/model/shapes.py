"""The shapes that all ops see a tensor in, as sharding rules say.

An axis of a tensor is known by the numbers of blocks before it and of elements along it, which a reshaping of
other axes does not change: the tokens of ``[1, T, H * W]`` are those of ``[1, T, H, W]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from types import MappingProxyType

from go_opt.model.graph import Graph, OpRule
from go_opt.model.rule import Access, Shape


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
