"""What streams, the slow way: one weight after the other, until every activation has an address."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from go_opt.graph import WEIGHT
from tests.env.numpy_twin import Twin


def streamed_weights(costs: Twin, chip: int) -> list[tuple[int, int]]:
    """(first kernel, bytes touched) of each weight that streams, the least touched first."""
    target, plain = costs.target, costs.tensor_bytes
    parameters = target.simulator.kinds[target.chip_kind[chip]]
    stored = [-(-size // parameters.alignment_bytes) * parameters.alignment_bytes for size in plain]
    here = {}
    for k in np.flatnonzero(costs.graph.tensor_kind == WEIGHT).tolist():
        reads = {op: size for op, size in costs.touched[k].items() if costs.plan.placement[op] == chip}
        if reads:
            here[k] = min(costs.kernel_of[op] for op in reads), max(reads.values())
    taken = sum(stored[k] for k in here)
    streams: list[tuple[int, int]] = []
    by_use = sorted(here, key=lambda k: (Fraction(here[k][1], max(plain[k], 1)), -plain[k], k))
    for k in (k for k in by_use if plain[k]):
        if has_places(costs, chip, taken, stored):
            break
        taken += 0 if streams else parameters.stream_buffer_bytes
        taken -= stored[k]
        streams.append(here[k])
    return streams


def has_places(costs: Twin, chip: int, taken: int, stored: list[int]) -> bool:
    """Whether activations of ``stored`` bytes fit beside ``taken`` ones, each at the lowest address free."""
    plain, room = costs.tensor_bytes, costs.kind(chip).sram_bytes - taken
    costs.tensor_bytes = stored
    peak = costs.peak_bytes(chip)
    costs.tensor_bytes = plain
    if peak > room:
        return False
    alive = []  # (first kernel, tensor, last kernel) of those that stay on the chip
    for k in costs.activations():
        is_here = costs.home(k) == chip and costs.reader_chips(k) == {chip}
        if is_here and costs.is_stored(k) and not costs.graph.tensor_is_output[k]:
            ops = int(costs.graph.tensor_producer[k]), *costs.touched[k]
            kernels = [costs.kernel_of[op] for op in ops]
            alive.append((min(kernels), k, max(kernels)))
    at_once = [
        sum(stored[k] for first, k, last in alive if first <= m <= last) for m in range(len(costs.kernels))
    ]
    room -= peak - max(at_once)  # what enters and leaves
    placed: list[tuple[int, int, int]] = []  # begin, end, last kernel
    for first, k, last in sorted(alive):
        others = [(begin, end) for begin, end, until in placed if until >= first]
        places = (0, *(end for _, end in others))
        size = stored[k]
        free = [p for p in places if all(p + size <= begin or end <= p for begin, end in others)]
        if min(free) + size > room:
            return False
        placed.append((min(free), min(free) + size, last))
    return True
