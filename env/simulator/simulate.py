"""Runs a plan in the simulator: a batch of plans, or one whose metrics have names and reasons."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env.copies.relays import expand_plan
from go_opt.env.copies.stages import size_by_chip, with_sharers
from go_opt.env.cost.tables import CostTables, read_only, tables_with_effects
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.memory import FITS
from go_opt.env.model.metrics import STEP, Metrics, Simulation
from go_opt.env.simulator.assembly import Setting, assemble
from go_opt.env.simulator.engine import DEADLOCK, STEADY, run, step_s
from go_opt.env.simulator.package import (
    HOST_IN,
    HOST_OUT,
    NONE,
    STREAM,
    STREAM_WAIT,
    UNBOUNDED,
    Package,
    inference_of,
)
from go_opt.env.simulator.plumbing import RULES
from go_opt.env.target import Target
from go_opt.env.target.kinds import UNLIMITED
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

VALID, TOO_LARGE, FRAGMENTED, DEADLOCKED = range(4)
FIRST_CHECK, NEVER = 12, 1 << 40  # inferences


class SimulatedBatch(NamedTuple):
    """The results of a batch. Axes: ``B`` plans, ``D`` chips, ``L`` links and the host's two."""

    outcome: LongArray  # [B] VALID, TOO_LARGE, FRAGMENTED or DEADLOCKED
    culprit: LongArray  # [B, 3] chip that does not fit; or link, tensor, inference
    interval_s: FloatArray  # [B] infinite where the plan does not run
    latency_s: FloatArray  # [B] of one inference among others
    makespan_s: FloatArray  # [B] of one inference alone
    compute_s: FloatArray  # [B, D] kernels of one inference
    busy_s: FloatArray  # [B, D] the same, and where they do not overlap the transfers of the chip
    link_s: FloatArray  # [B, L] transfers of one inference
    stall_s: FloatArray  # [B, D, 4] waiting in one inference, by cause
    link_wait_s: FloatArray  # [B, L] waiting of transfers for the link in one inference
    stream_bytes: LongArray  # [B, D]
    peak_bytes: LongArray  # [B, D]
    weight_bytes: LongArray  # [B, D]
    period: LongArray  # [B] inferences until everything repeats; 0: no repetition within the limit
    rounds: LongArray  # [B] inferences simulated


def simulate_batch(
    graph: Graph,
    target: Target,
    placement: IntArray,  # [B, N]
    order: IntArray,  # [B, N]
    fusion_group: IntArray,  # [B, N]
    replication: IntArray | None = None,  # [B, N]; by default none is replicated
    *,
    forwards: Collection[int] = (),
    without: Collection[str] = (),
) -> SimulatedBatch:
    """Simulate plans to steady state.

    Args:
      forwards: first chips of the stages that forward streamed weights, in all plans.
      without: names of effects (``EFFECTS``) to switch off.
    """
    tables, setting = setting_of(graph, target, tuple(sorted(without)))
    num_plans, num_chips = len(placement), tables.num_chips
    num_links = len(tables.link_s_per_byte) + 2
    out = SimulatedBatch(
        outcome=np.zeros(num_plans, np.int64),
        culprit=np.full((num_plans, 3), NONE, np.int64),
        interval_s=np.full(num_plans, np.inf),
        latency_s=np.full(num_plans, np.inf),
        makespan_s=np.full(num_plans, np.inf),
        compute_s=np.zeros((num_plans, num_chips)),
        busy_s=np.zeros((num_plans, num_chips)),
        link_s=np.zeros((num_plans, num_links)),
        stall_s=np.zeros((num_plans, num_chips, 4)),
        link_wait_s=np.zeros((num_plans, num_links)),
        stream_bytes=np.zeros((num_plans, num_chips), np.int64),
        peak_bytes=np.zeros((num_plans, num_chips), np.int64),
        weight_bytes=np.zeros((num_plans, num_chips), np.int64),
        period=np.zeros(num_plans, np.int64),
        rounds=np.zeros(num_plans, np.int64),
    )
    replicas = np.ones(num_chips, np.int32)
    for b in range(num_plans):
        kernel_of = number_kernels(order[b], fusion_group[b])
        if replication is not None:
            replicas = replicas_by_chip(target, placement[b], replication[b], tables.sequences)
            tables = with_sharers(tables, forwards, replicas)
        _simulate(tables, setting, kernel_of, read_only(placement[b]), replicas, b, out)
    return out


def replicas_by_chip(
    target: Target, placement: IntArray, replication: IntArray, sequences: int = 0
) -> IntArray:
    """[D] chips of the stage that starts at each chip, cut short if it would overlap the next.

    Args:
      sequences: in flight, if their states stay on the chips: no more chips are of use; 0: there are none.
    """
    size = size_by_chip(placement, replication, target.num_chips)
    first = np.unique(placement)
    size[first] = np.minimum(size[first], np.diff(first, append=target.num_chips))
    return size if sequences == 0 else np.minimum(size, np.int32(sequences))


