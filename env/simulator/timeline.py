"""The first inferences of a plan from rest, kernel by kernel and transfer by transfer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env.copies.relays import expand_plan
from go_opt.env.copies.stages import with_sharers
from go_opt.env.kernels.numbering import number_kernels
from go_opt.env.model.memory import FITS
from go_opt.env.model.metrics import Fidelity, Metrics
from go_opt.env.model.timeline import Arrow, Span, Timeline
from go_opt.env.simulator.assembly import Assembly, assemble
from go_opt.env.simulator.engine import DEADLOCK, run
from go_opt.env.simulator.package import CHIP_FLOW, HOST_IN, HOST_OUT, NONE, STREAM, Package
from go_opt.env.simulator.simulate import replicas_by_chip, setting_of, simulate_plan
from go_opt.env.target import Target
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

WEIGHTS_WAIT: Final = "waits for weights"
_Key = tuple[int, int]  # a stage, flow or hop, and an inference


class Traced(NamedTuple):
    """A plan made ready to run, with room for what ran."""

    graph: Graph
    kernel_of: IntArray  # [N]
    assembly: Assembly


def simulated_timeline(graph: Graph, target: Target, plan: Plan, inferences: int) -> Timeline:
    """The timeline of the first ``inferences``, or up to a deadlock; empty if the plan does not fit."""
    graph, plan = expand_plan(graph, target, plan)
    traced = make_ready(graph, target, plan, inferences)
    package = traced.assembly.package
    is_deadlocked = False
    spans = package.spans[:0]
    if traced.assembly.fit.outcome == FITS:
        ended, _ = run(package, inferences, inferences + 1)
        is_deadlocked = ended == DEADLOCK
        spans = package.spans[: package.shared[0]["num_spans"]]
    metrics = simulate_plan(graph, target, plan)
    return timeline_of_spans(traced, "simulated", metrics, spans, is_deadlocked=is_deadlocked)


def make_ready(
    graph: Graph, target: Target, plan: Plan, inferences: int, *, without: Collection[str] = ()
) -> Traced:
    """Assemble a plan with room for all spans of ``inferences``."""
    tables, setting = setting_of(graph, target, tuple(sorted(without)))
    kernel_of = number_kernels(plan.order, plan.fusion_group)
    replicas = replicas_by_chip(target, plan.placement, plan.replication, tables.sequences)
    tables = with_sharers(tables, plan.forwards, replicas)
    assembly = assemble(tables, setting, kernel_of, plan.placement, replicas, inferences, 0)
    package = assembly.package
    spans = np.empty(_most_spans(package, inferences), package.spans.dtype)
    return Traced(graph, kernel_of, assembly._replace(package=package._replace(spans=spans)))


def _most_spans(package: Package, inferences: int) -> int:
    chips, flows = package.chips, package.flows
    of_chip = chips["stage_end"] - chips["stage_begin"]
    of_flow = flows["hop_end"] - flows["hop_begin"] + np.maximum(flows["chunks"], 1)
    turns = ((inferences // rows["in_round"] + 1) * rows["turns"] for rows in (chips, flows))
    return sum(int(rows @ turn) for rows, turn in zip((of_chip, of_flow), turns, strict=True))


def timeline_of_spans(
    traced: Traced, fidelity: Fidelity, metrics: Metrics, spans: NDArray, *, is_deadlocked: bool = False
) -> Timeline:
    """The timeline of ``spans`` (records SPAN), with names, arrows and memory."""
    ran = _ran(traced, spans)
    # In the analytical model weights are prefetched.
    waits = _weight_waits(traced, ran) if fidelity == "simulated" else {}
    kernels = [span for of_stage in ran.stages.values() for span in of_stage]
    # The analytical model counts the memory of one inference, though several may be in flight.
    first = traced.assembly.package.chips["replica"]
    held = [span for span in kernels if fidelity == "simulated" or span.inference == first[span.resource]]
    return Timeline(
        fidelity=fidelity,
        metrics=metrics,
        kernels=tuple(kernels),
        waits=tuple(waits.values()),
        transfers=(*ran.hops.values(), *ran.host.values()),
        arrows=(*_chip_arrows(traced, ran), *_host_arrows(traced, ran, waits)),
        memory=tuple(_memory(traced.assembly, held)),
        is_deadlocked=is_deadlocked,
    )


class _Ran(NamedTuple):
    """Spans by stage, hop or flow, and inference."""

    stages: dict[_Key, list[Span]]  # kernels
    hops: dict[_Key, Span]
    host: dict[_Key, Span]  # by flow


def _ran(traced: Traced, spans: NDArray) -> _Ran:
    package = traced.assembly.package
    names = _kernel_names(traced)
    hop_of = {(int(hop["flow"]), int(hop["link"])): number for number, hop in enumerate(package.hops)}
    ran = _Ran({}, {}, {})
    for is_link, resource, subject, inference, start_s, end_s in spans.tolist():
        if not is_link:
            stage = package.stages[subject]
            kernels = traced.assembly.chip_kernel[stage["kernel"] : stage["kernel_end"]]
            times_s = start_s + np.cumsum([0.0, *traced.assembly.kernel_s[kernels]])
            times_s[-1] = end_s  # to the last bit, so that stages do not overlap
            ran.stages[subject, inference] = [
                Span(resource, names[k][0], inference, begin_s, stop_s, {"kernel": k, "ops": names[k][1]})
                for k, (begin_s, stop_s) in zip(kernels.tolist(), pairwise(times_s.tolist()), strict=True)
            ]
            continue
        flow = package.flows[subject]
        name, details = traced.graph.tensor_names[flow["tensor"]], {"bytes": int(flow["size_bytes"])}
        span = Span(resource, name, inference, start_s, end_s, details)
        if flow["kind"] == CHIP_FLOW:
            ran.hops[hop_of[subject, resource], inference] = span
        else:  # one span for all chunks
            first = ran.host.get((subject, inference), span)
            ran.host[subject, inference] = replace(first, end_s=end_s)
    return ran


def _kernel_names(traced: Traced) -> list[tuple[str, str]]:
    """[M] op types and op names of each kernel."""
    members: list[list[int]] = [[] for _ in traced.assembly.kernel_s]
    for op, kernel in enumerate(traced.kernel_of):
        members[kernel].append(op)
    types, names = traced.graph.op_types, traced.graph.op_names
    return [("+".join(types[op] for op in ops), ", ".join(names[op] for op in ops)) for ops in members]


def _weight_waits(traced: Traced, ran: _Ran) -> dict[_Key, Span]:
    """Waits by streamed flow: from the end of the kernel's work to the end of its weights' transfer."""
    stages = traced.assembly.package.stages
    waits = {}
    for (stage, inference), kernels in ran.stages.items():
        key = int(stages[stage]["stream"]), inference
        kernel, stream = kernels[-1], ran.host.get(key)
        if stream is not None and stream.end_s > kernel.end_s:
            waits[key] = Span(kernel.resource, WEIGHTS_WAIT, inference, kernel.end_s, stream.end_s, {
                "weight": stream.name, "bytes": stream.details["bytes"]})  # fmt: skip
    return waits


def _chip_arrows(traced: Traced, ran: _Ran) -> Iterator[Arrow]:
    """Arrows from the kernel that makes a tensor over each link to the first kernel that reads it."""
    package = traced.assembly.package
    maker, reader = _stages_of(traced)
    for (number, inference), span in ran.hops.items():
        hop = package.hops[number]
        if hop["parent"] == NONE:
            source = ran.stages[maker[hop["flow"]], inference][-1]
            yield Arrow(span.name, "chip", source, "link", span)
        else:
            yield Arrow(span.name, "link", ran.hops[int(hop["parent"]), inference], "link", span)
        if hop["delivery"] != NONE and (reader[hop["delivery"]], inference) in ran.stages:
            yield Arrow(span.name, "link", span, "chip", ran.stages[reader[hop["delivery"]], inference][0])


def _host_arrows(traced: Traced, ran: _Ran, waits: dict[_Key, Span]) -> Iterator[Arrow]:
    package = traced.assembly.package
    maker, reader = _stages_of(traced)
    for (number, inference), span in ran.host.items():
        flow = package.flows[number]
        if flow["kind"] == HOST_OUT:
            yield Arrow(span.name, "chip", ran.stages[maker[number], inference][-1], "link", span)
        elif flow["kind"] == STREAM and (number, inference) in waits:
            yield Arrow(span.name, "link", span, "chip", waits[number, inference])
        elif flow["kind"] == HOST_IN:
            for delivery in range(flow["delivery_begin"], flow["delivery_end"]):
                if (reader[delivery], inference) in ran.stages:
                    yield Arrow(span.name, "link", span, "chip", ran.stages[reader[delivery], inference][0])


def _stages_of(traced: Traced) -> tuple[dict[int, int], dict[int, int]]:
    """The stage that makes each flow, and the stage that reads each delivery first."""
    package = traced.assembly.package
    maker: dict[int, int] = {}
    reader: dict[int, int] = {}
    for number, stage in enumerate(package.stages):
        maker |= {int(flow): number for flow in package.refs[stage["makes_begin"] : stage["makes_end"]]}
        reader |= {int(end): number for end in package.refs[stage["needs_begin"] : stage["needs_end"]]}
    return maker, reader


def _memory(assembly: Assembly, kernels: list[Span]) -> Iterator[tuple[FloatArray, LongArray]]:
    """Times and resident bytes of each chip; activations count from the start of their kernel on."""
    fixed_bytes = assembly.fit.weight_bytes + assembly.held.border_bytes
    fixed_bytes = fixed_bytes[np.arange(len(fixed_bytes)) - assembly.package.chips["replica"]]
    during, after = _activations(assembly)
    of_chip: list[list[Span]] = [[] for _ in fixed_bytes]
    for span in kernels:
        of_chip[span.resource].append(span)
    for chip, spans in enumerate(of_chip):
        times_s, held_bytes = [0.0], [0]
        for span in spans:
            kernel = int(span.details["kernel"])
            times_s += [span.start_s, span.end_s]
            held_bytes += [during[kernel], after[kernel]]
        yield np.array(times_s), fixed_bytes[chip] + np.array(held_bytes, np.int64)


def _activations(assembly: Assembly) -> tuple[LongArray, LongArray]:
    """[M] bytes up to the highest address in use while each kernel runs, and right after it.

    If buffers have no addresses, the bytes alive.
    """
    held = assembly.held
    place_of = np.empty(len(assembly.kernel_s), np.int64)
    place_of[assembly.chip_kernel] = np.arange(len(place_of))
    during, after = np.zeros((2, len(place_of)), np.int64)
    for i, size in enumerate(held.size_bytes):
        begin, end = place_of[held.born[i]], place_of[held.dead[i]]
        for table, stop in ((during, end + 1), (after, end)):
            live = table[begin:stop]
            end_at = held.address[i] + size
            table[begin:stop] = live + size if held.address[i] == NONE else np.maximum(live, end_at)
    return during[place_of], after[place_of]
