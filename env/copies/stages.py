"""Replicated stages (design section 8): consecutive chips that run the same ops on inferences in turn.

A stage of chips a … a + r - 1 runs inference s on chip a + (s mod r). If sequences have states, it runs
all inferences of sequence q on chip a + (q mod r), where the states of q stay. If it forwards weights, the
host sends streamed weights to chip a once for r inferences, and each chip sends them to the next.

For a search, stages are faster chips, so that plans with replication are costed like others. If transfers
overlap compute, the links inside a stage never carry more than the busier of its two borders. So a
replicated plan has the interval of an unreplicated one on a ring with one chip per stage, which computes as
fast as the chips of the stage together. Axes: ``N`` ops, ``D`` chips, ``S`` stages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.env.cost.tables import CostTables


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


def stage_tables(tables: CostTables, stages: Stages, forwards: BoolArray | None = None) -> CostTables:
    """The tables of a ring with a chip for each stage, on which placements are numbers of stages.

    Kernels are short by the factor of their stage's size. Links inside stages, which forward weights and
    which an inference crosses, are left out.

    Args:
      forwards: [S] whether a stage forwards its streamed weights; by default none does.
    """
    shares = np.zeros(len(stages.size), np.bool_) if forwards is None else forwards
    chips = np.stack([tables.chip_kind[stages.first_chip], stages.size])
    kinds, chip_kind = np.unique(chips, axis=1, return_inverse=True)
    kind, size = kinds
    # The busiest chip of a stage has the most sequences.
    busiest = size if tables.sequences == 0 else tables.sequences / -(-tables.sequences // size)
    num_stages = len(stages.size)
    chip = np.arange(num_stages, dtype=np.int32)
    return tables._replace(
        op_s=tables.op_s[kind] / busiest[:, None],
        measured_s=tables.measured_s[kind] / busiest[:, None],
        can_run=tables.can_run[kind],
        chip_kind=chip_kind.reshape(-1).astype(np.int32),
        sram_bytes=tables.sram_bytes[stages.first_chip],
        stream_buffer_bytes=tables.stream_buffer_bytes[stages.first_chip],
        stream_sharers=np.where(shares, stages.size, 1).astype(np.int64),
        stage_chips=stages.size.astype(np.int64),
        sram_s_per_byte=tables.sram_s_per_byte[kind] / busiest,
        kernel_overhead_s=tables.kernel_overhead_s[kind] / busiest,
        dma_setup_s=tables.dma_setup_s[kind],
        dependency_s=tables.dependency_s[kind],
        pays_transfers=tables.pays_transfers[kind],
        link_from=chip,
        link_to=np.roll(chip, -1),
        link_s_per_byte=tables.link_s_per_byte[:num_stages],
        link_latency_s=tables.link_latency_s[:num_stages],
    )
