"""The memory of every chip under a plan: tensors, buffer addresses, resident and streamed weights.

The analytical model and the simulator share this memory rule (design section 5), so a plan that fits one
fits the other. Buffers take whole pages (:attr:`CostTables.stored_bytes`). A tensor that enters or leaves a
chip has two buffers throughout. The other activations need their peak live bytes. If not everything fits
side by side and the target places buffers, they get addresses and need the highest address; buffers that
live at different times may share memory. If the weights exceed the remaining memory, a stream buffer is
reserved, and weights are streamed until the others fit, the last in part. States are weights that never
stream. The slow twin is ``tests/env/memory_twin.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, IntArray, LongArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.plain_loops import largest, stable_order
from go_opt.env.model.traffic import (
    NONE,
    Traffic,
    clear_chips,
    clear_kernel,
    count_tensors,
    new_traffic,
    weight_bytes,
)

MOST_BY_SIZE = 1024  # most buffers of a chip that are placed by size
NO_END = 1 << 62


@compiled
def most_alive(size_bytes: LongArray, born: LongArray, dead: LongArray) -> int:
    """Peak bytes of buffers that live from kernel ``born`` through ``dead``, sorted by ``born``."""
    by_death = stable_order(dead.astype(np.float64))
    gone, alive, most = 0, int64(0), int64(0)
    for buffer in range(len(size_bytes)):
        while dead[by_death[gone]] < born[buffer]:
            alive -= size_bytes[by_death[gone]]
            gone += 1
        alive += size_bytes[buffer]
        most = max(most, alive)
    return most


@compiled
def place_buffers(size_bytes: LongArray, born: LongArray, dead: LongArray, address: LongArray) -> int:
    """Give each buffer the lowest address that is free while it lives; fills ``address`` [A].

    Larger buffers are placed first: "greedy by size" of Pisarchyk and Lee, Efficient memory management
    for deep neural net inference (2020). On 4,000 chips of zoo graphs its mean is 1.7 % above the peak
    live bytes; the order of kernels is 13 % above. Unless lives are short it takes O(A^2), so more than
    MOST_BY_SIZE buffers are placed in the order of their kernels. Returns the highest address used.
    """
    num_buffers = len(size_bytes)
    if num_buffers > MOST_BY_SIZE:
        return place_in_order(size_bytes, born, dead, address)
    first = _first_alive(born, dead)
    lives_are_short = _lives_are_short(first)
    is_placed = np.zeros(num_buffers, np.bool_)
    placed = np.empty(num_buffers, np.int64)  # by address; if lives are short, those in the buffer's way
    height = int64(0)
    for number, buffer in enumerate(stable_order((-size_bytes).astype(np.float64))):
        count = int64(number)
        if lives_are_short:
            count = _in_the_way(buffer, first[buffer], born, dead, address, is_placed, placed)
        lowest = int64(0)
        for i in range(count):
            other = placed[i]
            if dead[other] < born[buffer] or dead[buffer] < born[other]:
                continue
            if lowest + size_bytes[buffer] <= address[other]:
                break
            lowest = max(lowest, address[other] + size_bytes[other])
        address[buffer] = lowest
        height = max(height, lowest + size_bytes[buffer])
        is_placed[buffer] = True
        if not lives_are_short:
            _insert(placed, number, buffer, address)
    return height


@uncounted_inner
def _insert(placed: LongArray, count: int, buffer: int, address: LongArray) -> None:
    """Add ``buffer`` to the first ``count`` of ``placed``, which are in order of their addresses."""
    at = count
    while at > 0 and address[placed[at - 1]] > address[buffer]:
        placed[at] = placed[at - 1]
        at -= 1
    placed[at] = buffer


@compiled_inner
def _first_alive(born: LongArray, dead: LongArray) -> LongArray:
    """[A] for each buffer the first that lives until it is born or longer; all before it live less long."""
    first, latest = np.empty(len(born), np.int64), np.empty(len(born), np.int64)
    low = int64(0)
    for buffer in range(len(born)):
        latest[buffer] = dead[buffer] if buffer == 0 else max(latest[buffer - 1], dead[buffer])
        while latest[low] < born[buffer]:
            low += 1
        first[buffer] = low
    return first


@uncounted_inner
def _lives_are_short(first: LongArray) -> bool:
    """Whether to look for the buffers that are alive with each is less work than to go through all placed."""
    steps = int64(0)
    for buffer in range(len(first)):
        steps += (buffer - first[buffer]) ** 2
    return steps < len(first) ** 2 // 4


@uncounted_inner
def _in_the_way(
    buffer: int,
    first: int,
    born: LongArray,
    dead: LongArray,
    address: LongArray,
    is_placed: BoolArray,
    found: LongArray,
) -> int:
    """Fill ``found`` with the placed buffers alive with ``buffer``, by address; returns their number."""
    count = int64(0)
    for other in range(first, len(born)):
        if born[other] > dead[buffer]:
            break
        if is_placed[other] and dead[other] >= born[buffer]:
            _insert(found, count, other, address)
            count += 1
    return count


@compiled
def place_in_order(size_bytes: LongArray, born: LongArray, dead: LongArray, address: LongArray) -> int:
    """Like :func:`place_buffers`, in the order of ``born``: O(A) times the number of holes."""
    num_buffers = len(size_bytes)
    by_death = stable_order(dead.astype(np.float64))
    # Holes by address; the last one has no end.
    begin, end = np.empty(num_buffers + 1, np.int64), np.empty(num_buffers + 1, np.int64)
    begin[0], end[0] = 0, NO_END
    holes, gone, height = int64(1), 0, int64(0)
    for buffer in range(num_buffers):
        while dead[by_death[gone]] < born[buffer]:
            freed = by_death[gone]
            holes = _free(begin, end, holes, address[freed], address[freed] + size_bytes[freed])
            gone += 1
        hole = 0
        while end[hole] - begin[hole] < size_bytes[buffer]:
            hole += 1
        address[buffer] = begin[hole]
        begin[hole] += size_bytes[buffer]
        height = max(height, begin[hole])
        if begin[hole] == end[hole]:
            holes -= 1
            for i in range(hole, holes):
                begin[i], end[i] = begin[i + 1], end[i + 1]
    return height


@uncounted_inner
def _free(begin: LongArray, end: LongArray, holes: int, start: int, stop: int) -> int:
    """Add the hole [start, stop), merged with adjacent holes; returns the number of holes."""
    if start == stop:
        return holes
    at = 0
    while begin[at] < start:  # stops at the last hole, which has no end
        at += 1
    if at > 0 and end[at - 1] == start:
        end[at - 1] = stop
        if begin[at] == stop:
            end[at - 1] = end[at]
            holes -= 1
            for i in range(at, holes):
                begin[i], end[i] = begin[i + 1], end[i + 1]
        return holes
    if begin[at] == stop:
        begin[at] = start
        return holes
    for i in range(holes, at, -1):
        begin[i], end[i] = begin[i - 1], end[i - 1]
    begin[at], end[at] = start, stop
    return holes + 1


FITS, TOO_LARGE, FRAGMENTED = range(3)


class Holdings(NamedTuple):
    """Tensors on chips. Axes: ``D`` chips, ``A`` activations that stay on one, ``W`` pairs (weight, chip)."""

    border_bytes: LongArray  # [D] of tensors that enter or leave
    resident_bytes: LongArray  # [D] of weights, if all of them stay
    activation: IntArray  # [A] tensors, chip by chip, in the order of their kernels
    activation_ptr: LongArray  # [D + 1]
    born: LongArray  # [A] kernel that writes it
    dead: LongArray  # [A] kernel that reads it last
    size_bytes: LongArray  # [A] stored
    address: LongArray  # [A] where memory is tight, else NONE
    alive_bytes: LongArray  # [D] peak of these activations
    height_bytes: LongArray  # [D] the same, or to the highest address
    weight: IntArray  # [W] chip by chip, the largest first
    weight_ptr: LongArray  # [D + 1]
    weight_bytes: LongArray  # [W] stored; of a state, for the sequences of the busiest chip of the stage
    weight_touched: LongArray  # [W] largest read by an op on the chip
    weight_reader: IntArray  # [W] first kernel that reads it on the chip


class Fit(NamedTuple):
    """How the chips' memory is used."""

    outcome: int  # FITS; TOO_LARGE; FRAGMENTED: live bytes would fit, their addresses do not
    chip: int  # the first that does not fit, or NONE
    peak_bytes: LongArray  # [D] border buffers and activations; to the highest address if tight
    weight_bytes: LongArray  # [D] resident
    stream_bytes: LongArray  # [D] bytes of streamed weights that its ops touch
    forwarded_bytes: LongArray  # [D] the part of these that chips of a stage forward to each other
    is_streamed: BoolArray  # [W] in part or as a whole
    streamed_bytes: LongArray  # [W] of them, that ops touch
    is_forwarded: BoolArray  # [W]


