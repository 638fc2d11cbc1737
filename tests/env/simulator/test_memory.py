"""Addresses against a brute-force search; buffers of a chip never in each other's way."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from numpy.typing import NDArray

from go_opt.env.simulator.memory import FITS, FRAGMENTED, TOO_LARGE
from go_opt.env.simulator.sram import NO_PLACE, place_buffers
from tests.env.numpy_twin import Twin
from tests.env.simulator.test_twin import assembled
from tests.strategies import examples, random_graph, random_plan, random_simulated_target, seeds


def lowest_place(
    size: int, limit: int, live: list[int], sizes: NDArray[np.int64], address: NDArray[np.int64]
) -> int:
    """By trying every address; -1 where there is none."""
    for place in range(limit - size + 1):
        if all(place + size <= address[i] or address[i] + sizes[i] <= place for i in live):
            return place
    return NO_PLACE


@given(seed=seeds)
@settings(max_examples=examples(500))
def test_first_fit_is_the_lowest_address(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, limit = int(rng.integers(0, 15)), int(rng.integers(1, 60))
    size = rng.integers(1, 20, count)
    born = np.sort(rng.integers(0, 12, count)).astype(np.int32)
    dead = (born + rng.integers(0, 6, count)).astype(np.int32)
    address = np.full(count, NO_PLACE, np.int64)
    lost = place_buffers(size, born, dead, limit, address)
    placed = count if lost == NO_PLACE else lost
    for i in range(placed):
        live = [j for j in range(i) if dead[j] >= born[i]]
        assert address[i] == lowest_place(int(size[i]), limit, live, size, address)
    if lost != NO_PLACE:
        live = [j for j in range(lost) if dead[j] >= born[lost]]
        assert lowest_place(int(size[lost]), limit, live, size, address) == NO_PLACE


@given(seed=seeds)
@settings(max_examples=examples(300))
def test_buffers_of_a_chip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 25)))
    target = random_simulated_target(rng, sram_bytes=int(10 ** rng.uniform(4, 5.5)))
    plan = random_plan(rng, graph, target)
    built = assembled(graph, target, plan, 1)
    held, fit = built.held, built.fit
    kinds = [target.simulator.kinds[kind] for kind in target.chip_kind]
    twin = Twin(graph, target, plan)
    for chip in range(target.num_chips if fit.outcome == FITS else 0):
        mine = range(held.activation_ptr[chip], held.activation_ptr[chip + 1])
        aligned = kinds[chip].alignment_bytes
        top = held.border_bytes[chip]
        for i in mine:
            begin, end = fit.address[i], fit.address[i] + held.size_bytes[i]
            assert begin % aligned == 0
            assert 0 <= held.size_bytes[i] - twin.tensor_bytes[held.activation[i]] < aligned
            top = max(top, held.border_bytes[chip] + end)
            for j in (j for j in mine if j < i):
                apart_in_time = held.dead[j] < held.born[i] or held.dead[i] < held.born[j]
                apart_in_space = end <= fit.address[j] or fit.address[j] + held.size_bytes[j] <= begin
                assert apart_in_time or apart_in_space
        streams = fit.is_streamed[held.weight_ptr[chip] : held.weight_ptr[chip + 1]].any()
        staging = kinds[chip].stream_buffer_bytes if streams else 0
        assert top <= fit.peak_bytes[chip]
        assert top + fit.weight_bytes[chip] + staging <= target.chip_sram_bytes[chip]
        stay = [k for k in twin.activations() if stays(twin, k, chip)]
        assert sorted(held.activation[list(mine)]) == stay
    if fit.outcome == TOO_LARGE:
        assert fit.peak_bytes[fit.chip] + fit.weight_bytes[fit.chip] > (
            target.chip_sram_bytes[fit.chip] - kinds[fit.chip].stream_buffer_bytes
        )
    if fit.outcome == FRAGMENTED:
        assert fit.address[fit.activation] == NO_PLACE


def stays(twin: Twin, tensor: int, chip: int) -> bool:
    """Whether an activation is made and read on one chip, and by more than one kernel."""
    is_here = twin.home(tensor) == chip and twin.reader_chips(tensor) == {chip}
    return is_here and twin.is_stored(tensor) and not twin.graph.tensor_is_output[tensor]