@lru_cache(maxsize=16)
def setting_of(graph: Graph, target: Target, without: tuple[str, ...]) -> tuple[CostTables, Setting]:
    """The target's tables and other parameters, with all its effects except ``without``."""
    parameters = target.simulator.without(without)
    tables = tables_with_effects(graph, target, parameters)
    if "latency" in without:
        tables = tables._replace(link_latency_s=np.zeros_like(tables.link_latency_s))
    engines = [UNBOUNDED if k.dma_engines == UNLIMITED else k.dma_engines for k in parameters.kinds]
    setting = Setting(
        buffers=UNBOUNDED if parameters.buffers == UNLIMITED else parameters.buffers,
        rule=RULES.index(target.constraints.triangle),
        packet_bytes=parameters.packet_bytes,
        dma_engines=np.array(engines, np.int64)[target.chip_kind],
    )
    return tables, setting


def _simulate(
    tables: CostTables,
    setting: Setting,
    kernel_of: IntArray,
    placement: IntArray,
    replicas: IntArray,
    b: int,
    out: SimulatedBatch,
) -> None:
    plan = assemble(tables, setting, kernel_of, placement, replicas, 0, 0)
    fit, package = plan.fit, plan.package
    chips, links, rounds = package.chips, package.links, package.rounds
    np.add.at(out.compute_s[b], plan.kernel_chip, plan.kernel_s)
    first = np.arange(len(chips)) - chips["replica"]
    share = chips["turns"] / chips["in_round"]
    out.compute_s[b] = out.compute_s[b][first] * share
    out.peak_bytes[b], out.weight_bytes[b] = fit.peak_bytes[first], fit.weight_bytes[first]
    out.stream_bytes[b] = fit.stream_bytes[first]
    out.link_s[b] = links["round_bytes"] / links["cycle"] * links["s_per_byte"]
    out.busy_s[b] = out.compute_s[b]
    if fit.outcome != FITS:
        out.outcome[b] = fit.outcome
        out.culprit[b, 0] = fit.chip
        return
    run(package, 1, NEVER)
    out.makespan_s[b] = rounds["completion_s"][0]
    least_s = max(out.compute_s[b].max(), out.link_s[b].max())
    if not tables.overlap:
        out.busy_s[b] += occupy_chips(tables, package)
        least_s = out.busy_s[b].max()
    if setting.buffers >= UNBOUNDED:
        # Nothing else limits chips, and tensors that run far ahead would come first in every
        # queue for ever. So one inference enters per interval of the model.
        package.shared["pace_s"] = least_s
    ended, period = run(package, len(rounds), FIRST_CHECK)
    out.rounds[b] = completed = int(package.shared["completed"][0])
    if ended == DEADLOCK:
        out.outcome[b] = DEADLOCKED
        _name_deadlock(package, out.culprit[b])
        return
    out.period[b] = period
    last, over = completed - 1, period
    if ended != STEADY:
        # After the last admission the package drains: the last window does not count.
        last -= int(package.shared["window"][0])
        over = last // 2
    out.interval_s[b] = step_s(package, last, over, ended == STEADY)
    # While queues still grow, inferences may end faster than the busiest link can last. Chips that run
    # nothing, but pass tensors on, are not simulated where transfers take the chip's time.
    if ended != STEADY or not tables.overlap:
        out.interval_s[b] = max(out.interval_s[b], least_s)
    out.latency_s[b] = rounds["completion_s"][last] - rounds["start_s"][last]
    for inference in range(last + 1 - over, last + 1):
        out.stall_s[b] += package.stall_s[:, inference] / over
        out.link_wait_s[b] += package.link_wait_s[:, inference] / over


def occupy_chips(tables: CostTables, package: Package) -> FloatArray:
    """Let chips do one thing at a time: transfers take the time of both their chips, and none of the links.

    A chip spends it before its first stage. As in the analytical model, a single inference is not slowed.

    Returns:
      [D] seconds of transfers in one inference, the mean over all inferences.
    """
    flows, deliveries, links, chips = package.flows, package.deliveries, package.links, package.chips
    transfers_s = np.zeros(len(chips))
    link_s = links["round_bytes"] / links["cycle"] * links["s_per_byte"]
    for ends in (tables.link_from, tables.link_to):
        np.add.at(transfers_s, ends[ends >= 0], link_s[:-2][ends >= 0])
    of_flow = flows["size_bytes"] * flows["turns"] / flows["in_round"]
    for kind, s_per_byte in ((STREAM, tables.host_in_s_per_byte), (HOST_OUT, tables.host_out_s_per_byte)):
        rows = flows["kind"] == kind
        np.add.at(transfers_s, flows["chip"][rows], of_flow[rows] * s_per_byte)
    rows = flows["kind"][deliveries["flow"]] == HOST_IN
    size_bytes = flows["size_bytes"][deliveries["flow"]] * deliveries["turns"] / deliveries["in_round"]
    np.add.at(transfers_s, deliveries["chip"][rows], size_bytes[rows] * tables.host_in_s_per_byte)
    transfers_s *= tables.pays_transfers[tables.chip_kind]
    runs = chips["stage_end"] > chips["stage_begin"]
    package.stages["seconds"][chips["stage_begin"][runs]] += (
        transfers_s * chips["in_round"] / chips["turns"]
    )[runs]
    links["s_per_byte"] = 0.0
    return transfers_s


