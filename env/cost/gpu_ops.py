"""Seconds of the ops of a graph on kinds of chips that have figures of GPU kernels.

A kernel takes ``max(sum of op seconds, traffic) + overhead``. The seconds of a product therefore include how
its own compute and traffic overlap (:mod:`go_opt.env.gpu.forms`), but not the start, which is in the
overhead. The products of an attention that may be one kernel count their compute alone, since the scores
between them then do not move.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.env.cost.shapes import output_elements, product_shapes
from go_opt.env.gpu.forms import Attentions, GpuKernels, Products
from go_opt.model.graph import MATRIX, Graph
from go_opt.model.kernel_patterns import pattern_kernels
from go_opt.model.rule import Rule

PATTERN: Final = "attention"
_EXPONENTIALS: Final = ("Softmax", "Exp")
_EARLIER: Final = ("w4_0", "w6_0")  # factors of the rows of cached keys: Attention, MultiHeadAttention


class OpWork(NamedTuple):
    """What ops do. All [N]."""

    flops_per_s: FloatArray  # peak rate
    num_bytes: FloatArray  # read and written
    element_bytes: FloatArray


def kernel_op_seconds(
    graph: Graph,
    work: OpWork,
    kernels: GpuKernels,
    *,
    fuses_attention: bool,
    divisible: BoolArray | None = None,
    again_s: float | None = None,
) -> FloatArray:
    """[N] seconds of matrix ops, and of softmax in attention, beside the start of a kernel; NaN for others.

    Of ops that are ``divisible`` [N], the seconds are no more than those of all parts together.

    Args:
      fuses_attention: the runtime has the products of an attention as one kernel.
      again_s: the start of a kernel, which an op in parts has twice at least; None if parts may run on
        several kinds of chips.
    """
    seconds = np.full(graph.num_ops, np.nan)
    matrix = np.flatnonzero((graph.op_class == MATRIX) & (graph.op_flops > 0))
    if not len(matrix):
        return seconds
    is_split = np.zeros(graph.num_ops, np.bool_) if divisible is None else divisible
    own, shapes = OpWork(*(column[matrix] for column in work)), product_shapes(graph)
    is_stored = np.ones(graph.num_ops)
    if fuses_attention:
        is_inner = _ops_of_attentions(graph)
        is_stored[is_inner | (is_split & graph.reads_activations)] = 0.0
        scores = np.flatnonzero(is_inner & graph.has_type(_EXPONENTIALS.__contains__))
        scores = scores[~is_split[scores]]  # parts may be kernels of their own
        exponential_s = output_elements(graph)[scores] / kernels.figures.scores_per_s
        seconds[scores] = np.maximum(graph.op_flops[scores] / work.flops_per_s[scores], exponential_s)
    batch, rows, inner, columns = (shape[matrix] for shape in shapes)
    peak = own.flops_per_s, own.element_bytes
    products = Products(batch, rows, inner, columns, *peak, is_stored[matrix])
    num_bytes = own.num_bytes * products.is_stored
    seconds[matrix] = whole_s = kernels.product_s(products, num_bytes)
    if is_split.any():
        parts_s = kernels.product_parts_s(products, num_bytes, in_waves=again_s is not None)
        # Kernels hold one product with a weight each, but both products of an attention.
        parts_s += (again_s or 0.0) * ~graph.reads_activations[matrix]
        seconds[matrix] = np.where(is_split[matrix], np.minimum(whole_s, parts_s), whole_s)
    several = matrix[(graph.op_flops[matrix] > 2.0) & (np.prod(products[:4], axis=0) == 1.0)]
    seconds[several] = kernels.rated_s(
        graph.op_flops[several], work.flops_per_s[several], work.num_bytes[several]
    )
    ops, sizes = attention_sizes(graph)
    batch, heads, groups, rows, keys, depth, is_causal = sizes
    of_ops = work.flops_per_s[ops], work.element_bytes[ops]
    attentions = Attentions(batch, heads, groups, rows, keys, depth, is_causal, *of_ops)
    seconds[ops] = np.where(
        is_split[ops], kernels.attention_parts_s(attentions), kernels.attention_s(attentions)
    )
    return seconds


@lru_cache(maxsize=16)
def _ops_of_attentions(graph: Graph) -> BoolArray:
    """[N] True for ops that may be in a kernel with both products of an attention."""
    is_inner = np.zeros(graph.num_ops, np.bool_)
    is_inner[list(chain.from_iterable(pattern_kernels(graph, (PATTERN,))))] = True
    return is_inner


@lru_cache(maxsize=16)
def attention_sizes(graph: Graph) -> tuple[LongArray, FloatArray]:
    """The attention ops whose rule says their sizes, and these [7, ops] as in :class:`Attentions`."""
    is_attention = graph.has_type(lambda name: name.endswith("Attention"))
    found = [
        (op, sizes)
        for op in np.flatnonzero(is_attention).tolist()
        if (row := graph.rule_of(op)) is not None and (sizes := _sizes(row.rule)) is not None
    ]
    columns = np.array([sizes for _, sizes in found], np.float64).reshape(-1, 7)
    return np.array([op for op, _ in found], np.int64), np.ascontiguousarray(columns.T)


@lru_cache(maxsize=4096)
def _sizes(rule: Rule) -> tuple[int, ...] | None:
    """Batch, heads, groups of heads, rows, keys, depth and causality, by the names of the rule's factors."""
    size = {one.name: one.size for one in rule.factors}
    if not {"t", "k", "l"} & size.keys():
        return None
    groups, rows = size.get("g", 1), size.get("i", 1)
    is_causal = any(one.name == "i" and one.kind == "whole" for one in rule.factors)
    earlier = next((size[name] for name in _EARLIER if name in size), 0)
    # What is left for the next call has all keys; a buffer for both has no more.
    keys, depth = size.get("y1_0", size.get("t", 1) + earlier), size.get("k", 1)
    return size.get("n", 1), groups * size.get("h", 1), groups, rows, max(keys, rows), depth, is_causal