@compiled_inner
def csr_of(row_of: IntArray, num_rows: int) -> tuple[LongArray, IntArray]:
    """CSR of items by row, in item order: pointers, and items; those with a negative row are left out."""
    pointers = np.zeros(num_rows + 1, np.int64)
    for row in row_of:
        if row >= 0:
            pointers[row + 1] += 1
    for row in range(num_rows):
        pointers[row + 1] += pointers[row]
    items = np.empty(pointers[num_rows], np.int32)
    filled = pointers.copy()
    for item in range(len(row_of)):
        row = row_of[item]
        if row >= 0:
            items[filled[row]] = item
            filled[row] += 1
    return pointers, items


@compiled
def holdings(
    tables: CostTables, kernel_of: IntArray, kernel_chip: IntArray, stage_size: LongArray
) -> Holdings:
    """The tensors on each chip.

    Args:
      kernel_of: [N] kernels of ops, numbered along the order.
      kernel_chip: [M] chips of kernels: the first of each stage.
      stage_size: [D] chips of the stage that starts at each chip.
    """
    num_chips = len(tables.chip_kind)
    traffic = new_traffic(tables, stage_size)
    clear_chips(traffic)
    for kernel in range(len(kernel_chip)):
        clear_kernel(traffic, kernel)
    count_tensors(tables, kernel_of, kernel_chip, 0, traffic)
    alive, most = np.zeros(num_chips, np.int64), np.zeros(num_chips, np.int64)
    peaks_alive(traffic, kernel_chip, len(kernel_chip), alive, most)
    is_listed = np.ones(num_chips, np.bool_)
    return holdings_on(tables, kernel_of, kernel_chip, traffic, most, is_listed, False)


