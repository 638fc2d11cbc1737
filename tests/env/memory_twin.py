"""The slow twin of ``env/model/memory.py``: what one chip holds, where it lies, what streams.

* A tensor takes whole pages. One that enters or leaves the chip has two buffers throughout;
  the others live from the kernel that makes them to the one that reads them last.
* Where all that side by side exceeds the chip and the target places buffers, each of the
  others gets the lowest address that is free as long as it lives, the largest first, and
  they need what lies below the highest end. Elsewhere they need the most alive at once.
* Where weights do not fit beside that, a buffer is set aside for streams, and weights leave,
  the least touched for each byte first, until the others fit. Of a weight that a kernel
  touches as a whole, no more pages leave than must.
* Chips that forward do so with what a kernel waits for, if it touches all of each weight of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from go_opt.env.model.memory import MOST_BY_SIZE
from go_opt.model.graph import INPUT, STATE, WEIGHT

if TYPE_CHECKING:
    from tests.env.numpy_twin import Twin


@dataclass
class Life:
    """An activation that stays on its chip, in kernels from first to last."""

    tensor: int
    size_bytes: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass
class ChipMemory:
    """The memory of one chip."""

    border_bytes: int
    lives: list[Life]
    address: dict[int, int]  # of tensors; empty where none is needed
    most_alive_bytes: int  # of ``lives``
    peak_bytes: int
    weight_bytes: int  # resident
    streams: list[tuple[int, int, bool]]  # (first kernel, bytes touched, whether all) of what streams
    short_bytes: int  # that activations and stream buffer take beyond the chip's memory

    @property
    def stream_bytes(self) -> int:
        return sum(touched for _, touched, _ in self.streams)

    @property
    def forwarded_bytes(self) -> int:
        return sum(touched for kernel, touched, _ in self.streams if self.may_forward(kernel))

    def may_forward(self, kernel: int) -> bool:
        return all(is_whole for first, _, is_whole in self.streams if first == kernel)


def chip_memory(costs: Twin, chip: int) -> ChipMemory:
    kind, parameters = costs.kind(chip), costs.parameters
    border, lives = border_bytes(costs, chip), lives_on(costs, chip)
    weights = weights_on(costs, chip)
    resident = sum(costs.stored_on(k, chip) for k in weights)
    alive = [sum(a.size_bytes for a in lives if a.first <= m <= a.last) for m in range(len(costs.kernels))]
    most = top = max(alive, default=0)
    address: dict[int, int] = {}
    if border + resident + sum(a.size_bytes for a in lives) > kind.sram_bytes and not parameters.fit_by_size:
        address = addresses(lives)
        top = max((address[a.tensor] + a.size_bytes for a in lives), default=0)
    room = kind.sram_bytes - border - top
    streams: list[tuple[int, int, bool]] = []
    if resident > 0 and resident > room:
        room -= parameters.kinds[costs.target.chip_kind[chip]].stream_buffer_bytes
        for k in sorted(weights, key=lambda k: (weights[k].use, -costs.tensor_bytes[k], k)):
            if resident > room and costs.tensor_bytes[k]:
                is_whole = weights[k].touched == costs.tensor_bytes[k]
                leaves = costs.stored_on(k, chip)
                if is_whole:  # whole pages, as few as do
                    page = parameters.page_bytes
                    leaves = min(leaves, -(-(resident - room) // page) * page)
                resident -= leaves
                streams.append((weights[k].first, min(weights[k].touched, leaves), is_whole))
    # What is left are states, which never stream.
    return ChipMemory(border, lives, address, most, border + top, resident, streams, max(0, resident - room))


def border_bytes(costs: Twin, chip: int) -> int:
    """Two buffers of each tensor that enters or leaves; a relay's copy shares its source's."""
    total = 0
    for k in costs.activations() + costs.inputs():
        is_input = costs.graph.tensor_kind[k] == INPUT
        if is_input or costs.home(k) != chip:
            crosses = chip in costs.reader_chips(k)
        elif costs.is_relayed(k):
            crosses = False
        else:
            crosses = bool(costs.graph.tensor_is_output[k]) or bool(costs.reader_chips(k) - {chip})
        total += 2 * costs.stored_bytes[k] if crosses else 0
    return total


def lives_on(costs: Twin, chip: int) -> list[Life]:
    """Activations made and read on the chip, by more than one kernel, in the order they are made."""
    lives = []
    for k in costs.activations():
        if costs.home(k) != chip or costs.graph.tensor_is_output[k] or costs.reader_chips(k) != {chip}:
            continue
        if costs.is_stored(k):
            kernels = [costs.kernel_of[op] for op in (int(costs.graph.tensor_producer[k]), *costs.touched[k])]
            lives.append(Life(k, costs.stored_bytes[k], min(kernels), max(kernels)))
    return sorted(lives, key=lambda life: (life.first, life.tensor))


@dataclass
class Use:
    first: int  # kernel on the chip that reads the weight
    touched: int  # bytes
    use: Fraction  # of them, of each of the weight's


def weights_on(costs: Twin, chip: int) -> dict[int, Use]:
    found = {}
    for k in np.flatnonzero(np.isin(costs.graph.tensor_kind, (WEIGHT, STATE))).tolist():
        reads = {op: size for op, size in costs.touched[k].items() if costs.plan.placement[op] == chip}
        if reads:
            touched = max(reads.values())
            share = Fraction(touched, max(costs.tensor_bytes[k], 1))
            found[k] = Use(min(costs.kernel_of[op] for op in reads), touched, share)
    return found


def addresses(lives: list[Life]) -> dict[int, int]:
    """The largest first, each at the lowest of all places that no other is in while it lives.

    Too many come in the order they are made.
    """
    address: dict[int, int] = {}
    placed: list[Life] = []
    by_size = sorted(lives, key=lambda life: -life.size_bytes)
    for life in by_size if len(lives) <= MOST_BY_SIZE else lives:
        others = [(address[o.tensor], address[o.tensor] + o.size_bytes) for o in placed if o.meets(life)]
        places = {0, *(end for _, end in others)}
        size = life.size_bytes
        free = [p for p in places if all(p + size <= begin or end <= p for begin, end in others)]
        address[life.tensor] = min(free)
        placed.append(life)
    return address
