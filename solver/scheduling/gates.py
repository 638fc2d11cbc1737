"""A lower bound of a sample's latency where results go to no lower chip.

*Gates* are ops that are never split, each behind the one before. What lies between two gates in every plan
runs on the chips from that of the first to that of the second: n of them share its work. Chips only rise, so
the sum of n - 1 over all gates is below D. The bound is the least sum of work / n.

Of an op that may be split, all parts are behind a gate if each reads something behind it, and before a gate
if all that they write is read before it. No kernel holds ops that count before a gate and ops that count
behind it: a gate that is not a matrix op ends its kernel, and behind a matrix op only others count.
"""

from __future__ import annotations

import heapq

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.fusion import ALONE, MATRIX_LOOP, REDUCTION, LoopRoles
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.solver.certify.bounds import Bound, OpFloors


def gated_bound(
    graph: Graph, tables: CostTables, roles: LoopRoles, floors: OpFloors, is_split: BoolArray
) -> Bound:
    """The least latency of a sample on chips along a ring or chain; ``is_split`` [N]: may be split."""
    gates, behind = _gates(graph, roles, is_split)
    between = _before(graph, tables, is_split, gates) == behind + 1
    between[gates] = False
    # Kernels hold at most one matrix op, and end with a reduction.
    is_apart = (roles.role == MATRIX_LOOP) | (roles.role == ALONE)
    is_behind_matrix = np.append(False, roles.role[gates] == MATRIX_LOOP)  # [W] of windows between gates
    ends_apart = np.append(is_apart[gates], False)
    between &= is_apart | ~is_behind_matrix[behind + 1]
    gate_s = np.append(floors.op_s[gates], 0.0)
    gate_s[is_behind_matrix & ~ends_apart] = 0.0  # one kernel may hold both gates

    def work_s(counts: BoolArray) -> FloatArray:
        """[W] least seconds of the kernels of these ops in each window."""
        found = np.zeros(len(gate_s))
        for window in np.unique(behind[counts] + 1).tolist():
            ops = np.flatnonzero(counts & (behind + 1 == window))
            sums = [np.bincount(floors.loop[ops], weights=row[ops]) for row in floors.parts]
            found[window] = floors.work_s(np.array(sums))
        return found

    all_s, before_gate_s = work_s(between), work_s(between & is_apart & ends_apart[behind + 1])
    seconds = _least_sum_s(all_s, before_gate_s, gate_s, tables.num_chips)
    return Bound(seconds, f"{len(gates)} ops follow one another, and chips share what lies between two")


def _least_sum_s(work_s: FloatArray, before_gate_s: FloatArray, gate_s: FloatArray, num_chips: int) -> float:
    """The least seconds of all windows: one more chip goes where it saves most, as each saves less."""

    def seconds(window: int, chips: int) -> float:
        return max(work_s[window] / chips, before_gate_s[window] / chips + gate_s[window])

    windows = range(len(work_s))
    saves = [(seconds(window, 2) - seconds(window, 1), window, 2) for window in windows]
    heapq.heapify(saves)
    total_s = sum(seconds(window, 1) for window in windows)
    for _ in range(num_chips - 1):
        saved_s, window, chips = saves[0]
        total_s += saved_s
        saved_s = seconds(window, chips + 1) - seconds(window, chips)
        heapq.heapreplace(saves, (saved_s, window, chips + 1))
    return float(total_s)


def _gates(graph: Graph, roles: LoopRoles, is_split: BoolArray) -> tuple[LongArray, LongArray]:
    """The longest chain of gates, and [N] the last one that all parts of an op are behind; -1: none."""
    may_be_gate = ~is_split & np.isin(roles.role, (ALONE, MATRIX_LOOP, REDUCTION))
    behind = [0] * graph.num_ops  # sets of possible gates, in bits
    length, last = np.zeros(graph.num_ops, np.int64), np.full(graph.num_ops, NO_PRODUCER)
    longest = np.full(
        graph.num_ops, NO_PRODUCER
    )  # the gate, of those an op is behind, with the longest chain
    for op in range(graph.num_ops):
        for k, _ in graph.reads_of(op):
            source = int(graph.tensor_producer[k])
            if source == NO_PRODUCER or (is_split[op] and not _reads_some(graph, op, k)):
                continue
            behind[op] |= behind[source] | (int(may_be_gate[source]) << source)
            ends = source if may_be_gate[source] else int(longest[source])
            if ends != NO_PRODUCER and (longest[op] == NO_PRODUCER or length[ends] > length[longest[op]]):
                longest[op] = ends
        last[op] = longest[op]
        length[op] = 1 + (length[last[op]] if last[op] != NO_PRODUCER else 0)
    chain, at = [], max(np.flatnonzero(may_be_gate).tolist(), key=length.__getitem__, default=NO_PRODUCER)
    while at != NO_PRODUCER:
        chain.append(at)
        at = int(last[at])
    gates = np.array(chain[::-1], np.int64)
    mask = sum(1 << gate for gate in chain)
    return gates, np.array([(one & mask).bit_count() - 1 for one in behind], np.int64)


def _before(graph: Graph, tables: CostTables, is_split: BoolArray, gates: LongArray) -> LongArray:
    """[N] the number of the first gate that all parts of an op are before; that of the gates: none."""
    number = {op: i for i, op in enumerate(gates.tolist())}
    before = np.full(graph.num_ops, len(gates), np.int64)
    for op in range(graph.num_ops)[::-1]:
        of_results = []
        for k in graph.outputs_of(op):
            reads = range(tables.reader_ptr[k], tables.reader_ptr[k + 1])
            sure = [r for r in reads if not is_split[op] or tables.read_bytes[r] >= tables.tensor_bytes[k]]
            readers = [int(tables.reader_op[r]) for r in sure]
            of_results.append(min((number.get(one, int(before[one])) for one in readers), default=len(gates)))
        before[op] = (max if is_split[op] else min)(of_results, default=len(gates))
    return before


def _reads_some(graph: Graph, op: int, tensor: int) -> bool:
    """Whether each part of an op reads something of a tensor: no part lies in the padding of a window."""
    known = graph.rule_of(op)
    if known is None:
        return False
    return tensor in known.operands and all(factor.kind != "window" for factor in known.rule.factors)
