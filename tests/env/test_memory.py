"""The memory of chips: addresses against a brute-force search; buffers never in each other's way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.common.arrays import LongArray
from go_opt.env import Target, cost_tables, evaluate_batch
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.memory import (
    FITS,
    FRAGMENTED,
    TOO_LARGE,
    Fit,
    Holdings,
    fit_chips,
    holdings,
    most_alive,
    place_buffers,
    place_in_order,
)
from go_opt.env.model.traffic import NONE
from go_opt.model.graph import Graph, with_sequences
from go_opt.model.plan import Plan
from tests.env.memory_twin import chip_memory
from tests.env.numpy_twin import Twin
from tests.strategies import (
    examples,
    kind_names,
    random_graph,
    random_plan,
    random_simulated_target,
    seeds,
    with_random_states,
)


def lowest_place(size: int, live: list[int], sizes: LongArray, address: LongArray) -> int:
    """By trying every address."""
    place = 0
    while any(place + size > address[i] and address[i] + sizes[i] > place for i in live):
        place += 1
    return place


@pytest.mark.parametrize("by_size", [True, False])
@given(seed=seeds)
@settings(max_examples=examples(500))
def test_each_at_the_lowest_address(by_size: bool, seed: int) -> None:
    """The largest first; of too many, those that live first."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 15))
    size = rng.integers(1, 20, count)
    born = np.sort(rng.integers(0, 12, count)).astype(np.int32)
    dead = (born + rng.integers(0, rng.integers(1, 7), count)).astype(np.int32)  # many short lives, or not
    address = np.full(count, NONE, np.int64)
    height = (place_buffers if by_size else place_in_order)(size, born, dead, address)
    placed: list[int] = []
    for i in sorted(range(count), key=lambda i: (-size[i] * by_size, i)):
        live = [j for j in placed if born[j] <= dead[i] and born[i] <= dead[j]]
        assert address[i] == lowest_place(int(size[i]), live, size, address)
        placed.append(i)
    assert height == max(address + size, default=0)
    alive = [size[(born <= m) & (dead >= m)].sum() for m in range(20)]
    assert most_alive(size, born, dead) == max(alive) <= height


def fitted(graph: Graph, target: Target, plan: Plan) -> tuple[Holdings, Fit]:
    tables = cost_tables(graph, target)
    kernel_of = number_kernels(plan.order, plan.fusion_group)
    kernel_chip = np.empty(int(kernel_of.max()) + 1, np.int32)
    kernel_chip[kernel_of] = plan.placement
    held = holdings(tables, kernel_of, kernel_chip, np.ones(target.num_chips, np.int64))
    return held, fit_chips(tables, held)


@given(seed=seeds)
@settings(max_examples=examples(300))
def test_buffers_of_a_chip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 25)))
    target = random_simulated_target(rng, sram_bytes=int(10 ** rng.uniform(3.7, 5.5)))
    plan = random_plan(rng, graph, target)
    held, fit = fitted(graph, target, plan)
    twin = Twin(graph, target, plan)
    page = target.simulator.page_bytes
    memory = [chip_memory(twin, chip) for chip in range(target.num_chips)]
    for chip, slow in enumerate(memory):
        mine = range(held.activation_ptr[chip], held.activation_ptr[chip + 1])
        assert held.border_bytes[chip] == slow.border_bytes
        assert held.activation[list(mine)].tolist() == [life.tensor for life in slow.lives]
        is_placed = bool(slow.address)
        assert [int(held.address[i]) for i in mine] == [slow.address.get(a.tensor, NONE) for a in slow.lives]
        for i in mine if is_placed else ():
            begin, end = held.address[i], held.address[i] + held.size_bytes[i]
            assert begin % page == 0
            assert 0 <= held.size_bytes[i] - twin.tensor_bytes[held.activation[i]] < page
            assert held.border_bytes[chip] + end <= fit.peak_bytes[chip]
            for j in (j for j in mine if j < i):
                apart_in_time = held.dead[j] < held.born[i] or held.dead[i] < held.born[j]
                apart_in_space = end <= held.address[j] or held.address[j] + held.size_bytes[j] <= begin
                assert apart_in_time or apart_in_space
        streams = bool(fit.is_streamed[held.weight_ptr[chip] : held.weight_ptr[chip + 1]].any())
        buffer = target.simulator.kinds[target.chip_kind[chip]].stream_buffer_bytes if streams else 0
        taken = fit.peak_bytes[chip] + fit.weight_bytes[chip] + buffer
        assert (taken <= target.chip_sram_bytes[chip]) == (slow.short_bytes == 0)
        if not is_placed and slow.lives and slow.short_bytes == 0 and not streams:
            # What has no addresses has room side by side.
            every = held.border_bytes[chip] + held.size_bytes[list(mine)].sum() + fit.weight_bytes[chip]
            assert every <= target.chip_sram_bytes[chip]
    short = [chip for chip, slow in enumerate(memory) if slow.short_bytes]
    assert fit.chip == (short[0] if short else NONE)
    if short:
        slow = memory[short[0]]
        holes_bytes = slow.peak_bytes - slow.border_bytes - slow.most_alive_bytes
        assert fit.outcome == (FRAGMENTED if slow.short_bytes <= holes_bytes else TOO_LARGE)
    else:
        assert fit.outcome == FITS


