"""Patterns that are one kernel though they are no loop nest; a target lists those of its runtime.

``attention``: a product of two activations, the softmax of its rows, and the product of that with another
activation. In between only element-wise ops (a scale, a mask, a bias) and reductions run. The softmax may
be one op, or an ``Exp`` and the ops around it.

``normalization``: statistics of one activation up to a square root, and the element-wise ops that follow
from these, from the activation and from weights: a layer norm or RMS norm in parts.

Nothing else reads what the ops of a match compute, but for the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.model.graph import MATRIX, VECTOR, Graph
from go_opt.model.op_costs import is_elementwise, is_reduction

_SOFTMAX: Final = ({"Softmax"}, {"Exp", "ReduceSum"})  # types of which a softmax has all
_ROOTS: Final = ("Rsqrt", "Sqrt")
_MOST_STATISTICS: Final = 16  # ops up to the root


class _Finder:
    """Looks for matches in a graph; ops are numbered in topological order."""

    def __init__(self, graph: Graph) -> None:
        self.graph, types = graph, graph.op_types
        self.is_reduction = np.array([is_reduction(one) for one in types])
        is_simple = self.is_reduction | np.array([is_elementwise(one) for one in types])
        self.is_simple: BoolArray = is_simple & (graph.op_class == VECTOR)
        self.is_product: BoolArray = (graph.op_class == MATRIX) & graph.reads_activations

    def before(self, op: int) -> set[int]:
        ptr, producers = self.graph.predecessors
        return set(producers[ptr[op] : ptr[op + 1]].tolist())

    def behind(self, op: int) -> set[int]:
        ptr, readers = self.graph.successors
        return set(readers[ptr[op] : ptr[op + 1]].tolist())

    def is_closed(self, ops: list[int]) -> bool:
        """Whether only ``ops`` read what all but the last of them compute."""
        is_inner = np.isin(self.graph.tensor_producer, ops[:-1])
        is_kept = not self.graph.tensor_is_output[is_inner].any()
        return is_kept and all(self.behind(op) <= set(ops) for op in ops[:-1])


def pattern_kernels(graph: Graph, patterns: tuple[str, ...]) -> Iterator[list[int]]:
    """The ops of each match, ascending; no op is in two."""
    taken: set[int] = set()
    for pattern in patterns:
        for ops in PATTERNS[pattern](_Finder(graph)):
            if taken.isdisjoint(ops):
                taken.update(ops)
                yield ops


def _attentions(finder: _Finder) -> Iterator[list[int]]:
    graph = finder.graph
    for last in np.flatnonzero(finder.is_product).tolist():
        between: set[int] = set()  # ops from which only such ops lead to the last one
        firsts: set[int] = set()
        todo = [last]
        while todo:
            before = finder.before(todo.pop()) - between
            firsts |= {op for op in before if finder.is_product[op]}
            todo += (new := [op for op in before if finder.is_simple[op]])
            between.update(new)
        # Another product may make a bias: the rows of the softmax are those of the longer one.
        for first in sorted(firsts, key=lambda op: (-graph.op_flops[op], op)):
            ops = [first]
            for op in [*sorted(between), last]:
                ops += [] if finder.before(op).isdisjoint(ops) else [op]
            types = {graph.op_types[op] for op in ops}
            if any(softmax <= types for softmax in _SOFTMAX) and finder.is_closed(ops):
                yield ops
                break


def _normalizations(finder: _Finder) -> Iterator[list[int]]:
    graph = finder.graph
    for root in (op for op in range(graph.num_ops) if graph.op_types[op] in _ROOTS):
        for ops, source in reversed(list(_statistics(finder, root))):
            todo = set[int]().union(*map(finder.behind, ops)) - ops
            while todo:
                todo.remove(op := min(todo))
                is_simple = finder.is_simple[op] and not finder.is_reduction[op]
                if is_simple and finder.before(op) <= ops | {source}:
                    ops.add(op)
                    todo |= finder.behind(op)
            ends = sorted((op for op in ops if op > root), reverse=True)
            to_end = ([op for op in sorted(ops) if op <= end] for end in ends)
            closed = next(filter(finder.is_closed, to_end), None)
            if closed is not None:
                yield closed
                break


def _statistics(finder: _Finder, root: int) -> Iterator[tuple[set[int], int]]:
    """Ops that ``root`` depends on, ever more, back to one whose result they all come from; and that one."""
    ops, front = set[int](), {root}
    while len(ops) < _MOST_STATISTICS and front and finder.is_simple[max(front)]:
        front.remove(op := max(front))
        ops.add(op)
        front |= finder.before(op)
        if len(front) == 1 and any(finder.is_reduction[op] for op in ops):
            yield ops.copy(), min(front)


PATTERNS: Final[dict[str, Callable[[_Finder], Iterator[list[int]]]]] = {
    "attention": _attentions,
    "normalization": _normalizations,
}
