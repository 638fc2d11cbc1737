"""Kernels that are possible under the user's constraints: each must fit on one chip."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env.kernels.numbering import number_kernels
from go_opt.solver.problem.op_constraints import OpConstraints


def constrained_fusion(requested: OpConstraints, order: IntArray, fusion_group: IntArray) -> IntArray:
    """Returns ``fusion_group`` [N] with kernels split where constraints force their ops apart.

    Along ``order`` a kernel continues while some chip is open to all its ops and no cut point
    precedes the next op. Contiguous parts of a legal kernel are legal kernels.
    """
    kernel = number_kernels(order, fusion_group)[order]
    starts = np.diff(kernel, prepend=-1) > 0
    cuts_into = np.zeros(len(order), np.bool_)  # [N] ops that a cut point stands before
    at_cut = requested.rise > 0
    cuts_into[requested.graph.edge_dst[at_cut]] = True
    is_bound = cuts_into | ~requested.allowed.all(axis=1)
    first = np.append(np.flatnonzero(starts), len(order))
    for k in np.unique(kernel[is_bound[order]]):
        begin, end = first[k], first[k + 1]
        starts[begin:end] = _starts(requested, order[begin:end], cuts_into)
    split = np.empty_like(fusion_group)
    split[order] = np.cumsum(starts) - 1
    return split


def _starts(requested: OpConstraints, ops: IntArray, cuts_into: BoolArray) -> BoolArray:
    """Returns True for each op where a part of the kernel ``ops`` starts."""
    starts = np.zeros(len(ops), np.bool_)
    part, open_chips = set[int](), np.zeros_like(requested.allowed[0])
    for i, op in enumerate(ops.tolist()):
        common = open_chips & requested.allowed[op]
        if not common.any() or (cuts_into[op] and _is_cut(requested, part, op)):
            starts[i] = True
            part, common = set(), requested.allowed[op]
        part.add(op)
        open_chips = common
    starts[0] = True
    return starts


def _is_cut(requested: OpConstraints, part: set[int], op: int) -> bool:
    """Returns whether a cut point separates one of ``part`` from ``op``."""
    into = (requested.graph.edge_dst == op) & (requested.rise > 0)
    return not part.isdisjoint(requested.graph.edge_src[into].tolist())
