"""A plan as the package that runs it: memory, flows, stages, and room for the engine's state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from go_opt.env.kernels import seconds_of_kernels
from go_opt.env.simulator.credit import grant_credit
from go_opt.env.simulator.memory import Fit, Holdings, fit_chips, holdings, rows_of
from go_opt.env.simulator.package import (
    CHIP,
    CHIP_FLOW,
    EVENT,
    HOST_OUT,
    LINK,
    NODE,
    NONE,
    ROUND,
    SHARED,
    SPAN,
    STAGE,
    STREAM,
    UNBOUNDED,
    Package,
)
from go_opt.env.simulator.plumbing import Streams, lay_hops, lay_plumbing


class Setting(NamedTuple):
    """The parameters of a target with some effects off. Axes: ``D`` chips, ``L`` links."""

    buffers: int
    multicast: bool
    prefetch_all: bool
    by_size: bool
    rule: int
    packet_bytes: int
    link_s_per_byte: NDArray[np.float64]  # [L] headers included
    link_latency_s: NDArray[np.float64]  # [L]
    dma_engines: NDArray[np.int64]  # [D]
    dma_setup_s: NDArray[np.float64]  # [D]
    alignment_bytes: NDArray[np.int64]  # [D]
    stream_buffer_bytes: NDArray[np.int64]  # [D]


class Assembly(NamedTuple):
    """A plan made ready to run. Axis: ``M`` kernels."""

    kernel_chip: NDArray[np.int32]  # [M]
    kernel_s: NDArray[np.float64]  # [M]
    held: Holdings
    fit: Fit
    package: Package


@njit(cache=True, nogil=True)
def assemble(tables, setting, kernel_of, placement, most_rounds, num_spans):
    """Kernels, memory, stages and flows of a plan.

    Args:
      kernel_of: [N] kernels along the plan's order.
      most_rounds: inferences to have room for; the window of the package where it is 0,
        times 8.
      num_spans: spans to have room for.
    """
    num_kernels = kernel_of.max() + 1
    kernel_chip = np.empty(num_kernels, np.int32)
    for op in range(len(kernel_of)):
        kernel_chip[kernel_of[op]] = placement[op]
    held = holdings(tables, kernel_of, kernel_chip, setting.alignment_bytes)
    fit = fit_chips(
        tables, held, kernel_chip, setting.alignment_bytes, setting.stream_buffer_bytes, setting.by_size
    )
    by_kind = seconds_of_kernels(tables, kernel_of, num_kernels)
    kernel_s = np.empty(num_kernels)
    for kernel in range(num_kernels):
        kernel_s[kernel] = by_kind[tables.chip_kind[kernel_chip[kernel]], kernel]
    streams = _streams(held, fit, num_kernels)
    plumbing = lay_plumbing(tables, kernel_of, kernel_chip, streams, setting.multicast)
    hops = lay_hops(tables, plumbing.flows, plumbing.deliveries)
    grant_credit(plumbing.flows, plumbing.deliveries, len(tables.chip_kind), setting.rule)
    chips, stages, refs, chip_kernel = _stages(tables, setting, plumbing, kernel_chip, kernel_s)
    shared = _shared(setting, plumbing.flows, chips)
    if most_rounds == 0:
        most_rounds = rounds_limit(shared[0].window)
    window = min(shared[0].window, most_rounds)
    # Tensors without credit, and weights that all come ahead, pile up as far as inferences go.
    is_bounded = plumbing.deliveries["has_credit"].all()
    under_way = min(window, setting.buffers + 2) if is_bounded else window
    num_links = len(setting.link_s_per_byte) + 2
    at_once = len(plumbing.flows) + 2 * len(hops) + len(plumbing.deliveries)
    package = Package(
        chips, stages, plumbing.flows, plumbing.deliveries, hops,
        _links(tables, setting, plumbing.flows, hops),
        refs, chip_kernel, shared,
        np.empty(16 + (len(hops) + len(plumbing.flows)) * under_way, NODE),
        np.empty(16 + len(chips) + at_once * under_way, EVENT),
        np.empty(16 + len(plumbing.flows) * window, np.int64),
        np.empty(most_rounds, ROUND),
        np.empty((len(chips), most_rounds)), np.empty((num_links, most_rounds)),
        np.empty((len(chips), most_rounds, 4)), np.empty((num_links, most_rounds)),
        np.empty(num_spans, SPAN),
    )  # fmt: skip
    return Assembly(kernel_chip, kernel_s, held, fit, package)


@njit(cache=True, nogil=True)
def rounds_limit(window):
    """Inferences after which a package without a period is measured as it is."""
    return 8 * window + 64


@njit(cache=True, nogil=True)
def _streams(held, fit, num_kernels):
    """Kernels that wait for streamed weights, with the bytes of all that each waits for."""
    bytes_of = np.zeros(num_kernels, np.int64)
    weight_of = np.full(num_kernels, NONE, np.int32)
    for pair in range(len(held.weight)):
        if fit.is_streamed[pair]:
            kernel = held.weight_reader[pair]
            if weight_of[kernel] == NONE:
                weight_of[kernel] = held.weight[pair]
            bytes_of[kernel] += held.weight_touched[pair]
    kernel = np.flatnonzero(weight_of != NONE).astype(np.int32)
    return Streams(kernel, weight_of[kernel], bytes_of[kernel])


@njit(cache=True, nogil=True)
def _stages(tables, setting, plumbing, kernel_chip, kernel_s):
    """Kernels that wait for others, or are waited for, are stages of their own; runs between are one."""
    num_chips, num_kernels = len(tables.chip_kind), len(kernel_chip)
    stands_alone = _interacting_kernels(plumbing, num_kernels)
    chip_kernel_ptr, chip_kernel = rows_of(kernel_chip, num_kernels, num_chips)
    chips, stages = np.zeros(num_chips, CHIP), np.zeros(num_kernels, STAGE)
    stage_of = np.empty(num_kernels, np.int32)
    num_stages = np.int64(0)
    for number in range(num_chips):
        chip = chips[number]
        chip.engines, chip.setup_s = setting.dma_engines[number], setting.dma_setup_s[number]
        chip.stage_begin = num_stages
        is_in_run = False
        for place in range(chip_kernel_ptr[number], chip_kernel_ptr[number + 1]):
            kernel = chip_kernel[place]
            if stands_alone[kernel] or not is_in_run:
                stages[num_stages].kernel, stages[num_stages].stream = place, NONE
                num_stages += 1
            is_in_run = not stands_alone[kernel]
            stage_of[kernel] = num_stages - 1
            stages[num_stages - 1].seconds += kernel_s[kernel]
        chip.stage_end = num_stages
    stages = stages[:num_stages].copy()
    return chips, stages, _connect(plumbing, stages, stage_of), chip_kernel


@njit(cache=True, nogil=True)
def _interacting_kernels(plumbing, num_kernels):
    interacts = np.zeros(num_kernels, np.bool_)
    for flow in range(len(plumbing.maker)):
        if plumbing.maker[flow] != NONE:
            interacts[plumbing.maker[flow]] = True
    for delivery in range(len(plumbing.first_reader)):
        interacts[plumbing.first_reader[delivery]] = True
        interacts[plumbing.last_reader[delivery]] = True
    return interacts


@njit(cache=True, nogil=True)
def _connect(plumbing, stages, stage_of):
    """Fill in what each stage needs, frees, makes and streams; the lists of all of them."""
    maker = np.full(len(plumbing.maker), NONE, np.int32)
    for flow in range(len(maker)):
        if plumbing.flows[flow].kind == STREAM:
            stages[stage_of[plumbing.maker[flow]]].stream = flow
        elif plumbing.maker[flow] != NONE:
            maker[flow] = stage_of[plumbing.maker[flow]]
    num_ends, num_stages = len(plumbing.first_reader), len(stages)
    needs_ptr, needs = rows_of(stage_of[plumbing.first_reader], num_ends, num_stages)
    frees_ptr, frees = rows_of(stage_of[plumbing.last_reader], num_ends, num_stages)
    makes_ptr, makes = rows_of(maker, len(maker), num_stages)
    for i in range(num_stages):
        stage = stages[i]
        stage.needs_begin, stage.needs_end = needs_ptr[i], needs_ptr[i + 1]
        stage.frees_begin, stage.frees_end = num_ends + frees_ptr[i], num_ends + frees_ptr[i + 1]
        stage.makes_begin, stage.makes_end = 2 * num_ends + makes_ptr[i], 2 * num_ends + makes_ptr[i + 1]
    return np.concatenate((needs, frees, makes))


@njit(cache=True, nogil=True)
def _shared(setting, flows, chips):
    shared = np.zeros(1, SHARED)
    one, used = shared[0], np.int64(0)
    for i in range(len(chips)):
        used += chips[i].stage_begin < chips[i].stage_end
    one.buffers, one.packet_bytes, one.prefetch_all = (
        setting.buffers,
        setting.packet_bytes,
        setting.prefetch_all,
    )
    # An inference takes at most an interval on each chip and one on each link between, so as
    # many under way as that keep the slowest of all busy; without limits tensors queue as long again.
    one.window = (2 if setting.buffers < UNBOUNDED else 8) * used + 4
    one.parts = used
    for i in range(len(flows)):
        one.parts += flows[i].kind == HOST_OUT
    return shared


@njit(cache=True, nogil=True)
def _links(tables, setting, flows, hops):
    num_links = len(setting.link_s_per_byte)
    links = np.zeros(num_links + 2, LINK)
    for i in range(num_links):
        links[i].s_per_byte, links[i].latency_s = setting.link_s_per_byte[i], setting.link_latency_s[i]
    links[num_links].s_per_byte = tables.host_in_s_per_byte
    links[num_links + 1].s_per_byte = tables.host_out_s_per_byte
    for i in range(len(hops)):
        links[hops[i].link].round_bytes += flows[hops[i].flow].size_bytes
    for i in range(len(flows)):
        if flows[i].kind != CHIP_FLOW:
            links[num_links + (flows[i].kind == HOST_OUT)].round_bytes += flows[i].size_bytes
    return links
