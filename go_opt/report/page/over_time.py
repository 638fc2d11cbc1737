"""The first inferences of a plan over time: kernels and transfers by chip, and the memory of each stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt import api
from go_opt.env.model.timeline import Span, Timeline
from go_opt.report.page.facts import Subject

MOST_CHIPS: Final = 64  # with a row of their own
MOST_SPANS: Final = 20_000  # of kernels, or of transfers, that are drawn
MOST_STEPS: Final = 300  # in the memory curve of a stage
_MOST_SIMULATED: Final = 60_000  # kernel runs
_IN_STEADY_STATE: Final = 8  # inferences after the pipeline is full


def timeline_of(subject: Subject, inferences: int | None = None) -> Timeline:
    """The timeline of the first inferences: by default enough to fill the pipeline plus a few."""
    metrics, kernels = subject.metrics, len(subject.loads.kernel_chip)
    if inferences is None:
        depth = metrics.latency_s / metrics.interval_s if metrics.interval_s > 0 else 1.0
        wanted = math.ceil(depth) + _IN_STEADY_STATE
        inferences = max(min(wanted, _MOST_SIMULATED // kernels, api.MAX_INFERENCES), 2)
    return api.timeline(
        subject.graph,
        subject.target,
        subject.plan,
        # In the simulator, all transfers overlap with compute.
        fidelity="simulated" if subject.target.overlap else "analytical",
        inferences=inferences,
    )


def timeline_rows(subject: Subject, timeline: Timeline) -> dict[str, Any]:
    """Rows of chips and of the host's link, and the spans on them. Times are in nanoseconds."""
    chips = _chips(subject)
    num_links = subject.target.topology.num_links
    row_of_chip = {chip: row for row, chip in enumerate(chips)}
    rows: list[dict[str, Any]] = [
        {"name": f"chip {chip}", "stage": int(subject.stage_of_chip[chip])} for chip in chips
    ]
    rows += [{"name": name, "stage": None} for name in ("host in", "host out")]
    row_of_link = {num_links + i: len(chips) + i for i in range(2)}
    for link, chip in enumerate(subject.target.topology.link_from.tolist()):
        if chip in row_of_chip:
            row_of_link[link] = row_of_chip[chip]
    kernels = [span for span in timeline.kernels if span.resource in row_of_chip]
    is_merged = len(kernels) > MOST_SPANS
    end_s = _end_s(timeline)
    transfers = [span for span in timeline.transfers if span.resource in row_of_link]
    waits = [span for span in timeline.waits if span.resource in row_of_chip]
    return {
        "fidelity": timeline.fidelity,
        "inferences": 1 + max((span.inference for span in timeline.kernels), default=-1),
        "is_deadlocked": timeline.is_deadlocked,
        "rows": rows,
        "is_merged": is_merged,
        "chips_left_out": int(np.count_nonzero(subject.stage_of_chip >= 0)) - len(chips),
        "transfers_left_out": max(len(transfers) - MOST_SPANS, 0),
        "kernels": _bars(kernels, row_of_chip, end_s if is_merged else 0.0),
        "transfers": _transfers(subject, transfers[:MOST_SPANS], row_of_link),
        "waits": _columns(waits, row_of_chip),
        "end_ns": round(end_s * 1e9),
    }


def memory_rows(subject: Subject, timeline: Timeline) -> list[dict[str, Any]]:
    """Memory use over time of each stage's first chip, and its limit."""
    end_s = _end_s(timeline)
    rows = []
    for stage in subject.stages:
        times_s, used_bytes = timeline.memory[stage.chip]
        begins_s, most_bytes = steps_of(times_s, used_bytes, end_s)
        rows.append(
            {
                "begin_ns": [round(begin_s * 1e9) for begin_s in begins_s],
                "bytes": most_bytes,
                "most_bytes": int(used_bytes.max(initial=0)),
                "weight_bytes": stage.weight_bytes,
                "limit_bytes": int(subject.target.chip_sram_bytes[stage.chip]),
            }
        )
    return rows


def _end_s(timeline: Timeline) -> float:
    return max((span.end_s for span in (*timeline.kernels, *timeline.transfers)), default=0.0)


def _chips(subject: Subject) -> list[int]:
    """The chips with a row, stage by stage: all chips, or only the first ones of each stage."""
    of_stages = [range(stage.chip, stage.chip + stage.replicas) for stage in subject.stages]
    if sum(map(len, of_stages)) <= MOST_CHIPS:
        return [chip for chips in of_stages for chip in chips]
    each = max(MOST_CHIPS // len(of_stages), 1)
    return [chip for chips in of_stages[:MOST_CHIPS] for chip in chips[:each]]


def _columns(spans: Sequence[Span], row_of: dict[int, int]) -> dict[str, Any]:
    return {
        "row": [row_of[span.resource] for span in spans],
        "begin_ns": [round(span.start_s * 1e9) for span in spans],
        "end_ns": [round(span.end_s * 1e9) for span in spans],
        "inference": [span.inference for span in spans],
    }


def _bars(spans: Sequence[Span], row_of: dict[int, int], end_s: float) -> dict[str, Any]:
    """A bar for each kernel; with ``end_s`` above 0, one for successive short ones of an inference on a chip.

    A bar has its first kernel's number. Merging limits the bars of a row to its share of ``MOST_SPANS``, plus
    one for each inference.
    """
    shortest_s = end_s * len(row_of) / MOST_SPANS
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.resource, span.start_s, span.end_s)):
        group = groups[-1] if groups else [span]
        is_same = (group[0].resource, group[0].inference) == (span.resource, span.inference)
        if groups and is_same and span.start_s < group[0].start_s + shortest_s:
            group.append(span)
        else:
            groups.append([span])
    whole = [Span(g[0].resource, "", g[0].inference, g[0].start_s, g[-1].end_s) for g in groups]
    return _columns(whole, row_of) | {
        "kernel": [int(group[0].details["kernel"]) for group in groups],
        "count": [len(group) for group in groups],
    }


def _transfers(subject: Subject, spans: Sequence[Span], row_of: dict[int, int]) -> dict[str, Any]:
    tensors = {name: i for i, name in enumerate(dict.fromkeys(span.name for span in spans))}
    link_names = subject.target.link_names
    return _columns(spans, row_of) | {
        "tensors": list(tensors),
        "tensor": [tensors[span.name] for span in spans],
        "links": list(link_names),
        "link": [span.resource for span in spans],
        "bytes": [int(span.details["bytes"]) for span in spans],
    }


def steps_of(
    times_s: NDArray[np.float64], used_bytes: NDArray[np.int64], end_s: float
) -> tuple[list[float], list[int]]:
    """Times, and the most bytes in use from each until the next: exact, or in equal intervals if too many."""
    in_time = np.argsort(times_s, kind="stable")
    times_s, used_bytes = times_s[in_time], used_bytes[in_time]
    if len(times_s) <= MOST_STEPS:
        return times_s.tolist(), used_bytes.tolist()
    edges_s = np.linspace(0.0, end_s, MOST_STEPS + 1)[:-1]
    part = np.searchsorted(edges_s, times_s, side="right") - 1
    most = np.zeros(MOST_STEPS, dtype=np.int64)
    np.maximum.at(most, part, used_bytes)
    # Memory in use at the start of an interval counts for that interval.
    last = np.searchsorted(times_s, edges_s, side="right") - 1
    return edges_s.tolist(), np.maximum(most, used_bytes[np.maximum(last, 0)]).tolist()
