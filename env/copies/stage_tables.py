"""Replicated stages as faster chips, so that plans with replication are costed and searched like others.

If transfers overlap compute, the links inside a stage never carry more than the busier
of its two borders. So a replicated plan has the interval of an unreplicated one on a ring with
one chip per stage, which computes as fast as the stage's chips together.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import BoolArray
from go_opt.env.copies.stages import Stages
from go_opt.env.cost import CostTables


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