@uncounted_inner
def peaks_alive(
    traffic: Traffic, kernel_chip: IntArray, num_kernels: int, alive: LongArray, most: LongArray
) -> None:
    """Fill in the ``most`` bytes [D] of activations that stay on their chip; ``alive`` [D] is scratch."""
    for chip in range(len(most)):
        alive[chip] = most[chip] = 0
    for kernel in range(num_kernels):
        chip = kernel_chip[kernel]
        alive[chip] += traffic.born_bytes[kernel]
        most[chip] = max(most[chip], alive[chip])
        alive[chip] -= traffic.dead_bytes[kernel]


@compiled_inner
def holdings_on(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    traffic: Traffic,
    alive_bytes: LongArray,
    is_listed: BoolArray,
    bytes_alone: bool,
) -> Holdings:
    """The tensors on the chips ``is_listed`` [D]; bytes are those of all chips.

    Activations get addresses where not all tensors fit side by side. If ``bytes_alone`` are asked for, none
    of one size, which leave no holes, and no weights are listed where all fit.
    """
    activation_ptr = _pointers(traffic.num_inner, is_listed)
    num_activations = activation_ptr[-1]
    activation, born, dead, size, address = (
        np.empty(num_activations, np.int32),
        np.empty(num_activations, np.int64),
        np.empty(num_activations, np.int64),
        np.empty(num_activations, np.int64),
        np.full(num_activations, NONE, np.int64),
    )
    _list_made(tables, traffic, kernel_chip, is_listed, activation_ptr.copy(), activation, born, dead, size)
    border, resident = traffic.border_bytes, traffic.resident_bytes
    height, has_weights = alive_bytes.copy(), is_listed.copy()
    for d in range(len(height)):
        side_by_side = resident[d] + border[d] + traffic.inner_bytes[d]
        if is_listed[d] and side_by_side > tables.sram_bytes[d] and tables.places_buffers:
            mine = slice(activation_ptr[d], activation_ptr[d + 1])
            if not bytes_alone or _differ(size[mine]):
                height[d] = place_buffers(size[mine], born[mine], dead[mine], address[mine])
        if bytes_alone:
            has_weights[d] &= resident[d] > tables.sram_bytes[d] - border[d] - height[d]
    weight_ptr = _pointers(traffic.num_weights, has_weights)
    weight, stored, touched, reader = _weights(
        tables, kernel_of, kernel_chip, traffic.stage_size, has_weights, weight_ptr
    )
    return Holdings(
        border, resident, activation, activation_ptr, born, dead, size, address, alive_bytes, height,
        weight, weight_ptr, stored, touched, reader,
    )  # fmt: skip


