"""What annealing keeps: arrays of records, so that what belongs together stands together in memory.

Compute is counted in *ticks*, the 2^-60th part of all work: sums of whole numbers do not depend
on the order of moves, and taking a move back restores a state exactly.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from go_opt.common.arrays import FloatArray, IntArray, LongArray, RecordArray
from go_opt.common.records import record

NONE: Final = -1
FROM_HOST, IS_WEIGHT = -1, -2  # for the home of a tensor
ALL_TICKS: Final = 2.0**60

# `place` is that of the first kernel along the order; `inner_bytes` its kernels hand to each other.
# `successors` to `lasts` are where lists in `entries` begin, which end where those of the next unit
# begin: units; tensors of others that are read, each once, and the bytes touched of each; activations
# that others read, and outputs; activations of which the unit is the last reader along the order.
# `ticks` and `allowed` are rows of `entries`: compute by kind of chip; 1 for the chips it may run on.
# `following` and `preceding` are units of the same chip along the order, or NONE; `goal` is the chip of a
# unit on the move, `best` its chip in the best placement met.
UNIT: Final = record(
    "place inner_bytes successors predecessors reads touches writes lasts ticks allowed "
    "chip following preceding goal is_moving is_waiting is_dirty best"
)
# `home` is a unit, FROM_HOST or IS_WEIGHT; `readers` are units, the home apart. `row`: its counts by chip
# in `readers_on`, or NONE where at most one unit reads it; `rank`: of weights by size; `farthest`: the
# chip of its farthest reader.
TENSOR: Final = record("home size_bytes stored_bytes readers is_output row rank farthest")
# `units` are a number; `link_bytes` leave the chip; `weight_bytes` count each once; `held_bytes` are
# double buffers of what crosses the chip's border, `inside_bytes` activations that stay, whenever alive;
# `stream_bytes` of weights, of which `slack_bytes` would do to stay, could a weight stream in part;
# `over_bytes` of activations are beyond the memory. `old_*` were so before the last move. `first` and `last`
# are units along the order, or NONE. The host's rates are zero where a chip does not pay for transfers.
# So many `stream_sharers` forward to each other what the chip streams; `stream_bytes` are the chip's share.
CHIP: Final = record(
    "units compute_ticks link_bytes relayed_bytes relays weight_bytes held_bytes inside_bytes host_in_bytes "
    "host_out_bytes stream_bytes over_bytes slack_bytes old_stream_bytes old_over_bytes old_slack_bytes "
    "first last kind sram_bytes stream_buffer_bytes stream_sharers",
    "copy_s_per_byte copy_s link_s_per_byte host_in_s_per_byte host_out_s_per_byte",
)
# A term of the objective and its power, and what they are to be if the move is kept.
TERM: Final = record("", "seconds powered new_seconds new_powered")
# `moves` are made so far; `used` chips have units; `stream_bytes` to `slack_bytes` are those of all chips;
# `input_bytes` count each input once. Loads changed since they were priced on chips `low` … `high`, on
# none where low > high. `logged` to `waiting` are the lengths of lists. `powered_sum` is of the powers of all
# terms, `per_scale` one over the seconds that are taken for 1, `best_s` the least of the largest terms met.
RUN: Final = record(
    "moves used stream_bytes over_bytes slack_bytes input_bytes overlap passing no_skip low high "
    "logged dirty moving waiting",
    "powered_sum per_scale power temperature best_s tick_s",
)


# Places of lists: units moved since chips were priced, and where they came from; units moved since the
# best placement; units on the move; those whose neighbours are to be looked at.
LISTS: Final = record("logged_unit logged_chip dirty moving waiting")


class AnnealingState(NamedTuple):
    """What moves change. Every call hands on all arrays: few are faster. Axes: ``U`` units, ``D`` chips."""

    units: RecordArray  # [U + 1] of UNIT
    entries: LongArray
    tensors: RecordArray  # [K] of TENSOR
    readers_on: IntArray  # [R * D] units on each chip that read a tensor
    chips: RecordArray  # [D] of CHIP
    run: RecordArray  # [1] of RUN
    lists: RecordArray  # [2 U] of LISTS


class Prices(NamedTuple):
    """What a state costs. Axes: ``D`` chips, ``W`` weights by size."""

    terms: RecordArray  # [2 D + 2] of TERM: chips, links, the host's link in, its link out
    weight: LongArray  # [W] tensor
    heap: LongArray  # [W] weights of a chip
    touched_bytes: LongArray  # [W] by the chip; NONE before and after
    priority: FloatArray  # [W] of streaming
