"""Timelines: what ran when, as Chrome's trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from go_opt.env import Target
from go_opt.env.timeline import Span, Timeline
from go_opt.graph import Graph

_CHIPS, _LINKS, _MEMORY = 1, 2, 3
_US: Final = 1e6


def trace_events(graph: Graph, target: Target, timeline: Timeline) -> dict[str, Any]:
    """The JSON object: a track for each chip and link, a flow for each transfer, memory as counters."""
    events = [*_names(target), *_spans(timeline), *_flows(timeline), *_counters(timeline)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "model": graph.name,
            "target": target.name,
            "fidelity": timeline.fidelity,
            "interval_s": timeline.interval_s,
        },
    }


def trace_text(graph: Graph, target: Target, timeline: Timeline) -> str:
    """The text of a trace file."""
    return json.dumps(trace_events(graph, target, timeline), allow_nan=False)


def _names(target: Target) -> Iterator[dict[str, Any]]:
    for process, name in ((_CHIPS, "chips"), (_LINKS, "links"), (_MEMORY, "memory")):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for chip in range(target.num_chips):
        yield _thread(_CHIPS, chip, f"chip {chip}")
    for link, name in enumerate(target.link_names):
        yield _thread(_LINKS, link, name)


def _thread(process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _spans(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for process, spans in ((_CHIPS, timeline.kernels), (_LINKS, timeline.transfers)):
        for span in spans:
            yield {
                "ph": "X",
                "pid": process,
                "tid": span.resource,
                "name": span.name,
                "cat": "kernel" if process == _CHIPS else "transfer",
                "ts": span.start_s * _US,
                "dur": (span.end_s - span.start_s) * _US,
                "args": {"inference": span.inference, **span.details},
            }


def _flows(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """An arrow from the kernel that makes a tensor to its transfer, and on to a kernel that reads it."""
    for number, arrow in enumerate(timeline.arrows):
        yield _arrow_end("s", number, arrow.name, arrow.source_kind, arrow.source)
        yield _arrow_end("f", number, arrow.name, arrow.destination_kind, arrow.destination)


def _arrow_end(phase: str, number: int, name: str, kind: str, span: Span) -> dict[str, Any]:
    # Arrows bind to the slice that encloses their time: the middle is inside whatever its length.
    event = {
        "ph": phase,
        "id": number,
        "pid": _CHIPS if kind == "chip" else _LINKS,
        "tid": span.resource,
        "name": name,
        "cat": "tensor",
        "ts": (span.start_s + span.end_s) / 2 * _US,
    }
    return event | {"bp": "e"} if phase == "f" else event


def _counters(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for chip, (times_s, held_bytes) in enumerate(timeline.memory):
        for time_s, held in zip(times_s, held_bytes, strict=True):
            yield {
                "ph": "C",
                "pid": _MEMORY,
                "name": f"chip {chip}",
                "ts": float(time_s) * _US,
                "args": {"bytes": int(np.int64(held))},
            }
