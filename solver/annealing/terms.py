"""What a state of annealing costs: seconds of every chip and link, memory, and their p-norm.

The terms are those of the analytical model (:mod:`go_opt.env.model.analytical`) with relays as
copies. The objective ``Σ (term / scale)^p`` falls before the largest term does.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from go_opt.env.kernels.heap import heap_pop, heap_push
from go_opt.solver.annealing.columns import (
    ALL_OVER,
    ALL_SLACK,
    ALL_STREAM,
    CHIP,
    COMPUTE,
    COPY_S,
    COPY_S_PER_BYTE,
    FARTHEST,
    FIRST,
    FOLLOWING,
    HELD,
    HIGH,
    HOME,
    HOST_IN,
    HOST_IN_S_PER_BYTE,
    HOST_OUT,
    HOST_OUT_S_PER_BYTE,
    INNER,
    INPUT_BYTES,
    INSIDE,
    IS_OUTPUT,
    IS_WEIGHT,
    LASTS,
    LINK,
    LINK_S_PER_BYTE,
    LOG_UNIT,
    LOW,
    NEW_POWERED,
    NEW_SECONDS,
    NONE,
    OLD_OVER,
    OLD_SLACK,
    OLD_STREAM,
    OVER,
    OVERLAP,
    POWER,
    POWERED,
    RANK,
    READS,
    RELAYED,
    RELAYS,
    SCALE,
    SECONDS,
    SIZE,
    SIZES,
    SLACK,
    SRAM,
    STORED,
    STREAM,
    STREAM_BUFFER,
    SUM,
    TICK_S,
    TOUCHES,
    WEIGHT,
    WEIGHT_HEAP,
    WEIGHT_TOUCHED,
    WEIGHTS,
    WRITES,
)


@njit(cache=True, nogil=True)
def price(units, entries, tensors, chips, rates, lists, numbers, terms, figures, priority):
    """The p-sum with the chips whose loads changed priced anew; :func:`keep` or :func:`drop` it."""
    low, high = numbers[LOW], numbers[HIGH]
    for chip in range(low, high + 1):
        chips[chip, OLD_STREAM] = chips[chip, STREAM]
        chips[chip, OLD_OVER] = chips[chip, OVER]
        chips[chip, OLD_SLACK] = chips[chip, SLACK]
        chips[chip, STREAM] = 0
        chips[chip, OVER] = 0
        chips[chip, SLACK] = 0
        if chips[chip, WEIGHTS] + chips[chip, HELD] + chips[chip, INSIDE] > chips[chip, SRAM]:
            _fit(units, entries, tensors, chips, lists, priority, chip)
        numbers[ALL_STREAM] += chips[chip, STREAM] - chips[chip, OLD_STREAM]
        numbers[ALL_OVER] += chips[chip, OVER] - chips[chip, OLD_OVER]
        numbers[ALL_SLACK] += chips[chip, SLACK] - chips[chip, OLD_SLACK]
    per_scale, power = 1.0 / figures[SCALE], figures[POWER]
    overlap = numbers[OVERLAP] != 0
    total = figures[SUM]
    for chip in range(low, high + 1):
        chip_s = _chip_s(chips, rates, chip, figures[TICK_S], overlap)
        total += _renew(terms, chip, chip_s, per_scale, power)
        if overlap:
            link_s = chips[chip, LINK] * rates[chip, LINK_S_PER_BYTE]
            total += _renew(terms, len(chips) + chip, link_s, per_scale, power)
    if overlap:
        host, host_bytes = 2 * len(chips), numbers[INPUT_BYTES] + numbers[ALL_STREAM]
        terms[NEW_SECONDS, host] = host_bytes * rates[0, HOST_IN_S_PER_BYTE]
        eased_s = terms[NEW_SECONDS, host] - ease_s(numbers, rates)
        terms[NEW_POWERED, host] = _to_the(eased_s * per_scale, power)
        total += terms[NEW_POWERED, host] - terms[POWERED, host]
    return total


@njit(cache=True, nogil=True)
def keep(chips, numbers, terms, figures):
    """The chips that were priced cost that."""
    num_chips = len(chips)
    change = _renewed(terms, 2 * num_chips)
    for chip in range(numbers[LOW], numbers[HIGH] + 1):
        change += _renewed(terms, chip) + _renewed(terms, num_chips + chip)
    figures[SUM] += change
    numbers[LOW], numbers[HIGH] = num_chips, -1
    numbers[SIZES + LOG_UNIT] = 0


@njit(cache=True, nogil=True)
def drop(chips, numbers):
    """The chips that were priced, whose units were taken back, cost what they did."""
    for chip in range(numbers[LOW], numbers[HIGH] + 1):
        numbers[ALL_STREAM] += chips[chip, OLD_STREAM] - chips[chip, STREAM]
        numbers[ALL_OVER] += chips[chip, OLD_OVER] - chips[chip, OVER]
        numbers[ALL_SLACK] += chips[chip, OLD_SLACK] - chips[chip, SLACK]
        chips[chip, STREAM] = chips[chip, OLD_STREAM]
        chips[chip, OVER] = chips[chip, OLD_OVER]
        chips[chip, SLACK] = chips[chip, OLD_SLACK]
    numbers[LOW], numbers[HIGH] = len(chips), -1


@njit(cache=True, nogil=True)
def ease_s(numbers, rates):
    """Seconds by which the objective sees the host's link faster than it is.

    Weights stream whole, so moving small ones mostly changes nothing; half the way to what
    would do, could they stream in part, shows where less will have to.
    """
    return 0.5 * numbers[ALL_SLACK] * rates[0, HOST_IN_S_PER_BYTE] * numbers[OVERLAP]


@njit(cache=True, nogil=True)
def rescale(terms, figures, power, host_ease_s):
    """Take powers of ``power`` of terms over the largest of them."""
    scale = largest_s(terms)
    scale = scale if scale > 0.0 else 1.0
    total = 0.0
    for term in range(terms.shape[1]):
        seconds = terms[SECONDS, term] - (host_ease_s if term == terms.shape[1] - 2 else 0.0)
        terms[POWERED, term] = _to_the(seconds / scale, power)
        total += terms[POWERED, term]
    figures[SUM] = total
    figures[SCALE] = scale
    figures[POWER] = power


@njit(cache=True, nogil=True)
def largest_s(terms):
    """The interval."""
    largest = 0.0
    for term in range(terms.shape[1]):
        largest = max(largest, terms[SECONDS, term])
    return largest


@njit(cache=True, nogil=True)
def _renew(terms, term, seconds, per_scale, power):
    terms[NEW_SECONDS, term] = seconds
    terms[NEW_POWERED, term] = _to_the(seconds * per_scale, power)
    return terms[NEW_POWERED, term] - terms[POWERED, term]


@njit(cache=True, nogil=True)
def _renewed(terms, term):
    change = terms[NEW_POWERED, term] - terms[POWERED, term]
    terms[SECONDS, term] = terms[NEW_SECONDS, term]
    terms[POWERED, term] = terms[NEW_POWERED, term]
    return change


@njit(cache=True, nogil=True)
def _to_the(x, power):
    """``x`` to the power of 1, 5, 8 or 16."""
    if power == 1.0:
        return x
    fourth = x * x * (x * x)
    if power == 5.0:
        return fourth * x
    eighth = fourth * fourth
    return eighth if power == 8.0 else eighth * eighth


@njit(cache=True, nogil=True)
def _chip_s(chips, rates, chip, tick_s, overlap):
    """Kernels and relays of a chip; where nothing overlaps, its transfers too."""
    seconds = chips[chip, COMPUTE] * tick_s
    seconds += chips[chip, RELAYED] * rates[chip, COPY_S_PER_BYTE]
    seconds += chips[chip, RELAYS] * rates[chip, COPY_S]
    if overlap or rates[chip, HOST_IN_S_PER_BYTE] == 0.0:
        return seconds
    if chip > 0:
        seconds += chips[chip - 1, LINK] * rates[chip - 1, LINK_S_PER_BYTE]
    seconds += chips[chip, LINK] * rates[chip, LINK_S_PER_BYTE]
    seconds += (chips[chip, HOST_IN] + chips[chip, STREAM]) * rates[chip, HOST_IN_S_PER_BYTE]
    return seconds + chips[chip, HOST_OUT] * rates[chip, HOST_OUT_S_PER_BYTE]


@njit(cache=True, nogil=True)
def _fit(units, entries, tensors, chips, lists, priority, chip):
    """Activations beyond the memory of ``chip``, and the weights that stream."""
    peak = chips[chip, HELD] + _most_alive(units, entries, tensors, chips, chip)
    excess = peak - chips[chip, SRAM]
    chips[chip, OVER] = max(np.int64(0), excess)
    excess += chips[chip, WEIGHTS]
    if chips[chip, WEIGHTS] > 0 and excess > 0:
        excess += chips[chip, STREAM_BUFFER]
        chips[chip, OVER] = max(np.int64(0), excess - chips[chip, WEIGHTS])
        _stream(units, entries, tensors, chips, lists, priority, chip, excess)


@njit(cache=True, nogil=True)
def _most_alive(units, entries, tensors, chips, chip):
    """Most bytes at once of the activations that stay on ``chip``."""
    alive, most = np.int64(0), np.int64(0)
    unit = chips[chip, FIRST]
    while unit != NONE:
        for i in range(units[unit, WRITES], units[unit + 1, WRITES]):
            tensor = entries[i]
            if tensors[tensor, FARTHEST] == chip and tensors[tensor, IS_OUTPUT] == 0:
                alive += tensors[tensor, STORED]
        most = max(most, alive + units[unit, INNER])
        for i in range(units[unit, LASTS], units[unit + 1, LASTS]):
            tensor = entries[i]
            stays = tensors[tensor, FARTHEST] == chip and units[tensors[tensor, HOME], CHIP] == chip
            if stays and tensors[tensor, IS_OUTPUT] == 0:
                alive -= tensors[tensor, STORED]
        unit = units[unit, FOLLOWING]
    return most


@njit(cache=True, nogil=True)
def _stream(units, entries, tensors, chips, lists, priority, chip, excess):
    """Stream weights of ``chip`` until ``excess`` bytes need not be resident.

    First the least touched per stored byte, then the larger, then the lower index.
    """
    heap, weight, touched = lists[WEIGHT_HEAP], lists[WEIGHT], lists[WEIGHT_TOUCHED]
    found = 0
    unit = chips[chip, FIRST]
    while unit != NONE:
        touch = units[unit, TOUCHES] - units[unit, READS]
        for i in range(units[unit, READS], units[unit + 1, READS]):
            if tensors[entries[i], HOME] == IS_WEIGHT:
                rank = tensors[entries[i], RANK]
                if touched[rank] == NONE:
                    heap[found] = rank
                    found += 1
                touched[rank] = max(touched[rank], entries[touch + i])
        unit = units[unit, FOLLOWING]
    size = np.int64(0)
    for i in range(found):
        rank = heap[i]
        size_bytes = tensors[weight[rank], SIZE]
        if size_bytes > 0:
            priority[rank] = -touched[rank] / size_bytes
            size = heap_push(heap, size, rank, priority)
        else:
            touched[rank] = NONE
    while size > 0 and excess > 0:
        rank = heap[0]
        size = heap_pop(heap, size, priority)
        stored = tensors[weight[rank], STORED]
        excess -= stored
        chips[chip, STREAM] += touched[rank]
        if excess < 0:
            chips[chip, SLACK] = int(touched[rank] * (-excess / stored))
        touched[rank] = NONE
    for i in range(size):
        touched[heap[i]] = NONE
