"""The rows of ops: the second-to-last dimension of what they write, by which an image model can be split.

Rows are the height of an image, tokens, or the vectors of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from go_opt.env.copies.divisions import divisible_factors, period_in, touched_states
from go_opt.model.graph import INPUT, WEIGHT, Graph
from go_opt.model.plan import Split
from go_opt.model.rule import Shape, places
from go_opt.model.shapes import tensor_shapes

Rows = Mapping[int, int]  # op -> the factor along its rows
LEAST_BATCH: Final = 8  # images whose batch is what rows divide, not the images


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


def batch_of(inputs: Sequence[Shape]) -> int:
    """The number of images in every input of a model, if all inputs are such batches; else 0."""
    sizes = {shape[0] if len(shape) > 3 else 0 for shape in inputs}
    batch = sizes.pop() if len(sizes) == 1 else 0
    return batch if batch >= LEAST_BATCH else 0


@lru_cache(maxsize=16)
def rows_by_op(graph: Graph) -> Rows:
    """The factor along the rows of each op that can be divided by rows."""
    return {op: factor for op in range(graph.num_ops) if (factor := _row_factor(graph, op)) is not None}


def _row_factor(graph: Graph, op: int) -> int | None:
    row, outputs = graph.rule_of(op), graph.outputs_of(op)
    if op in touched_states(graph):
        return None
    shape = row_shapes(graph).get(outputs[0], ()) if len(outputs) == 1 else ()
    if row is None or len(shape) < 2:
        return None
    at = math.prod(shape[:-2]), shape[-2]
    for place in places(row.rule, row.rule.results[0]):
        factor = place.piece
        if (place.blocks, place.size) != at or factor not in divisible_factors(graph)[op]:
            continue
        assert isinstance(factor, int), "no result is read through a window."
        is_read = (graph.tensor_kind[k] != WEIGHT and period_in(graph, op, factor, k) for k in row.operands)
        return factor if any(is_read) else None
    return None


def split_along(graph: Graph, op: int, factor: int, parts: int, *, joined: bool = True) -> Split:
    """The split of an op along a factor of its rule. The host joins what it alone reads, but adds nothing."""
    along = graph.known_rule_of(op).rule.factors[factor]
    results = graph.outputs_of(op)
    is_read = any(graph.readers_of(k) or not graph.tensor_is_output[k] for k in results)
    return Split(graph.op_names[op], along.name, parts, joined and (is_read or along.kind == "reduction"))


def is_reduction(graph: Graph, op: int, factor: int) -> bool:
    """Whether parts of an op along a factor are added."""
    return graph.known_rule_of(op).rule.factors[factor].kind == "reduction"


def steps_of(graph: Graph, op: int, factor: int) -> int:
    """The size of a factor of an op."""
    return graph.known_rule_of(op).rule.factors[factor].size


def is_along(graph: Graph, split: Split, factor: int) -> bool:
    """Whether a split of an op is along this factor of its rule."""
    return graph.known_rule_of(graph.op_index[split.op]).rule.factors[factor].name == split.factor


def reads_rows(graph: Graph, rows: Rows, op: int, tensor: int) -> bool:
    """Whether parts of ``op`` read rows of ``tensor``, which are those of its producer if that has rows."""
    producer = int(graph.tensor_producer[tensor])
    period = period_in(graph, op, rows[op], tensor) if op in rows else 0
    is_alike = producer not in rows or period_in(graph, producer, rows[producer], tensor) == period
    return period > 0 and is_alike


def waits_for(graph: Graph, rows: Rows, op: int) -> list[int]:
    """The ops done before any part of ``op``: those that are whole, and those that it reads whole."""
    producers = ((int(graph.tensor_producer[k]), k) for k, _ in graph.reads_of(op))
    return [source for source, k in producers if source not in rows or not reads_rows(graph, rows, op, k)]


def rows_of_way(graph: Graph, way: tuple[Split, ...]) -> Rows:
    """The ops that a way to split divides by rows."""
    rows, found = rows_by_op(graph), ((graph.op_index[one.op], one) for one in way)
    return {op: rows[op] for op, one in found if op in rows and is_along(graph, one, rows[op])}
