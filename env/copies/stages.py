"""Replicated stages (design section 8): consecutive chips that run the same ops on inferences in turn.

A stage of chips a … a + r - 1 runs inference s on chip a + (s mod r). If sequences have states, it runs
all inferences of sequence q on chip a + (q mod r), where the states of q stay. If it forwards weights, the
host sends streamed weights to chip a once for r inferences, and each chip sends them to the next.
Axes: ``N`` ops, ``D`` chips, ``S`` stages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import IntArray
from go_opt.env.cost import CostTables


class Stages(NamedTuple):
    """The stages of a plan, in the order of their chips."""

    first_chip: IntArray  # [S] ascending
    size: IntArray  # [S] chips

    def number(self, chip: IntArray) -> IntArray:
        """The number of the stage that starts at each of ``chip``."""
        return np.searchsorted(self.first_chip, chip).astype(np.int32)


def with_sharers(tables: CostTables, forwards: Collection[int], size: IntArray) -> CostTables:
    """Tables in which the stages that start at the chips ``forwards``, of ``size`` [D], forward weights.

    On targets that cannot forward, none does; nor where some chips have more sequences than others. The
    verifier rejects such plans.
    """
    if not forwards or not tables.is_ring or not tables.overlap:
        return tables
    first = [chip for chip in forwards if chip < len(size) and tables.sequences % size[chip] == 0]
    sharers = np.ones(len(size), dtype=np.int64)
    sharers[first] = size[first]
    return tables._replace(stream_sharers=sharers)


def stages_of(placement: IntArray, replication: IntArray) -> Stages:
    """The stages of a valid plan from chip 0 to its last; an idle chip is a stage of its own."""
    size = size_by_chip(placement, replication, int(placement.max()) + 1)
    first_chip, chip = [], 0
    while chip < len(size):
        first_chip.append(chip)
        chip += int(size[chip])
    return Stages(np.array(first_chip, dtype=np.int32), size[first_chip])


def stages_of_sizes(size: NDArray[np.integer]) -> Stages:
    """Consecutive stages of ``size`` [S] chips, from chip 0 on."""
    ends = np.cumsum(size)
    return Stages((ends - size).astype(np.int32), np.asarray(size, dtype=np.int32))


def size_by_chip(placement: IntArray, replication: IntArray, num_chips: int) -> IntArray:
    """[D] chips of the stage that starts at each chip; 1 if none does."""
    size = np.ones(num_chips, dtype=np.int32)
    np.maximum.at(size, placement, replication)
    return size
