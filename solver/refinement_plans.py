"""Plans of the refinement: what a placement costs exactly, and the cheapest slicing of an order.

Slicing is the dynamic program of :mod:`go_opt.solver.slicing` on a :class:`UnitGraph`, in ticks.
It counts nothing for copies and shared inputs: what it finds is costed exactly afterwards.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.solver.passing import ADJACENT
from go_opt.solver.refinement_problem import MOST_TICKS, RefinementProblem, UnitGraph

STEPS = 12  # of the bisection: the interval found is that close to the best


def placement_cost_s(problem: RefinementProblem, placement: NDArray[np.int32]) -> float:
    """The interval of ``placement`` [U], exactly, streamed weights left out."""
    units = problem.units
    num_chips = units.num_chips
    work_s = problem.unit_s + problem.own_s
    chip_s = np.bincount(placement, weights=work_s, minlength=num_chips).astype(np.float64)
    home = placement[units.tensor_producer]
    farthest = home.copy()
    tensor = np.repeat(np.arange(len(home)), np.diff(units.reader_ptr))
    np.maximum.at(farthest, tensor, placement[units.reader])
    tensor_s = (units.tensor_bytes * problem.link_s_per_byte).astype(np.float64)
    link_s = _along(home, farthest, tensor_s, num_chips)
    relayed = farthest > home + 1
    chip_s += _along(home[relayed] + 1, farthest[relayed], problem.relay_s[relayed], num_chips)
    if units.overlap:
        return max(problem.floor_s, float(chip_s.max()), float(link_s.max()))
    for i, seconds in enumerate(problem.input_s):
        readers = units.input_reader[units.input_ptr[i] : units.input_ptr[i + 1]]
        chip_s[np.unique(placement[readers])] += seconds
    chip_s += link_s
    chip_s[1:] += link_s[:-1]
    return float(chip_s.max())


def _along(
    first: NDArray[np.int32], end: NDArray[np.int32], seconds: NDArray[np.float64], num_chips: int
) -> NDArray[np.float64]:
    """[D] sums of ``seconds`` over all d of [first, end)."""
    change = np.bincount(first, weights=seconds, minlength=num_chips + 1)
    change -= np.bincount(end, weights=seconds, minlength=num_chips + 1)
    return np.maximum(np.cumsum(change)[:num_chips], 0.0)


def slice_units(
    graph: UnitGraph, order: NDArray[np.int32], least_ticks: int, most_ticks: int
) -> NDArray[np.int32] | None:
    """[U] chips of a slicing of ``order`` within ``most_ticks``; none is within ``least_ticks``."""
    num_units = graph.num_units
    place = np.empty(num_units, np.int64)
    place[order] = np.arange(num_units)
    home = place[graph.tensor_producer]
    last = np.maximum.reduceat(place[graph.reader], graph.reader_ptr[:-1]) if len(home) else home
    change = np.zeros(num_units + 2, np.int64)
    np.add.at(change, home + 1, graph.tensor_bytes)
    np.add.at(change, last + 1, -graph.tensor_bytes)
    cut = np.minimum(np.cumsum(change)[: num_units + 1] * graph.ticks_per_byte, MOST_TICKS).astype(np.int64)
    reach = np.zeros(num_units + 1, np.int64)
    if graph.passing == ADJACENT:
        np.maximum.at(reach, home + 1, last + 1)
    reach = np.maximum(np.maximum.accumulate(reach), np.arange(1, num_units + 2))
    work = np.concatenate([[0], np.cumsum(graph.unit_ticks[order])])
    before = np.zeros(num_units + 1, np.int64)
    best = None
    for step in range(STEPS + 1):
        ticks = most_ticks if step == 0 else (least_ticks + most_ticks) // 2
        if not _reach_end(work, cut, reach, graph.num_chips, graph.overlap, ticks, before):
            if best is None:
                return None
            least_ticks = ticks
            continue
        most_ticks = ticks
        cuts = [num_units]
        while cuts[-1] > 0:
            cuts.append(int(before[cuts[-1]]))
        best = np.array(cuts[::-1])
    assert best is not None
    placement = np.empty(num_units, np.int32)
    placement[order] = np.repeat(np.arange(len(best) - 1, dtype=np.int32), np.diff(best))
    return placement


@njit(cache=True, nogil=True)
def _reach_end(work, cut, reach, num_chips, overlap, ticks, before):
    """Whether ``num_chips`` segments within ``ticks`` cover all; ``before[j]`` is the cut before j."""
    last = len(work) - 1
    chips = np.full(last + 1, num_chips + 1, np.int64)
    least = np.full(num_chips + 1, np.int64(2) ** 62, np.int64)  # start of those on so many chips
    least_at = np.zeros(num_chips + 1, np.int64)
    chips[0] = 0
    entering = 0
    for j in range(1, last + 1):
        while entering < j and reach[entering] <= j:
            i = entering
            entering += 1
            if chips[i] >= num_chips or cut[i] > ticks:
                continue
            start = -work[i] + (0 if overlap else cut[i])
            if start < least[chips[i]]:
                least[chips[i]] = start
                least_at[chips[i]] = i
        if cut[j] > ticks:
            continue
        room = ticks - work[j] - (0 if overlap else cut[j])
        for q in range(num_chips):
            if least[q] <= room:
                chips[j] = q + 1
                before[j] = least_at[q]
                break
    return chips[last] <= num_chips
