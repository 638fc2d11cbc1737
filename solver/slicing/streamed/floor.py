"""The fewest bytes that any slicing of an order streams, at least: a bound from a few hundred cells.

The dynamic program of :mod:`go_opt.solver.slicing.streamed.cuts` over the cells of
:mod:`go_opt.solver.slicing.streamed.cells`: a hundredth of its work, and close to what it finds. The same
program from both ends says which cuts can belong to a slicing that is good enough. Relays and
the traffic of cuts are left out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64
from go_opt.solver.slicing.segments.memory import SegmentMemory, least_needed_bytes
from go_opt.solver.slicing.segments.problem import SliceProblem
from go_opt.solver.slicing.streamed.cells import Cells, cell_streams, make_cells
from go_opt.solver.slicing.streamed.weight_streams import WeightReads, no_weights_held

CELLS: Final = 96
FINE_CELLS: Final = 400  # where the first ones do not tell


class Windows(NamedTuple):
    """Cuts that a slicing within the interval may consist of; axis ``M`` kernels."""

    first_start: LongArray  # [M + 1] of segments that end at each cut
    is_of_use: BoolArray  # [M + 1]

    @property
    def num_segments(self) -> int:
        """That end at a cut of use, at most."""
        cuts = np.flatnonzero(self.is_of_use)
        return int((cuts - self.first_start[cuts]).sum())


class StreamedFloor:
    """The bound along one order.

    Args:
      memory: of segments of the order, where weights may stream.
      max_chips: of a slicing.
      most_chips: of a stage.
    """

    def __init__(
        self,
        problem: SliceProblem,
        reads: WeightReads,
        memory: SegmentMemory,
        max_chips: int,
        most_chips: int,
        num_cells: int = CELLS,
    ) -> None:
        self._max_chips, self._most_chips = max_chips, most_chips
        kernel_at, room_bytes = np.arange(problem.num_kernels), int(memory.sram_bytes.max())
        self._cells = make_cells(problem, reads, least_needed_bytes(memory), kernel_at, room_bytes, num_cells)
        self._streamed = cell_streams(self._cells, room_bytes, np.inf, no_weights_held(reads))

    def least_bytes(self, interval_s: float) -> float:
        """Streamed within the interval, at least; infinite where there is no slicing within it."""
        before = least_before(
            self._cells, self._streamed, self._max_chips, self._most_chips, interval_s, np.inf
        )
        return float(before[-1, -1])

    def windows(self, problem: SliceProblem, interval_s: float, most_bytes: float) -> Windows:
        """The cuts of slicings that take so long and stream so many bytes at most."""
        return Windows(
            *_windows(
                self._cells, self._streamed, problem.num_kernels,
                self._max_chips, self._most_chips, interval_s, most_bytes,
            )
        )  # fmt: skip


@compiled
def least_before(
    cells: Cells, streamed: FloatArray, max_chips: int, most_chips: int, interval_s: float, most_bytes: float
) -> FloatArray:
    """[G + 2, D + 1] bytes streamed before each node by no more than so many chips.

    More than ``most_bytes`` are of no interest.
    """
    last = len(cells.start)
    slack_s = interval_s * (1.0 + 1e-9)
    before = np.full((last + 1, max_chips + 1), np.inf)
    before[0] = 0.0
    first = 0
    for v in range(1, last + 1):
        if not cells.may_cut[v]:
            continue
        while first < v and _work_s(cells, first, v) > slack_s * most_chips:
            first += 1
        after = before[v]
        for u in range(first, v):
            size = _chips_for(cells, u, v, most_chips, slack_s)
            least = streamed[cells.covers_from[u], max(v - 1, cells.covers_from[u])]
            from_u = before[u]
            if size > max_chips or cells.reach[u] > v or from_u[max_chips - size] == np.inf:
                continue
            if least == np.inf or from_u[max_chips - size] + least > most_bytes:
                continue
            for d in range(max_chips + 1 - size):
                reached = from_u[d] + least
                after[d + size] = reached if reached < after[d + size] else after[d + size]
    return before


@compiled_inner
def _least_behind(
    cells: Cells,
    streamed: FloatArray,
    before: FloatArray,
    max_chips: int,
    most_chips: int,
    interval_s: float,
    most_bytes: float,
) -> FloatArray:
    """[G + 2, D + 1] bytes streamed behind each node by no more than so many chips, likewise."""
    last = len(cells.start)
    slack_s = interval_s * (1.0 + 1e-9)
    behind = np.full((last + 1, max_chips + 1), np.inf)
    behind[last] = 0.0
    for v in range(last, 0, -1):
        if not cells.may_cut[v]:
            continue
        for u in range(v - 1, -1, -1):
            size = _chips_for(cells, u, v, most_chips, slack_s)
            if size > max_chips:
                break
            least = streamed[cells.covers_from[u], max(v - 1, cells.covers_from[u])]
            if cells.reach[u] > v or least == np.inf:
                continue
            if before[u, max_chips] + least + behind[v, max_chips] > most_bytes:
                continue
            from_v, at_u = behind[v], behind[u]
            for d in range(max_chips + 1 - size):
                reached = from_v[d] + least
                at_u[d + size] = reached if reached < at_u[d + size] else at_u[d + size]
    return behind


@compiled
def _windows(
    cells: Cells,
    streamed: FloatArray,
    num_kernels: int,
    max_chips: int,
    most_chips: int,
    interval_s: float,
    most_bytes: float,
) -> tuple[LongArray, BoolArray]:
    before = least_before(cells, streamed, max_chips, most_chips, interval_s, most_bytes)
    behind = _least_behind(cells, streamed, before, max_chips, most_chips, interval_s, most_bytes)
    last = len(cells.start)
    slack_s = interval_s * (1.0 + 1e-9)
    first_start = np.arange(num_kernels + 1)
    is_of_use = np.zeros(num_kernels + 1, np.bool_)
    node_of_use = np.zeros(last + 1, np.bool_)
    for v in range(1, last + 1):
        if not cells.may_cut[v]:
            continue
        first = v
        # Two cuts in one cell, with a segment between them that streams nothing.
        may_be_within = v < last and cells.reach[min(v, last - 1)] <= v
        if may_be_within and _is_joined(before[v], behind[v], 0.0, 1, most_bytes):
            node_of_use[v] = True
            first_start[cells.start[v - 1] : cells.start[v]] = cells.start[v - 1]
        for u in range(v - 1, -1, -1):
            size = _chips_for(cells, u, v, most_chips, slack_s)
            if size > max_chips:
                break
            least = streamed[cells.covers_from[u], max(v - 1, cells.covers_from[u])]
            if cells.reach[u] <= v and _is_joined(before[u], behind[v], least, size, most_bytes):
                first = u
                node_of_use[u] = True
                node_of_use[v] = True
        if first < v:
            start = cells.start[max(first - 1, 0)]
            end = cells.start[v] if v < last else num_kernels + 1
            first_start[cells.start[v - 1] if v < last else num_kernels : end] = start
    for v in range(1, last):
        is_of_use[cells.start[v - 1] : cells.start[v]] = node_of_use[v]
    is_of_use[0] = True
    is_of_use[num_kernels] = True
    return first_start, is_of_use


@compiled_inner
def _is_joined(before: FloatArray, behind: FloatArray, least: float, size: int, most_bytes: float) -> bool:
    """Whether some number of chips before a segment and behind it keep to ``most_bytes``."""
    max_chips = len(before) - 1
    if before[max_chips] + least + behind[max_chips] > most_bytes:
        return False
    for d in range(max_chips + 1 - size):
        if before[d] + least + behind[max_chips - size - d] <= most_bytes:
            return True
    return False


@compiled_inner
def _work_s(cells: Cells, u: int, v: int) -> float:
    """Least work of a segment from node u to node v."""
    start, end = cells.works_from[u], v - 1
    return cells.work_s[end] - cells.work_s[start] if start < end else 0.0


@compiled_inner
def _chips_for(cells: Cells, u: int, v: int, most_chips: int, interval_s: float) -> int:
    """Chips that a segment takes at least; more than there are where no number is enough."""
    work_s = _work_s(cells, u, v)
    if work_s <= interval_s:
        return int64(1)
    if work_s > interval_s * most_chips:
        return int64(1 << 30)
    return int64(np.ceil(work_s / interval_s))
