"""The state of annealing: a placement of units with every load it causes, kept up to date.

Moving a unit costs O(its tensors). A tensor with home chip h and farthest reader chip f
stands in the *span* h … f - 1: it loads these links, and unless tensors pass for nothing
every chip of h … f holds it in a double buffer, and those between relay it. Spans are
signed, so that they stay right while a reader waits to be moved behind its producer.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.compiling import int64, uncounted_inner
from go_opt.solver.annealing.records import FROM_HOST, IS_WEIGHT, NONE, AnnealingState
from go_opt.solver.problem.passing import FREE

# Arguments that are NumPy's integers: kernels are compiled again for every literal.
MORE, LESS = np.int64(1), np.int64(-1)


@uncounted_inner
def move_unit(state: AnnealingState, unit: int, chip: int) -> None:
    """Place ``unit`` on ``chip`` so that it can be taken back."""
    run = state.run[0]
    state.lists[run.logged].logged_unit = unit
    state.lists[run.logged].logged_chip = state.units[unit].chip
    run.logged += 1
    place_unit(state, unit, chip)


@uncounted_inner
def take_back(state: AnnealingState) -> None:
    """Undo every move in the log."""
    run = state.run[0]
    for i in range(run.logged - 1, -1, -1):
        place_unit(state, state.lists[i].logged_unit, state.lists[i].logged_chip)
    run.logged = 0


@uncounted_inner
def place_unit(state: AnnealingState, unit: int, chip: int) -> None:
    """Place ``unit`` on ``chip``, whatever the rules say, and keep every load up to date."""
    source = state.units[unit].chip
    if source == chip:
        return
    run, left, joined = state.run[0], state.chips[source], state.chips[chip]
    _link_out(state, unit, source)
    _link_in(state, unit, chip, chip < source)
    ticks = state.units[unit].ticks
    left.compute_ticks -= state.entries[ticks + left.kind]
    joined.compute_ticks += state.entries[ticks + joined.kind]
    left.units -= 1
    joined.units += 1
    run.used += joined.units == 1
    run.used -= left.units == 0
    run.low = min(run.low, source, chip)
    run.high = max(run.high, source, chip)
    for i in range(state.units[unit].reads, state.units[unit + 1].reads):
        _read_elsewhere(state, state.entries[i], source, chip)
    for i in range(state.units[unit].writes, state.units[unit + 1].writes):
        _make_elsewhere(state, state.entries[i], source, chip)
    state.units[unit].chip = chip


@uncounted_inner
def _read_elsewhere(state: AnnealingState, number: int, source: int, chip: int) -> None:
    """A reader of tensor ``number`` goes from ``source`` to ``chip``."""
    tensor, left, joined = state.tensors[number], state.chips[source], state.chips[chip]
    far, farthest = tensor.farthest, chip
    has_left, has_come = int64(1), int64(1)
    if tensor.row != NONE:
        readers_on = state.readers_on[tensor.row : tensor.row + len(state.chips)]
        readers_on[source] -= 1
        readers_on[chip] += 1
        has_left = int64(readers_on[source] == 0)
        has_come = int64(readers_on[chip] == 1)
        farthest = max(far, chip)
        while readers_on[farthest] == 0:
            farthest -= 1
    tensor.farthest = farthest
    if tensor.home == IS_WEIGHT:
        left.weight_bytes -= tensor.stored_bytes * has_left
        joined.weight_bytes += tensor.stored_bytes * has_come
    elif tensor.home == FROM_HOST:
        left.held_bytes -= 2 * tensor.stored_bytes * has_left
        left.host_in_bytes -= tensor.size_bytes * has_left
        joined.held_bytes += 2 * tensor.stored_bytes * has_come
        joined.host_in_bytes += tensor.size_bytes * has_come
    else:
        home = state.units[tensor.home].chip
        if state.run[0].passing == FREE:
            if source != home:
                left.held_bytes -= 2 * tensor.stored_bytes * has_left
            if chip != home:
                joined.held_bytes += 2 * tensor.stored_bytes * has_come
        if farthest != far:
            _add_ends(state, number, home, far, LESS)
            _add_span(state, number, far, farthest, MORE)
            _add_ends(state, number, home, farthest, MORE)
            _note_changed(state, farthest)
            if far <= home or farthest <= home:
                _note_changed(state, home)


@uncounted_inner
def _make_elsewhere(state: AnnealingState, number: int, source: int, chip: int) -> None:
    """The maker of tensor ``number`` goes from ``source`` to ``chip``."""
    tensor, left, joined = state.tensors[number], state.chips[source], state.chips[chip]
    left.host_out_bytes -= tensor.size_bytes * tensor.is_output
    joined.host_out_bytes += tensor.size_bytes * tensor.is_output
    if tensor.readers == 0:
        _add_ends(state, number, source, source, LESS)
        _add_ends(state, number, chip, chip, MORE)
        return
    if state.run[0].passing == FREE:
        left.held_bytes += 2 * tensor.stored_bytes * _is_read_on(state, number, source)
        joined.held_bytes -= 2 * tensor.stored_bytes * _is_read_on(state, number, chip)
    _add_ends(state, number, source, tensor.farthest, LESS)
    _add_span(state, number, source, chip, LESS)
    _add_ends(state, number, chip, tensor.farthest, MORE)
    if tensor.farthest <= source or tensor.farthest <= chip:
        _note_changed(state, tensor.farthest)


@uncounted_inner
def _note_changed(state: AnnealingState, chip: int) -> None:
    run = state.run[0]
    run.low = min(run.low, chip)
    run.high = max(run.high, chip)


@uncounted_inner
def _link_out(state: AnnealingState, unit: int, chip: int) -> None:
    before, after = state.units[unit].preceding, state.units[unit].following
    if before == NONE:
        state.chips[chip].first = after
    else:
        state.units[before].following = after
    if after == NONE:
        state.chips[chip].last = before
    else:
        state.units[after].preceding = before


@uncounted_inner
def _link_in(state: AnnealingState, unit: int, chip: int, from_behind: bool) -> None:
    """Units keep the order on a chip; the search for the place starts where it most likely is."""
    place = state.units[unit].place
    before, after = int64(NONE), int64(NONE)
    if from_behind:
        before = state.chips[chip].last
        while before != NONE and state.units[before].place > place:
            after = before
            before = state.units[before].preceding
    else:
        after = state.chips[chip].first
        while after != NONE and state.units[after].place < place:
            before = after
            after = state.units[after].following
    state.units[unit].preceding = before
    state.units[unit].following = after
    if before == NONE:
        state.chips[chip].first = unit
    else:
        state.units[before].following = unit
    if after == NONE:
        state.chips[chip].last = unit
    else:
        state.units[after].preceding = unit


@uncounted_inner
def _is_read_on(state: AnnealingState, number: int, chip: int) -> bool:
    tensor = state.tensors[number]
    if tensor.row == NONE:
        return tensor.farthest == chip
    return state.readers_on[tensor.row + chip] > 0


@uncounted_inner
def _add_span(state: AnnealingState, number: int, begin: int, end: int, sign: int) -> None:
    """Chips from ``begin`` to before ``end`` pass a tensor on, or no more; where end < begin the reverse."""
    if end < begin:
        begin, end, sign = end, begin, -sign
    size_bytes = sign * state.tensors[number].size_bytes
    stored_bytes = sign * state.tensors[number].stored_bytes
    for at in range(begin, end):
        chip = state.chips[at]
        chip.link_bytes += size_bytes
        if state.run[0].passing != FREE:
            chip.held_bytes += 2 * stored_bytes
            chip.relayed_bytes += size_bytes
            chip.relays += sign


@uncounted_inner
def _add_ends(state: AnnealingState, number: int, home: int, far: int, sign: int) -> None:
    """What depends on the ends of a span alone: the home relays nothing, the last chip holds it too."""
    tensor, chip = state.tensors[number], state.chips[home]
    if far > home and state.run[0].passing != FREE:
        chip.relayed_bytes -= sign * tensor.size_bytes
        chip.relays -= sign
        state.chips[far].held_bytes += 2 * sign * tensor.stored_bytes
    elif far > home or tensor.is_output:
        chip.held_bytes += 2 * sign * tensor.stored_bytes
    else:
        chip.inside_bytes += sign * tensor.stored_bytes
