"""What a state of annealing costs: seconds of every chip and link, memory, and their p-norm.

The terms are those of the analytical model (:mod:`go_opt.env.model.analytical`) with relays as
copies. The objective ``Σ (term / scale)^p`` falls before the largest term does.
"""

from __future__ import annotations

from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.kernels.heap import heap_pop, heap_push
from go_opt.solver.annealing.records import IS_WEIGHT, NONE, AnnealingState, Prices


@uncounted_inner
def price(state: AnnealingState, prices: Prices) -> float:
    """The p-sum with the chips whose loads changed priced anew; :func:`keep` or :func:`drop` it."""
    run, num_chips = state.run[0], len(state.chips)
    total = run.powered_sum
    for at in range(run.low, run.high + 1):
        _fit(state, prices, at)
        total += _renew(state, prices, at, _chip_s(state, at))
        if run.overlap:
            chip = state.chips[at]
            total += _renew(state, prices, num_chips + at, chip.link_bytes * chip.link_s_per_byte)
    if run.overlap:
        host = prices.terms[2 * num_chips]
        host.new_seconds = (run.input_bytes + run.stream_bytes) * state.chips[0].host_in_s_per_byte
        host.new_powered = _to_the((host.new_seconds - ease_s(state)) * run.per_scale, run.power)
        total += host.new_powered - host.powered
    return total


@uncounted_inner
def keep(state: AnnealingState, prices: Prices) -> None:
    """The chips that were priced cost that."""
    run, num_chips = state.run[0], len(state.chips)
    change = _renewed(prices, 2 * num_chips)
    for at in range(run.low, run.high + 1):
        change += _renewed(prices, at) + _renewed(prices, num_chips + at)
    run.powered_sum += change
    run.low = num_chips
    run.high = -1
    run.logged = 0


@uncounted_inner
def drop(state: AnnealingState) -> None:
    """The chips that were priced, whose units were taken back, cost what they did."""
    run = state.run[0]
    for at in range(run.low, run.high + 1):
        chip = state.chips[at]
        run.stream_bytes += chip.old_stream_bytes - chip.stream_bytes
        run.over_bytes += chip.old_over_bytes - chip.over_bytes
        run.slack_bytes += chip.old_slack_bytes - chip.slack_bytes
        chip.stream_bytes = chip.old_stream_bytes
        chip.over_bytes = chip.old_over_bytes
        chip.slack_bytes = chip.old_slack_bytes
    run.low = len(state.chips)
    run.high = -1


@uncounted_inner
def ease_s(state: AnnealingState) -> float:
    """Seconds by which the objective sees the host's link faster than it is.

    Weights stream whole, so moving small ones mostly changes nothing; half the way to what
    would do, could they stream in part, shows where less will have to.
    """
    run = state.run[0]
    return 0.5 * run.slack_bytes * state.chips[0].host_in_s_per_byte * run.overlap


@uncounted_inner
def rescale(state: AnnealingState, prices: Prices, power: float) -> None:
    """Take powers of ``power`` of terms over the largest of them."""
    run = state.run[0]
    scale_s = largest_s(prices)
    scale_s = scale_s if scale_s > 0.0 else 1.0
    run.per_scale = 1.0 / scale_s
    run.power = power
    run.powered_sum = 0.0
    host = 2 * len(state.chips)
    for number in range(len(prices.terms)):
        term = prices.terms[number]
        seconds = term.seconds - (ease_s(state) if number == host else 0.0)
        term.powered = _to_the(seconds / scale_s, power)
        run.powered_sum += term.powered


@uncounted_inner
def largest_s(prices: Prices) -> float:
    """The interval."""
    largest = 0.0
    for number in range(len(prices.terms)):
        largest = max(largest, prices.terms[number].seconds)
    return largest


@uncounted_inner
def _renew(state: AnnealingState, prices: Prices, number: int, seconds: float) -> float:
    run, term = state.run[0], prices.terms[number]
    term.new_seconds = seconds
    term.new_powered = _to_the(seconds * run.per_scale, run.power)
    return term.new_powered - term.powered


@uncounted_inner
def _renewed(prices: Prices, number: int) -> float:
    term = prices.terms[number]
    change = term.new_powered - term.powered
    term.seconds = term.new_seconds
    term.powered = term.new_powered
    return change


@uncounted_inner
def _to_the(x: float, power: float) -> float:
    """``x`` to the power of 1, 5, 8 or 16."""
    if power == 1.0:
        return x
    fourth = x * x * (x * x)
    if power == 5.0:
        return fourth * x
    eighth = fourth * fourth
    return eighth if power == 8.0 else eighth * eighth