def _name_deadlock(package: Package, culprit: LongArray) -> None:
    """Fill in the first blocked link, the tensor at the head of its queue, and its inference."""
    for link, head in enumerate(package.links["blocked_head"]):
        if head != NONE:
            hop = package.hops[package.nodes["subject"][head]]
            flow = package.flows[hop["flow"]]
            culprit[:] = link, flow["tensor"], inference_of(flow, hop["turn"])
            return


def simulate_plan(
    graph: Graph,
    target: Target,
    plan: Plan,
    *,
    seed: int | None = None,
    without: Collection[str] = (),
) -> Metrics:
    """Run one plan to steady state; ``seed`` draws the noise of the measurement, None: no noise.

    A plan that does not run has an infinite interval, ``valid`` False and the reason.
    """
    return _simulated(graph, target, plan, seed, tuple(without))


@lru_cache(maxsize=8)  # the plans that a search has simulated are simulated for its answer
def _simulated(
    graph: Graph, target: Target, plan: Plan, seed: int | None, without: tuple[str, ...]
) -> Metrics:
    graph, plan = expand_plan(graph, target, plan)
    rows = (plan.placement, plan.order, plan.fusion_group, plan.replication)
    batch = simulate_batch(
        graph, target, *(row[None] for row in rows), forwards=plan.forwards, without=without
    )
    outcome = int(batch.outcome[0])
    is_step = graph.has_scope("model")  # which begins when the one before has ended
    interval_s = float((batch.makespan_s if is_step else batch.interval_s)[0]) * _noise(target, seed, without)
    return Metrics(
        interval_s=interval_s,
        throughput_per_s=1.0 / interval_s if interval_s > 0 else float("inf"),
        latency_s=float(batch.latency_s[0]),
        makespan_s=float(batch.makespan_s[0]),
        bottleneck=(STEP if is_step else _bottleneck(graph, target, batch)) if outcome == VALID else "",
        compute_s=batch.compute_s[0],
        link_s=batch.link_s[0],
        stream_bytes=batch.stream_bytes[0],
        peak_bytes=batch.peak_bytes[0],
        weight_bytes=batch.weight_bytes[0],
        valid=outcome == VALID,
        reason=_reason(graph, target, batch),
        simulation=Simulation(
            utilisation=_share(batch.compute_s[0], interval_s),
            stall_s=batch.stall_s[0],
            link_utilisation=_share(batch.link_s[0], interval_s),
            link_wait_s=batch.link_wait_s[0],
            period=int(batch.period[0]),
            inferences=int(batch.rounds[0]),
        ),
    )


def _share(busy_s: FloatArray, interval_s: float) -> FloatArray:
    return busy_s / interval_s if interval_s > 0 else np.zeros_like(busy_s)


def _noise(target: Target, seed: int | None, without: Collection[str]) -> float:
    """The noise factor of a measurement; log-normal, so that it stays above zero."""
    if seed is None or "noise" in without:
        return 1.0
    return float(np.exp(target.simulator.noise * np.random.default_rng(seed).standard_normal()))


def _bottleneck(graph: Graph, target: Target, batch: SimulatedBatch) -> str:
    """The busiest chip or link; a chip that waits for streamed weights counts as busy."""
    link_s = batch.link_s[0] * target.overlap  # else their time is that of chips
    busy_s = np.concatenate([batch.busy_s[0] + batch.stall_s[0, :, STREAM_WAIT], link_s])
    if graph.has_scope("sequence") and busy_s.max() < batch.interval_s[0] * (1.0 - 1e-6):
        return target.bottleneck_name(len(busy_s))
    return target.bottleneck_name(int(np.argmax(busy_s)))


def _reason(graph: Graph, target: Target, batch: SimulatedBatch) -> str:
    outcome, culprit = int(batch.outcome[0]), batch.culprit[0]
    if outcome == TOO_LARGE:
        chip = int(culprit[0])
        needs, has = int(batch.peak_bytes[0, chip]), int(target.chip_sram_bytes[chip])
        streams = " beside the buffer for streamed weights" if needs <= has else ""
        return f"out of memory: chip {chip} needs {needs} bytes for activations{streams} and has {has}"
    if outcome == FRAGMENTED:
        chip = int(culprit[0])
        return (
            f"out of memory: activations on chip {chip} reach up to byte {int(batch.peak_bytes[0, chip])} of "
            f"{int(target.chip_sram_bytes[chip])}, though their sizes add up to less"
        )
    if outcome == DEADLOCKED:
        link, tensor, inference = (int(value) for value in culprit)
        if link == NONE:  # only plans that break a rule: no route, or an invalid order
            return "deadlock: every chip waits for a tensor that never comes"
        return (
            f"deadlock: {target.link_names[link]} is stopped by tensor {graph.tensor_names[tensor]!r} of "
            f"inference {inference}, whose reader has no buffer free and waits for what is behind it"
        )
    return ""
