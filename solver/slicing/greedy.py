"""The compiler's greedy heuristic: fill chips along the order up to an equal share of compute."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.solver.slicing.segments.problem import SliceProblem


def greedy_cuts(problem: SliceProblem, max_chips: int) -> LongArray:
    """Returns cuts at equal shares of the work, each moved later if the adjacent rule requires it.

    Chip d ends at the last cut with at most ``(d + 1) / D`` of the work before it. If a tensor
    that enters the chip is read later, the chip ends after its last reader. All remaining
    kernels run on the last chip.
    """
    work_s = problem.prefix_s[problem.chip_kind[0]]
    shares_s = work_s[-1] * np.arange(1, max_chips) / max_chips
    wanted = np.searchsorted(work_s, shares_s * (1.0 + 1e-12), side="right") - 1
    cuts = [0]
    for cut in wanted:
        start = cuts[-1]
        if problem.reach[start] >= problem.num_kernels:
            break
        # A kernel larger than a share also uses up the shares of the next chips.
        if cut > start:
            cuts.append(int(max(cut, problem.reach[start])))
        if cuts[-1] >= problem.num_kernels:
            break
    if cuts[-1] < problem.num_kernels:
        cuts.append(problem.num_kernels)
    return np.array(cuts, dtype=np.int64)