@given(seed=seeds)
@settings(max_examples=examples(300))
def test_evaluations_look_at_tight_chips_alone(seed: int) -> None:
    """They say of memory what the rule says that lists the tensors of all chips.

    Memories are about what chips need: where buffers just fit side by side, one byte less, and so on.
    """
    rng = np.random.default_rng(seed)
    target = random_simulated_target(rng)
    graph = random_graph(rng, int(rng.integers(1, 25)), kinds=kind_names(target))
    if rng.random() < 0.5:
        graph = with_random_states(rng, graph)
        graph = with_sequences(graph, int(rng.integers(1, 9))) if graph.has_scope("sequence") else graph
    plan, num_chips = random_plan(rng, graph, target), target.num_chips
    chips = np.arange(num_chips)
    size = (
        np.minimum(rng.integers(1, 4, num_chips), num_chips - chips) if rng.random() < 0.5 else 1 + 0 * chips
    )
    if graph.has_scope("sequence"):
        size = np.minimum(size, graph.sequences)
    size[np.setdiff1d(chips, plan.placement)] = 1
    kernel_of = number_kernels(plan.order, plan.fusion_group)
    kernel_chip = np.empty(int(kernel_of.max()) + 1, np.int32)
    kernel_chip[kernel_of] = plan.placement
    tables = cost_tables(graph, target)
    held = holdings(tables, kernel_of, kernel_chip, size)
    inner = [held.size_bytes[a:b].sum() for a, b in itertools.pairwise(held.activation_ptr)]
    weights = [held.weight_bytes[a:b].sum() for a, b in itertools.pairwise(held.weight_ptr)]
    needs = held.border_bytes + np.array(weights)
    needs = np.where(rng.random(num_chips) < 0.5, needs + inner, needs + held.alive_bytes)
    memory = np.maximum(needs + rng.choice([-9000, -1, 0, 1, 9000], num_chips), 1)
    tables = tables._replace(sram_bytes=memory, places_buffers=bool(rng.random() < 0.7))
    full = fit_chips(tables, holdings(tables, kernel_of, kernel_chip, size))
    rows = (plan.placement, plan.order, plan.fusion_group, size[plan.placement].astype(np.int32))
    terms = evaluate_batch(tables, *(np.stack([row, row]) for row in rows))
    assert terms.fits.tolist() == [full.outcome == FITS] * 2
    for name in ("peak_bytes", "weight_bytes", "stream_bytes"):
        expected = getattr(full, name)
        for d in chips:  # all chips of a stage have the memory of its first
            expected[d + 1 : d + size[d]] += expected[d]
        assert getattr(terms, name).tolist() == [expected.tolist()] * 2, name
