"""Assembles the package that runs a plan: memory, flows, stages, and room for the engine's state."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, LongArray, Record, RecordArray
from go_opt.common.compiling import compiled, compiled_inner, int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.env.kernels.numbering import seconds_of_kernels
from go_opt.env.kernels.plain_loops import largest
from go_opt.env.model.memory import Fit, Holdings, csr_of, fit_chips, holdings
from go_opt.env.model.traffic import round_of
from go_opt.env.simulator.package import (
    CHIP,
    EVENT,
    HOST_OUT,
    NODE,
    NONE,
    ROUND,
    SHARED,
    SPAN,
    STAGE,
    STREAM,
    UNBOUNDED,
    Package,
    becomes_replica,
)
from go_opt.env.simulator.plumbing import grant_credit, lay_hops, lay_links, lay_plumbing


class Setting(NamedTuple):
    """What tables lack of a target with some effects off. Axis: ``D`` chips."""

    buffers: int
    rule: int
    packet_bytes: int
    dma_engines: LongArray  # [D]


class Assembly(NamedTuple):
    """A plan made ready to run. Axis: ``M`` kernels."""

    kernel_chip: IntArray  # [M] the first replica
    chip_kernel: IntArray  # [M] kernels chip by chip, in order; once for all replicas
    kernel_s: FloatArray  # [M]
    held: Holdings  # once for all replicas, by the first
    fit: Fit
    package: Package


@compiled
def assemble(
    tables: CostTables,
    setting: Setting,
    kernel_of: IntArray,
    placement: IntArray,
    replicas: IntArray,
    most_rounds: int,
    num_spans: int,
) -> Assembly:
    """Kernels, memory, stages and flows of a plan.

    Args:
      kernel_of: [N] kernels along the plan's order.
      replicas: [D] number of replicas of each chip with kernels: that chip and those after it.
      most_rounds: inferences to reserve room for; 0: :func:`rounds_limit` of the package's
        window.
      num_spans: spans to reserve room for.
    """
    num_kernels = largest(kernel_of) + 1
    kernel_chip = np.empty(num_kernels, np.int32)
    for op in range(len(kernel_of)):
        kernel_chip[kernel_of[op]] = placement[op]
    held = holdings(tables, kernel_of, kernel_chip, replicas.astype(np.int64))
    fit = fit_chips(tables, held)
    by_kind = seconds_of_kernels(tables, kernel_of, num_kernels)
    kernel_s = np.empty(num_kernels)
    for kernel in range(num_kernels):
        kernel_s[kernel] = by_kind[tables.chip_kind[kernel_chip[kernel]], kernel]
    shared = _shared(tables, setting, kernel_chip, replicas)
    if most_rounds == 0:
        most_rounds = rounds_limit(shared[0].window)
    window = min(shared[0].window, most_rounds)
    flows, deliveries, num_came = lay_plumbing(
        tables, kernel_of, kernel_chip, replicas, held, fit, most_rounds
    )
    hops, others = lay_hops(tables, flows, deliveries)
    grant_credit(flows, deliveries, len(tables.chip_kind), setting.rule)
    for flow in flows:
        shared[0].parts += flow.kind == HOST_OUT and flow.replica == 0
        if flow.chip != NONE:
            flow.setup_s = tables.dma_setup_s[tables.chip_kind[flow.chip]]
    chips, stages, refs, chip_kernel = _stages(
        tables, setting, flows, deliveries, kernel_chip, kernel_s, replicas
    )
    num_links = len(tables.link_s_per_byte) + 2
    num_nodes, num_events = _most_waiting(flows, deliveries, window, setting.buffers)
    package = Package(
        chips, stages, flows, deliveries, hops, others,
        lay_links(tables, shared[0], chips, flows, hops, others),
        refs, np.empty(num_came, np.bool_), shared,
        np.empty(16 + num_nodes, NODE),
        np.empty(16 + len(chips) + num_events, EVENT),
        np.empty(16 + len(flows) * window, np.int64),
        np.empty(most_rounds, ROUND),
        np.empty((len(chips) + num_links, most_rounds)),
        np.empty((len(chips), most_rounds, 4)), np.empty((num_links, most_rounds)),
        np.empty(num_spans, SPAN),
    )  # fmt: skip
    return Assembly(kernel_chip, chip_kernel, kernel_s, held, fit, package)


@uncounted_inner
def _most_waiting(flows: RecordArray, deliveries: RecordArray, window: int, buffers: int) -> tuple[int, int]:
    """Upper limits of the nodes and the events that exist at a time, without those of chips."""
    # Tensors without credit pile up over the whole window.
    is_bounded, widest = True, int64(1)
    for delivery in deliveries:
        is_bounded = is_bounded and delivery.has_credit
        widest = max(widest, delivery.replicas)
    limit = min(window, (buffers + 2) * widest) if is_bounded else window
    nodes, events = int64(0), int64(0)
    for flow in flows:
        under_way = min(limit, (window // flow.in_round + 1) * flow.turns + 1)
        hops = flow.hop_end - flow.hop_begin
        nodes += (hops + 1) * under_way
        events += (2 * hops + 1) * under_way + 3 * flow.is_forwarded
    return nodes, events + len(deliveries) * limit


@uncounted_inner
def rounds_limit(window: int) -> int:
    """Inferences after which a package without a period is measured anyway."""
    return 8 * window + 64


@compiled_inner
def _stages(
    tables: CostTables,
    setting: Setting,
    flows: RecordArray,
    deliveries: RecordArray,
    kernel_chip: IntArray,
    kernel_s: FloatArray,
    replicas: IntArray,
) -> tuple[RecordArray, RecordArray, IntArray, IntArray]:
    """Kernels that wait or are waited for are stages of their own; each run between them is one stage."""
    num_chips, num_kernels = len(replicas), len(kernel_chip)
    stands_alone = _interacting_kernels(flows, deliveries, num_kernels)
    chip_kernel_ptr, chip_kernel = csr_of(kernel_chip[:num_kernels], num_chips)
    chips = np.zeros(num_chips, CHIP)
    most_stages = int64(0)
    for number in range(num_chips):
        most_stages += (chip_kernel_ptr[number + 1] - chip_kernel_ptr[number]) * replicas[number]
    stages = np.zeros(most_stages, STAGE)
    stage_of = np.empty(num_kernels, np.int32)
    first, num_stages = int64(0), int64(0)
    for number in range(num_chips):
        chip = chips[number]
        chip.engines = setting.dma_engines[number]
        chip.dependency_s = tables.dependency_s[tables.chip_kind[number]]
        chip.stage_begin = num_stages
        if number >= first + replicas[first]:
            first = int64(number)
        becomes_replica(chip, number - first, replicas[first], tables.sequences)
        if number > first:
            for stage in range(chips[first].stage_begin, chips[first].stage_end):
                stages[num_stages] = stages[stage]
                num_stages += 1
        is_in_run = False
        for place in range(chip_kernel_ptr[number], chip_kernel_ptr[number + 1]):
            kernel = chip_kernel[place]
            if stands_alone[kernel] or not is_in_run:
                stages[num_stages].kernel, stages[num_stages].stream = place, NONE
                num_stages += 1
            is_in_run = not stands_alone[kernel]
            stage_of[kernel] = num_stages - 1
            stages[num_stages - 1].kernel_end = place + 1
            stages[num_stages - 1].seconds += kernel_s[kernel]
        chip.stage_end = num_stages
    stages = stages[:num_stages].copy()
    return chips, stages, _connect(flows, deliveries, chips, stages, stage_of), chip_kernel


@compiled_inner
def _interacting_kernels(flows: RecordArray, deliveries: RecordArray, num_kernels: int) -> BoolArray:
    interacts = np.zeros(num_kernels, np.bool_)
    for flow in flows:
        if flow.maker != NONE:
            interacts[flow.maker] = True
    for delivery in deliveries:
        interacts[delivery.first] = interacts[delivery.last] = True
    return interacts


@compiled_inner
def _connect(
    flows: RecordArray, deliveries: RecordArray, chips: RecordArray, stages: RecordArray, stage_of: IntArray
) -> IntArray:
    """Fill in what each stage needs, frees, makes and streams; returns ``Package.refs``."""
    maker = np.full(len(flows), NONE, np.int32)
    for flow in range(len(flows)):
        if flows[flow].maker != NONE:
            stage = _stage_on(chips, flows[flow], stage_of[flows[flow].maker])
            if flows[flow].kind == STREAM:
                stages[stage].stream = flow
            else:
                maker[flow] = stage
    num_ends, num_stages = len(deliveries), len(stages)
    first, last = np.empty(num_ends, np.int32), np.empty(num_ends, np.int32)
    for i in range(num_ends):
        first[i] = _stage_on(chips, deliveries[i], stage_of[deliveries[i].first])
        last[i] = _stage_on(chips, deliveries[i], stage_of[deliveries[i].last])
    needs_ptr, needs = csr_of(first, num_stages)
    frees_ptr, frees = csr_of(last, num_stages)
    makes_ptr, makes = csr_of(maker, num_stages)
    for i in range(num_stages):
        stage = stages[i]
        stage.needs_begin, stage.needs_end = needs_ptr[i], needs_ptr[i + 1]
        stage.frees_begin, stage.frees_end = num_ends + frees_ptr[i], num_ends + frees_ptr[i + 1]
        stage.makes_begin, stage.makes_end = 2 * num_ends + makes_ptr[i], 2 * num_ends + makes_ptr[i + 1]
    refs = np.empty(2 * num_ends + len(makes), np.int32)
    for i in range(num_ends):
        refs[i], refs[num_ends + i] = needs[i], frees[i]
    for i in range(len(makes)):
        refs[2 * num_ends + i] = makes[i]
    return refs


@uncounted_inner
def _stage_on(chips: RecordArray, row: Record, stage: int) -> int:
    """The stage on the chip of a flow or delivery, given the same stage on its first replica."""
    return stage + chips[row.chip].stage_begin - chips[row.chip - row.replica].stage_begin


@compiled_inner
def _shared(tables: CostTables, setting: Setting, kernel_chip: IntArray, replicas: IntArray) -> RecordArray:
    """The SHARED record; its ``parts`` count only the chips that an inference runs on, not outputs."""
    shared = np.zeros(1, SHARED)
    one, used = shared[0], int64(0)
    one.cycle, one.queues = 1, 1
    runs = np.zeros(len(replicas), np.bool_)
    for chip in kernel_chip:
        if not runs[chip]:
            runs[chip] = True
            one.parts += 1
            used += replicas[chip]
            one.cycle = min(one.cycle * (replicas[chip] // gcd(one.cycle, replicas[chip])), UNBOUNDED)
    one.cycle = round_of(one.cycle, tables.sequences)
    one.buffers, one.packet_bytes, one.prefetch_all = (
        setting.buffers,
        setting.packet_bytes,
        tables.weight_prefetch,
    )
    # An inference takes at most an interval on each chip and on each link between, so that many
    # in flight keep the slowest of all busy. Without limits on buffers, tensors queue longer.
    one.window = (2 if setting.buffers < UNBOUNDED else 8) * used + 4
    if 0 < tables.loops < one.window:  # each begins its next inference when its last has ended
        one.window = one.sequences = tables.loops
    return shared