@uncounted_inner
def _differ(sizes: LongArray) -> bool:
    differs = False
    for size in sizes:
        differs |= size != sizes[0]
    return differs


@compiled_inner
def _pointers(numbers: LongArray, is_listed: BoolArray) -> LongArray:
    """CSR pointers of rows [D] of so many entries; those not listed are empty."""
    pointers = np.zeros(len(numbers) + 1, np.int64)
    for row in range(len(numbers)):
        pointers[row + 1] = pointers[row] + (numbers[row] if is_listed[row] else 0)
    return pointers


@uncounted_inner
def _list_made(
    tables: CostTables,
    traffic: Traffic,
    kernel_chip: IntArray,
    is_listed: BoolArray,
    begin: LongArray,
    activation: IntArray,
    born: LongArray,
    dead: LongArray,
    size: LongArray,
) -> None:
    """List activations from the last to the first; ``begin`` [D + 1] moves from the end of each row to it."""
    for kernel in range(len(kernel_chip) - 1, -1, -1):
        chip = kernel_chip[kernel]
        k = traffic.last_made[kernel] if is_listed[chip] else NONE
        while k != NONE:
            begin[chip + 1] -= 1
            i = begin[chip + 1]
            activation[i], born[i], dead[i] = k, kernel, traffic.dead_of[k]
            size[i] = tables.stored_bytes[k]
            k = traffic.made_before[k]


@compiled_inner
def _weights(
    tables: CostTables,
    kernel_of: IntArray,
    kernel_chip: IntArray,
    stage_size: LongArray,
    is_listed: BoolArray,
    weight_ptr: LongArray,
) -> tuple[IntArray, LongArray, LongArray, IntArray]:
    num_chips, pairs = len(is_listed), weight_ptr[-1]
    weight, stored_bytes, touched, reader = (
        np.empty(pairs, np.int32),
        np.empty(pairs, np.int64),
        np.empty(pairs, np.int64),
        np.empty(pairs, np.int32),
    )
    end, last = weight_ptr.copy(), np.full(num_chips, NONE, np.int64)
    for rank in range(len(tables.weight_by_size) if pairs > 0 else 0):
        k = tables.weight_by_size[rank]
        for r in range(tables.reader_ptr[k], tables.reader_ptr[k + 1]):
            kernel = kernel_of[tables.reader_op[r]]
            chip = kernel_chip[kernel]
            if not is_listed[chip]:
                continue
            slot = end[chip] - 1
            if last[chip] != rank:
                last[chip] = rank
                slot += 1
                end[chip] += 1
                is_state = tables.sequences > 0 and tables.tensor_bytes[k] == 0
                size = stage_size[chip] * tables.stage_chips[chip]
                weight[slot], touched[slot], reader[slot] = k, 0, kernel
                stored_bytes[slot] = weight_bytes(tables.stored_bytes[k], is_state, tables.sequences, size)
            touched[slot] = max(touched[slot], tables.read_bytes[r])
            reader[slot] = min(reader[slot], kernel)
    return weight, stored_bytes, touched, reader


