"""Earliest-finish-time placement along a given order."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env.cost import CostTables
from go_opt.env.kernels.numbering import number_kernels
from go_opt.solver.scheduling.list_scheduling import ListScheduling


def earliest_finish_placement(tables: CostTables, order: IntArray, fusion_group: IntArray) -> IntArray:
    """[N] chip of each op, where kernels along ``order`` go where they finish first; arguments are [N]."""
    num_kernels = int(number_kernels(order, fusion_group).max()) + 1
    falling = np.arange(num_kernels, 0, -1, dtype=np.float64)
    return ListScheduling(tables, order, fusion_group, falling, fills_gaps=False).best[0]
