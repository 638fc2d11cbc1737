"""What each op adds to its kernel: seconds by which placements may cut between any two ops.

Kernels fused before ops are placed stand in the way of good cuts: a cut through a kernel costs
two kernels little more than one, but falls nowhere among whole kernels. So the seconds of a kernel
are shared out among its ops, the mean of what an op adds to those before it in the kernel and
of what it adds to those behind it. All of a kernel on one chip then costs what the kernel does; a kernel cut
in two is taken for its whole, and costs the overhead and the bytes that cross more. Kernels are to be
fused anew within the chips of whatever placement is found.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.model.graph import Graph
from go_opt.solver.certify.problem.build import Units, problem_of_units
from go_opt.solver.certify.problem.problem import RefinementProblem
from go_opt.solver.problem.passing import Passing


def loose_refinement_problem(
    graph: Graph,
    tables: CostTables,
    order: IntArray,
    fusion_group: IntArray,
    *,
    passing: Passing,
) -> RefinementProblem:
    """The placement of ops that take their shares of the kernels ``fusion_group`` [N] along ``order`` [N]."""
    ops = np.arange(graph.num_ops, dtype=np.int32)
    units = Units(ops, op_share_s(tables, order, fusion_group), passing)
    return problem_of_units(graph, tables, units)


def op_share_s(tables: CostTables, order: IntArray, fusion_group: IntArray) -> FloatArray:
    """[N] seconds, none negative; those of a kernel's ops add up to it, on the kind where it is fastest.

    Args:
      order: [N] a topological order in which the ops of a kernel stand next to each other.
    """
    kernel = number_kernels(order, fusion_group)[order].astype(np.int64)  # [N] along the order
    begin = np.searchsorted(kernel, np.arange(kernel[-1] + 1))
    size = np.diff(begin, append=len(kernel))
    position = np.arange(len(kernel)) - begin[kernel]
    kernel_s = _fastest_s(tables, order, kernel)
    # Seconds of a kernel's ops before each cut in it, and of those behind.
    before_s, behind_s = np.zeros(len(kernel)), kernel_s[kernel]
    for cut in range(1, int(size.max())):
        at = begin[size > cut] + cut
        parts = np.cumsum((position == 0) | (position == cut)) - 1
        part_s = _fastest_s(tables, order, parts)
        before_s[at], behind_s[at] = part_s[parts[at - 1]], part_s[parts[at]]
    up_to_s = 0.5 * (before_s + kernel_s[kernel] - behind_s)
    # Another op may spare its kernel more than it takes, since what it reads is then not stored.
    up_to_s = np.clip(up_to_s, 0.0, kernel_s[kernel])
    for cut in range(1, int(size.max())):
        at = begin[size > cut] + cut
        up_to_s[at] = np.maximum(up_to_s[at], up_to_s[at - 1])
    next_s = np.append(up_to_s[1:], 0.0)
    next_s[begin + size - 1] = kernel_s
    share_s = np.empty(len(kernel))
    share_s[order] = next_s - up_to_s
    return share_s


def _fastest_s(tables: CostTables, order: IntArray, kernel: LongArray) -> FloatArray:
    """[M] seconds of the kernels [N] along ``order`` [N], each on the kind that runs it fastest."""
    kernel_of = np.empty(len(order), np.int32)
    kernel_of[order] = kernel
    seconds = kernel_seconds(tables, kernel_of)
    kind, op = np.nonzero(~tables.can_run)
    seconds[kind, kernel_of[op]] = np.inf
    fastest: FloatArray = seconds.min(axis=0)
    return fastest