@compiled
def fit_chips(tables: CostTables, held: Holdings) -> Fit:
    """Choose the weights to stream.

    Weights stream in order of the touched share of their bytes, then larger first, then by index. Of the
    last, only as many pages as necessary stream if an op reads it as a whole: the rows of an embedding
    table that are read differ between inferences. For the same reason chips that share a stream forward a
    kernel's weights only if it reads all of each.
    """
    num_chips = len(tables.chip_kind)
    peak, resident = held.border_bytes.copy(), held.resident_bytes.copy()
    streamed, forwarded = np.zeros(num_chips, np.int64), np.zeros(num_chips, np.int64)
    is_streamed, is_forwarded = np.zeros(len(held.weight), np.bool_), np.zeros(len(held.weight), np.bool_)
    streamed_bytes = np.zeros(len(held.weight), np.int64)
    outcome, culprit = FITS, NONE
    for chip in range(num_chips):
        peak[chip] += held.height_bytes[chip]
        room = tables.sram_bytes[chip] - peak[chip]
        if resident[chip] > max(room, 0):
            room -= tables.stream_buffer_bytes[chip]
            for pair in _by_use(tables, held, chip):
                weight = held.weight[pair]
                if resident[chip] <= room or tables.tensor_bytes[weight] == 0:
                    break
                is_streamed[pair] = True
                leaves = held.weight_bytes[pair]
                is_last = resident[chip] - leaves < room
                if is_last and held.weight_touched[pair] == tables.tensor_bytes[weight]:
                    leaves = -(-(resident[chip] - room) // tables.page_bytes) * tables.page_bytes
                resident[chip] -= leaves
                streamed_bytes[pair] = min(leaves, held.weight_touched[pair])
                streamed[chip] += streamed_bytes[pair]
        if tables.stream_sharers[chip] > 1 and streamed[chip] > 0:
            forwarded[chip] = _forward(tables, held, chip, is_streamed, streamed_bytes, is_forwarded)
        if resident[chip] > room and outcome == FITS:  # activations, or states, which do not stream
            holes_bytes = held.height_bytes[chip] - held.alive_bytes[chip]
            outcome = TOO_LARGE if room + holes_bytes < resident[chip] else FRAGMENTED
            culprit = chip
    return Fit(
        outcome, culprit, peak, resident, streamed, forwarded, is_streamed, streamed_bytes, is_forwarded,
    )  # fmt: skip


@compiled_inner
def _forward(
    tables: CostTables,
    held: Holdings,
    chip: int,
    is_streamed: BoolArray,
    streamed_bytes: LongArray,
    is_forwarded: BoolArray,
) -> int:
    """Mark the weights that the chips of a stage forward to each other; returns their bytes."""
    pairs = range(held.weight_ptr[chip], held.weight_ptr[chip + 1])
    reads_a_part = np.zeros(largest(held.weight_reader) + 1, np.bool_)
    for pair in pairs:
        if is_streamed[pair] and held.weight_touched[pair] < tables.tensor_bytes[held.weight[pair]]:
            reads_a_part[held.weight_reader[pair]] = True
    forwarded = int64(0)
    for pair in pairs:
        if is_streamed[pair] and not reads_a_part[held.weight_reader[pair]]:
            is_forwarded[pair] = True
            forwarded += streamed_bytes[pair]
    return forwarded


def stream_order(tables: CostTables, weight: NDArray[np.integer], touched_bytes: LongArray) -> LongArray:
    """The order in which chips stream the weights ``weight`` [R], of which they touch ``touched_bytes`` [R].

    The least touched share comes first, then the larger weight, then the lower index. Weights of zero
    bytes never stream and must be left out. :func:`_by_use` does the same in compiled code.
    """
    size = tables.tensor_bytes[weight]
    return np.lexsort([weight, -size, touched_bytes / size])


@compiled_inner
def _by_use(tables: CostTables, held: Holdings, chip: int) -> LongArray:
    """A chip's pairs by touched share of the weight, the least first; weights of zero bytes come last."""
    first = held.weight_ptr[chip]
    share = np.empty(held.weight_ptr[chip + 1] - first)
    for i in range(len(share)):
        size = tables.tensor_bytes[held.weight[first + i]]
        share[i] = held.weight_touched[first + i] / size if size > 0 else np.inf
    pairs = stable_order(share)
    for i in range(len(pairs)):
        pairs[i] += first
    return pairs