@uncounted_inner
def _chip_s(state: AnnealingState, at: int) -> float:
    """Kernels and relays of a chip; where nothing overlaps, its transfers too."""
    run, chip = state.run[0], state.chips[at]
    seconds = chip.compute_ticks * run.tick_s
    seconds += chip.relayed_bytes * chip.copy_s_per_byte
    seconds += chip.relays * chip.copy_s
    if chip.stream_sharers > 1:  # the links that forward it
        seconds = max(seconds, chip.stream_bytes * chip.link_s_per_byte)
    if run.overlap or chip.host_in_s_per_byte == 0.0:
        return seconds
    if at > 0:
        before = state.chips[at - 1]
        seconds += before.link_bytes * before.link_s_per_byte
    seconds += chip.link_bytes * chip.link_s_per_byte
    seconds += (chip.host_in_bytes + chip.stream_bytes) * chip.host_in_s_per_byte
    return seconds + chip.host_out_bytes * chip.host_out_s_per_byte


@uncounted_inner
def _fit(state: AnnealingState, prices: Prices, at: int) -> None:
    """Count anew the activations beyond the memory of a chip, and the weights that stream."""
    run, chip = state.run[0], state.chips[at]
    chip.old_stream_bytes = chip.stream_bytes
    chip.old_over_bytes = chip.over_bytes
    chip.old_slack_bytes = chip.slack_bytes
    chip.stream_bytes = 0
    chip.over_bytes = 0
    chip.slack_bytes = 0
    if chip.weight_bytes + chip.held_bytes + chip.inside_bytes > chip.sram_bytes:
        excess = chip.held_bytes + _most_alive(state, at) - chip.sram_bytes
        chip.over_bytes = max(int64(0), excess)
        excess += chip.weight_bytes
        if chip.weight_bytes > 0 and excess > 0:
            excess += chip.stream_buffer_bytes
            chip.over_bytes = max(int64(0), excess - chip.weight_bytes)
            _stream(state, prices, at, excess)
            chip.stream_bytes //= chip.stream_sharers
            chip.slack_bytes //= chip.stream_sharers
    run.stream_bytes += chip.stream_bytes - chip.old_stream_bytes
    run.over_bytes += chip.over_bytes - chip.old_over_bytes
    run.slack_bytes += chip.slack_bytes - chip.old_slack_bytes


@uncounted_inner
def _most_alive(state: AnnealingState, at: int) -> int:
    """Most bytes at once of the activations that stay on a chip."""
    alive, most = int64(0), int64(0)
    number = state.chips[at].first
    while number != NONE:
        unit, behind = state.units[number], state.units[number + 1]
        for i in range(unit.writes, behind.writes):
            tensor = state.tensors[state.entries[i]]
            if tensor.farthest == at and not tensor.is_output:
                alive += tensor.stored_bytes
        most = max(most, alive + unit.inner_bytes)
        for i in range(unit.lasts, behind.lasts):
            tensor = state.tensors[state.entries[i]]
            stays = tensor.farthest == at and state.units[tensor.home].chip == at
            if stays and not tensor.is_output:
                alive -= tensor.stored_bytes
        number = unit.following
    return most


@uncounted_inner
def _stream(state: AnnealingState, prices: Prices, at: int, excess: int) -> None:
    """Stream weights of a chip until ``excess`` bytes need not be resident.

    First the least touched per stored byte, then the larger, then the lower index.
    """
    chip, heap, touched_bytes = state.chips[at], prices.heap, prices.touched_bytes
    size = int64(0)
    for i in range(_weights_of(state, prices, at)):
        rank = heap[i]
        size_bytes = state.tensors[prices.weight[rank]].size_bytes
        if size_bytes > 0:
            prices.priority[rank] = -touched_bytes[rank] / size_bytes
            size = heap_push(heap, size, rank, prices.priority)
        else:
            touched_bytes[rank] = NONE
    while size > 0 and excess > 0:
        rank = heap[0]
        size = heap_pop(heap, size, prices.priority)
        stored_bytes = state.tensors[prices.weight[rank]].stored_bytes
        excess -= stored_bytes
        chip.stream_bytes += touched_bytes[rank]
        if excess < 0:
            chip.slack_bytes = int64(touched_bytes[rank] * (-excess / stored_bytes))
        touched_bytes[rank] = NONE
    for i in range(size):
        touched_bytes[heap[i]] = NONE


@uncounted_inner
def _weights_of(state: AnnealingState, prices: Prices, at: int) -> int:
    """Write the weights of a chip by rank to ``heap``, and what it touches of each; how many."""
    found = 0
    number = state.chips[at].first
    while number != NONE:
        unit = state.units[number]
        touches = unit.touches - unit.reads
        for i in range(unit.reads, state.units[number + 1].reads):
            tensor = state.tensors[state.entries[i]]
            if tensor.home == IS_WEIGHT:
                rank = tensor.rank
                if prices.touched_bytes[rank] == NONE:
                    prices.heap[found] = rank
                    found += 1
                prices.touched_bytes[rank] = max(prices.touched_bytes[rank], state.entries[touches + i])
        number = unit.following
    return found
