"""The arrays of annealing, and the names of their columns.

Kernels that run a million times a second pass few arrays, and what belongs together stands
together in memory: a table is one array of whole numbers, and the names below are its
columns. Compute is counted in *ticks*, the 2^-60th part of all work: sums of whole numbers do
not depend on the order of moves, and taking a move back restores a state exactly.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Columns of `units`. Ragged ones: the row's entries begin here and end where the next row's begin.
PLACE = 0  # of the unit's first kernel along the order
INNER = 1  # bytes that kernels of one unit hand to each other
SUCCESSORS, PREDECESSORS = 2, 3  # units
READS = 4  # tensors of others, each once
TOUCHES = 5  # bytes touched, in the order of READS
WRITES = 6  # activations that others read, and outputs
LASTS = 7  # activations of which the unit is the last reader along the order
CHIP = 8
FOLLOWING, PRECEDING = 9, 10  # unit of the same chip along the order, or NONE
GOAL = 11  # chip of a unit on the move
IS_MOVING, IS_WAITING, IS_DIRTY = 12, 13, 14
BEST = 15  # chip in the best placement met
TICKS = 16  # compute on a chip of kind 0, then of the other kinds

# Columns of `tensors`.
HOME = 0  # unit, FROM_HOST or IS_WEIGHT
SIZE = 1  # bytes
READERS = 2  # units that read it, its home apart
IS_OUTPUT = 3
ROW = 4  # its counts by chip in `readers_on`, or NONE where at most one unit reads it
RANK = 5  # of weights by size
FARTHEST = 6  # chip of the farthest reader
STORED = 7  # bytes in memory
TENSOR_COLUMNS: Final = 8
FROM_HOST, IS_WEIGHT = -1, -2
NONE = -1

# Columns of `chips`: loads in bytes, where nothing else is said.
UNITS = 0  # number of units
COMPUTE = 1  # ticks
LINK = 2  # over the link that leaves the chip
RELAYED = 3
RELAYS = 4  # number of relays
WEIGHTS = 5  # each once
HELD = 6  # double buffers of what crosses the chip's border
INSIDE = 7  # activations that stay on the chip, whenever alive
HOST_IN, HOST_OUT = 8, 9
STREAM = 10  # weights that stream
OVER = 11  # activations beyond the memory
SLACK = 12  # of STREAM that would do to stay, could a weight stream in part
NUM_LOADS: Final = 13
OLD_STREAM, OLD_OVER, OLD_SLACK = 13, 14, 15  # before the last move
FIRST, LAST = 16, 17  # units along the order, or NONE
KIND, SRAM, STREAM_BUFFER = 18, 19, 20
CHIP_COLUMNS: Final = 21

# Columns of `rates`.
COPY_S_PER_BYTE, COPY_S, LINK_S_PER_BYTE, HOST_IN_S_PER_BYTE, HOST_OUT_S_PER_BYTE = range(5)

# Entries of `numbers`.
USED = 0  # chips with units
MOVES = 1  # made so far, BEFORE_START in a new state
ALL_STREAM, ALL_OVER, ALL_SLACK = 2, 3, 4
INPUT_BYTES = 5  # each input once
OVERLAP, PASSING, NO_SKIP = 6, 7, 8
LOW, HIGH = 9, 10  # chips between which loads changed since they were priced; LOW > HIGH: nowhere
SIZES: Final = 11  # of lists, in their order

# Rows of `lists`.
LOG_UNIT, LOG_CHIP = 0, 1  # units moved since chips were priced, and where they came from
DIRTY = 2  # units moved since the best placement
MOVING = 3  # units on the move; before the start, all along the order
WAITING = 4  # those whose neighbours are to be looked at
WEIGHT = 5  # tensor by rank
WEIGHT_HEAP = 6  # weights of a chip by rank,
WEIGHT_TOUCHED = 7  # … and the bytes it touches of each by rank; NONE before and after
NUM_LISTS: Final = 8

# Rows of `terms`: D chips, D links, the host's link in, its link out.
SECONDS, POWERED, NEW_SECONDS, NEW_POWERED = range(4)

# Entries of `figures`.
SUM = 0  # of the powers of all terms
SCALE = 1  # seconds
POWER = 2
TEMPERATURE = 3
BEST_S = 4  # least of the largest terms met
TICK_S = 5
NUM_FIGURES: Final = 6

BEFORE_START = -1
ALL_TICKS: Final = 2.0**60


class AnnealingState(NamedTuple):
    """Axes: ``U`` units, ``K`` tensors, ``D`` chips, ``Q`` kinds, ``W`` weights."""

    units: NDArray[np.int64]  # [U + 1, TICKS + Q]
    entries: NDArray[np.int64]  # [...] of the ragged columns of `units`
    tensors: NDArray[np.int64]  # [K, TENSOR_COLUMNS]
    readers_on: NDArray[np.int32]  # [R * D] units on each chip that read a tensor
    chips: NDArray[np.int64]  # [D, CHIP_COLUMNS]
    rates: NDArray[np.float64]  # [D, 5] of the host zero where a chip does not pay for transfers
    lists: NDArray[np.int64]  # [NUM_LISTS, ...]
    numbers: NDArray[np.int64]  # [SIZES + NUM_LISTS]
    terms: NDArray[np.float64]  # [4, 2 D + 2]
    figures: NDArray[np.float64]  # [NUM_FIGURES]
    priority: NDArray[np.float64]  # [W] of streaming, by rank
    allowed: NDArray[np.bool_]  # [U, D], or [0, 0] where every unit may run on every chip
