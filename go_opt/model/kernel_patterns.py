"""Patterns that are one kernel though they are no loop nest; a target lists those of its runtime.

``attention``: a product of two activations, the softmax of its rows, and the product of that with another
activation. In between only element-wise ops (a scale, a mask, a bias) and reductions run, and nothing else
reads their results. The softmax may be one op, or an ``Exp`` and the ops around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.model.graph import ACTIVATION, MATRIX, VECTOR, Graph
from go_opt.model.op_costs import is_elementwise, is_reduction

PATTERNS: Final = ("attention",)
_SOFTMAX: Final = ({"Softmax"}, {"Exp", "ReduceSum"})  # types of which a softmax has all


def pattern_kernels(graph: Graph, patterns: tuple[str, ...]) -> Iterator[list[int]]:
    """The ops of each match, ascending; no op is in two. The last op is a product."""
    taken: set[int] = set()
    for ops in _attentions(graph) if "attention" in patterns else ():
        if taken.isdisjoint(ops):
            taken.update(ops)
            yield ops


def _attentions(graph: Graph) -> Iterator[list[int]]:
    is_product = (graph.op_class == MATRIX) & ~_reads_given(graph)
    is_between = np.array([is_elementwise(one) or is_reduction(one) for one in graph.op_types])
    is_between &= graph.op_class == VECTOR
    ptr, producer = graph.predecessors
    for last in np.flatnonzero(is_product).tolist():
        between: set[int] = set()  # ops from which only ops in between lead to the last one
        firsts: set[int] = set()
        todo = [last]
        while todo:
            op = todo.pop()
            before = set(producer[ptr[op] : ptr[op + 1]].tolist()) - between
            firsts |= {one for one in before if is_product[one]}
            todo += (new := [one for one in before if is_between[one]])
            between.update(new)
        # Another product may make a bias: the rows of the softmax are those of the longer one.
        for first in sorted(firsts, key=lambda op: (-graph.op_flops[op], op)):
            ops = _from(graph, first, [*sorted(between), last])
            types = {graph.op_types[op] for op in ops}
            if any(softmax <= types for softmax in _SOFTMAX) and _is_closed(graph, ops):
                yield ops
                break


def _reads_given(graph: Graph) -> BoolArray:
    """[N] whether an op reads a weight or an input of the model."""
    is_given = graph.tensor_kind[graph.reader_tensor] != ACTIVATION
    reads: BoolArray = np.bincount(graph.reader_op, weights=is_given, minlength=graph.num_ops) > 0
    return reads


def _from(graph: Graph, first: int, others: list[int]) -> list[int]:
    """``first``, and those of ``others``, ascending, that depend on it."""
    ptr, producer = graph.predecessors
    ops = [first]
    for op in others:
        if not set(ops).isdisjoint(producer[ptr[op] : ptr[op + 1]].tolist()):
            ops.append(op)
    return ops


def _is_closed(graph: Graph, ops: list[int]) -> bool:
    """Whether only ``ops`` read the results of all but the last."""
    inner = np.isin(graph.tensor_producer, ops[:-1])
    readers = graph.reader_op[inner[graph.reader_tensor]]
    return bool(np.isin(readers, ops).all()) and not graph.tensor_is_output[inner].any()
