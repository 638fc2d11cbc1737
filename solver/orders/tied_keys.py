"""Random keys tied by repeated structure: one key for a kernel's place in all identical blocks.

A genome has a key for each class of kernels (the same place of the blocks of a run,
:mod:`go_opt.model.repeats`; every other kernel is a class of its own) and one gene for how
strictly blocks follow each other. So an order inside one layer is an order inside all of 96, and the
space to search does not grow with their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.model.graph import Graph
from go_opt.model.repeats import Repeat, find_repeats
from go_opt.solver.orders.genetic import Keys

LEAST_TIED_SHARE: Final = 0.25  # of kernels, that tying must save to be worth a search of its own


@dataclass(frozen=True, eq=False)
class TiedKeys:
    """Axes: ``M`` kernels, ``C`` classes, ``B`` genomes."""

    class_of: LongArray  # [M]
    blocks_before: FloatArray  # [M] that begin before the kernel's block, along the default order

    @property
    def num_keys(self) -> int:
        """Of a genome."""
        return int(self.class_of.max()) + 2

    def expanded(self, genomes: Keys) -> Keys:
        """[B, M] priorities of kernels by genomes [B, C + 1].

        By the last gene blocks run side by side as their keys have it (below 1/3), strictly one after
        the other where they can (from 2/3 on), or in between.
        """
        strictness = np.clip(3.0 * genomes[:, -1:] - 1.0, 0.0, 1.0)
        priorities: Keys = genomes[:, self.class_of] - strictness * self.blocks_before
        return priorities

    def tied(self, keys: Keys, strictness: float) -> Keys:
        """[C + 1] the genome closest to ``keys`` [M] of kernels: ranks of means over blocks."""
        sums = np.bincount(self.class_of, keys, minlength=self.num_keys - 1)
        mean = sums / np.bincount(self.class_of, minlength=self.num_keys - 1)
        ranks = np.argsort(np.argsort(mean, kind="stable"), kind="stable")
        return np.append((ranks + 0.5) / len(ranks), (strictness + 1.0) / 3.0)


def tied_keys(graph: Graph, fusion_group: IntArray) -> TiedKeys | None:
    """The classes of the kernels ``fusion_group`` [N]; ``None`` where too few are alike.

    Kernels are contiguous along the default order and numbered along it.
    """
    num_kernels = int(fusion_group.max()) + 1
    op_class = np.arange(graph.num_ops, dtype=np.int64)
    begins = np.zeros(graph.num_ops, dtype=np.int64)
    block_start = op_class.copy()  # of the op's block; the op itself outside
    for run in sorted(find_repeats(graph), key=lambda run: run.first_op - run.end):
        start, end = _with_ragged_ends(graph, run, op_class)
        if (op_class[start:end] != np.arange(start, end)).any():
            continue  # it lies in the ragged end of a longer one
        in_run = np.arange(start, end)
        place = (in_run - run.first_op) % run.ops_per_block
        op_class[in_run] = run.first_op + place
        block_start[in_run] = np.maximum(in_run - place, start)
        begins[block_start[in_run]] = 1
    first_op = np.full(num_kernels, graph.num_ops, dtype=np.int64)
    np.minimum.at(first_op, fusion_group, np.arange(graph.num_ops))
    # Kernels are alike where their first ops are, and they have as many.
    size = np.bincount(fusion_group, minlength=num_kernels)
    alike = op_class[first_op] * (int(size.max()) + 1) + size
    _, class_of = np.unique(alike, return_inverse=True)
    class_of = class_of.reshape(-1)
    if class_of.max() + 1 > (1.0 - LEAST_TIED_SHARE) * num_kernels:
        return None
    before = np.cumsum(begins)[block_start[first_op]].astype(np.float64)
    return TiedKeys(class_of, before)


def _with_ragged_ends(graph: Graph, run: Repeat, op_class: LongArray) -> tuple[int, int]:
    """The run and what goes on like it: the first and the last block often differ in who reads them."""
    types, period, free = graph.op_types, run.ops_per_block, op_class == np.arange(len(op_class))
    start, end = run.first_op, run.end
    while (
        start > max(run.first_op - period, 0)
        and free[start - 1]
        and types[start - 1] == types[start - 1 + period]
    ):
        start -= 1
    while end < min(run.end + period, graph.num_ops) and free[end] and types[end] == types[end - period]:
        end += 1
    return start, end
