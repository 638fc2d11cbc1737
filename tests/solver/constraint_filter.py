"""The user's constraints, checked for whole batches of placements.

The twin of :mod:`go_opt.solver.verify.constraints`. The target's own rules are not checked.
Axes: ``B`` placements, ``N`` ops, ``D`` chips.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray
from go_opt.env.cost.tables import CostTables, cost_tables
from go_opt.env.kernels.numbering import kernel_seconds
from go_opt.model.graph import WEIGHT
from go_opt.solver.copies.relays import needed_relays
from go_opt.solver.problem.forwarding_mode import ForwardingMode
from go_opt.solver.problem.op_constraints import OpConstraints
from go_opt.solver.problem.problem import placement_problem
from go_opt.solver.problem.user_constraints import Stages

Rows = IntArray
Kept = BoolArray
# Sums of seconds in different orders differ in the last digits.
SLACK: Final = 1e-9


class ConstraintFilter:
    """The constraints on placements of one fusion.

    Args:
      fusion_group: [N] kernels, to which limits in seconds apply.
      forwarding: ``relayed`` counts the relays that each placement needs.
    """

    def __init__(self, asked: OpConstraints, fusion_group: IntArray, forwarding: ForwardingMode) -> None:
        self._asked, self._fusion_group = asked, fusion_group
        self._has_relays = forwarding == "relayed"

    def are_kept(self, placements: Rows) -> Kept:
        """Returns [B] True where a placement ([B, N] chips of ops) keeps every constraint."""
        asked, graph = self._asked, self._asked.graph
        allowed = asked.without_stages().allowed
        kept: Kept = np.asarray(allowed[np.arange(graph.num_ops), placements].all(axis=1))
        for ops in asked.colocated:
            kept &= (placements[:, ops] == placements[:, ops[:1]]).all(axis=1)
        for stages in (one for one in asked.constraints if isinstance(one, Stages)):
            kept &= np.array([len(np.unique(row)) for row in placements]) == stages.count
        cut = np.flatnonzero(asked.rise)
        kept &= (placements[:, graph.edge_dst[cut]] > placements[:, graph.edge_src[cut]]).all(axis=1)
        for limit in asked.limits:
            if limit.at_most_bytes is not None or limit.at_least_bytes is not None:
                held_bytes = self._weight_bytes(placements == limit.chip)
                kept &= _is_within(held_bytes, limit.at_least_bytes, limit.at_most_bytes)
            if limit.at_most_s is not None or limit.at_least_s is not None:
                seconds = self._kernel_s(placements, limit.chip)
                kept &= _is_within(seconds, limit.at_least_s, limit.at_most_s)
            if limit.at_most_ops is not None:
                kept &= (placements == limit.chip).sum(axis=1) <= limit.at_most_ops
            if limit.at_most_kernels is not None:
                kept &= self._num_kernels(placements, limit.chip) <= limit.at_most_kernels
        return kept

    @cached_property
    def _tables(self) -> CostTables:
        return cost_tables(self._asked.graph, self._asked.target)

    @cached_property
    def _kernels(self) -> tuple[LongArray, FloatArray]:
        """First op of each kernel, and the kernel's seconds on each kind of chip ([Q, M])."""
        problem = placement_problem(self._asked.graph, self._asked.target, self._fusion_group)
        _, first = np.unique(problem.unit_of_op, return_index=True)
        return first, kernel_seconds(self._tables, problem.unit_of_op)

    def _weight_bytes(self, is_here: Kept) -> FloatArray:
        """Returns the bytes [B] of the weights read by the ops in ``is_here`` ([B, N]), each once."""
        tables = self._tables
        weights = np.flatnonzero((tables.tensor_kind == WEIGHT) & (np.diff(tables.reader_ptr) > 0))
        reads = np.flatnonzero(tables.tensor_kind[tables.reader_tensor] == WEIGHT)
        if not len(weights):
            return np.zeros(len(is_here))
        first_read = np.concatenate([[0], np.cumsum(np.diff(tables.reader_ptr)[weights])[:-1]])
        is_held = np.logical_or.reduceat(is_here[:, tables.reader_op[reads]], first_read, axis=1)
        held: FloatArray = is_held @ tables.tensor_bytes[weights].astype(np.float64)
        return held

    def _kernel_s(self, placements: Rows, chip: int) -> FloatArray:
        """Returns the seconds [B] of the kernels on a chip, including relays."""
        first_op, kernel_s = self._kernels
        kind = self._tables.chip_kind[chip]
        seconds: FloatArray = (placements[:, first_op] == chip) @ kernel_s[kind]
        if not self._has_relays:
            return seconds
        return seconds + np.array([self._relay_s(placement, chip) for placement in placements])

    def _num_kernels(self, placements: Rows, chip: int) -> IntArray:
        """Returns the number [B] of kernels on a chip, including relays."""
        kernels: IntArray = (placements[:, self._kernels[0]] == chip).sum(axis=1)
        if self._has_relays:
            kernels += [len(self._relays(placement, chip)) for placement in placements]
        return kernels

    def _relays(self, placement: IntArray, chip: int) -> IntArray:
        """Returns the tensors that a chip relays."""
        tensor, on = needed_relays(self._tables, placement, self._asked.target.constraints.triangle)
        return tensor[on == chip]

    def _relay_s(self, placement: IntArray, chip: int) -> float:
        """Returns the seconds of the relays on a chip."""
        tables = self._tables
        here, kind = self._relays(placement, chip), tables.chip_kind[chip]
        copies_s = 2.0 * tables.tensor_bytes[here].sum() * tables.sram_s_per_byte[kind]
        return float(copies_s + len(here) * tables.kernel_overhead_s[kind])


def _is_within(amount: FloatArray, at_least: float | None, at_most: float | None) -> Kept:
    least = 0.0 if at_least is None else at_least * (1 - SLACK)
    most = np.inf if at_most is None else at_most * (1 + SLACK)
    return (least <= amount) & (amount <= most)
