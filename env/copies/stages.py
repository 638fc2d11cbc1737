"""Replicated stages (design section 8): consecutive chips that run the same ops on inferences in turn.

A stage of chips a … a + r - 1 runs inference s on chip a + (s mod r). Where it forwards weights, the
host sends those that stream once for r inferences, to chip a, and each chip sends them to the next.
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
        """The stage that each of ``chip``, first chips of stages, stands for."""
        return np.searchsorted(self.first_chip, chip).astype(np.int32)


def with_sharers(tables: CostTables, forwards: Collection[int], size: IntArray) -> CostTables:
    """Tables by which stages that start at the chips ``forwards`` forward weights, of ``size`` [D].

    On targets that cannot none does; the verifier says so.
    """
    if not forwards or not tables.is_ring or not tables.overlap:
        return tables
    first = [chip for chip in forwards if chip < len(size)]
    sharers = np.ones(len(size), dtype=np.int64)
    sharers[first] = size[first]
    return tables._replace(stream_sharers=sharers)


def stages_of(placement: IntArray, replication: IntArray) -> Stages:
    """The stages of a valid plan from chip 0 to its last; a chip that runs nothing is one as well."""
    size = size_by_chip(placement, replication, int(placement.max()) + 1)
    first_chip, chip = [], 0
    while chip < len(size):
        first_chip.append(chip)
        chip += int(size[chip])
    return Stages(np.array(first_chip, dtype=np.int32), size[first_chip])


def stages_of_sizes(size: NDArray[np.integer]) -> Stages:
    """Stages of ``size`` [S] chips one behind the other, from chip 0 on."""
    ends = np.cumsum(size)
    return Stages((ends - size).astype(np.int32), np.asarray(size, dtype=np.int32))


def size_by_chip(placement: IntArray, replication: IntArray, num_chips: int) -> IntArray:
    """[D] chips of the stage that starts at each chip; 1 where none does."""
    size = np.ones(num_chips, dtype=np.int32)
    np.maximum.at(size, placement, replication)
    return size
