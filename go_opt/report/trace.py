"""Timelines as Chrome trace events for Perfetto and chrome://tracing."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from go_opt.common.outputs import TRACE
from go_opt.env import Target
from go_opt.env.critical_path import CriticalPath
from go_opt.env.model.timeline import Arrow, Span, Timeline
from go_opt.model.graph import Graph

_CHIPS, _LINKS, _MEMORY, _CRITICAL = 1, 2, 3, 4
_FIRST_THREAD: Final = 1000  # above process numbers: a thread with its process's number is the main thread
_Event = dict[str, Any]


def trace_text(graph: Graph, target: Target, timeline: Timeline, path: CriticalPath | None = None) -> str:
    """The text of a trace file."""
    return json.dumps(trace_events(graph, target, timeline, path), allow_nan=False)


def trace_events(
    graph: Graph, target: Target, timeline: Timeline, path: CriticalPath | None = None
) -> dict[str, Any]:
    """The JSON object: tracks of chips and links, an arrow for each transfer, memory as counters.

    A given critical path gets its own track, for a single inference. The tracks below it show the
    kernels and idle times of the chips in that inference.
    """
    names = [f"chip {chip}" for chip in range(target.num_chips)]
    chips = _Tracks.of(_CHIPS, names, timeline.kernels, _FIRST_THREAD)
    links = _Tracks.of(_LINKS, target.link_names, timeline.transfers, chips.end)
    tracks = {"chip": chips, "link": links}
    interval_s = timeline.metrics.interval_s
    return {
        "format": TRACE.json_format,
        "traceEvents": [
            *_process(_CHIPS, "chips"),
            *_process(_LINKS, "links"),
            *_process(_MEMORY, "memory"),
            *chips.named(),
            *links.named(),
            *(_slice(chips, "kernel", span) for span in timeline.kernels),
            *(_slice(chips, "stall", span) for span in timeline.waits),
            *(_slice(links, "transfer", span) for span in timeline.transfers),
            *(event for i, arrow in enumerate(timeline.arrows) for event in _arrow(tracks, i, arrow)),
            *_counters(timeline),
            *([] if path is None else _critical(path, links.end)),
            *([] if path is None else _alone(path, links.end + 1, names)),
        ],
        "displayTimeUnit": "ns",
        "otherData": {
            "model": graph.name,
            "target": target.name,
            "fidelity": timeline.fidelity,
            "interval_s": interval_s if math.isfinite(interval_s) else None,
        },
    }


@dataclass(frozen=True)
class _Tracks:
    """The threads of a process: one for each chip or link.

    Slices of a track must not overlap. If spans of a resource overlap, as inferences of
    the analytical model may, the resource has several tracks and each span takes a free one.
    """

    process: int
    begin: int  # thread of the first track; thread numbers are unique over all processes
    names: Sequence[str]
    lanes: int  # tracks per resource
    lane_of: dict[int, int]  # by ``id`` of the span; 0 if missing

    @staticmethod
    def of(process: int, names: Sequence[str], spans: Sequence[Span], begin: int) -> _Tracks:
        free_ns: list[list[tuple[int, int]]] = [[] for _ in names]
        lane_of = {}
        for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
            ends = free_ns[span.resource]
            is_free = ends and ends[0][0] <= _ns(span.start_s)
            lane = heapq.heappop(ends)[1] if is_free else len(ends)
            heapq.heappush(ends, (_ns(span.end_s), lane))
            lane_of[id(span)] = lane
        return _Tracks(process, begin, names, max([1, *map(len, free_ns)]), lane_of)

    @property
    def end(self) -> int:
        return self.begin + len(self.names) * self.lanes

    def place(self, span: Span) -> _Event:
        thread = self.begin + span.resource * self.lanes + self.lane_of.get(id(span), 0)
        return {"pid": self.process, "tid": thread}

    def named(self) -> Iterator[_Event]:
        for i in range(len(self.names) * self.lanes):
            thread = {"ph": "M", "pid": self.process, "tid": self.begin + i}
            name = self.names[i // self.lanes]
            yield thread | {"name": "thread_name", "args": {"name": name}}
            yield thread | {"name": "thread_sort_index", "args": {"sort_index": i}}


def _process(process: int, name: str) -> Iterator[_Event]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}


def _slice(tracks: _Tracks, category: str, span: Span) -> _Event:
    start_ns, end_ns = _ns(span.start_s), _ns(span.end_s)
    return {
        "ph": "X",
        **tracks.place(span),
        "name": span.name,
        "cat": category,
        "ts": _us(start_ns),
        "dur": _us(end_ns - start_ns),
        "args": {"inference": span.inference, **span.details},
    }


def _arrow(tracks: dict[str, _Tracks], number: int, arrow: Arrow) -> Iterator[_Event]:
    """Both ends of an arrow, each in the middle of its slice, or shifted so that time does not go back."""
    source, destination = arrow.source, arrow.destination
    end_ns = max(_middle_ns(destination), _ns(source.start_s))
    begin_ns = min(_middle_ns(source), end_ns)
    event = {"name": arrow.name, "cat": "tensor", "id": number}
    from_track, to_track = tracks[arrow.source_kind], tracks[arrow.destination_kind]
    yield event | {"ph": "s", **from_track.place(source), "ts": _us(begin_ns)}
    yield event | {"ph": "f", "bp": "e", **to_track.place(destination), "ts": _us(end_ns)}


def _counters(timeline: Timeline) -> Iterator[_Event]:
    digits = len(str(len(timeline.memory) - 1))  # viewers sort counters by name
    for chip, (times_s, used_bytes) in enumerate(timeline.memory):
        before = 0
        for time_s, used in zip(times_s.tolist(), used_bytes.tolist(), strict=True):
            if used != before:
                name, args = f"chip {chip:0{digits}}", {"bytes": used}
                yield {"ph": "C", "pid": _MEMORY, "name": name, "ts": _us(_ns(time_s)), "args": args}
            before = used


def _critical(path: CriticalPath, thread: int) -> Iterator[_Event]:
    track = {"pid": _CRITICAL, "tid": thread}
    yield from _process(_CRITICAL, "critical path")
    yield {"ph": "M", **track, "name": "thread_name", "args": {"name": "one inference alone"}}
    for piece in path.pieces:
        name = piece.name if piece.kind == "kernel" else f"{piece.kind}: {piece.name}"
        args = {"kind": piece.kind, "on": piece.resource}
        yield track | _stretch(name, "critical", piece.start_s, piece.end_s) | {"args": args}


def _alone(path: CriticalPath, first_thread: int, names: Sequence[str]) -> Iterator[_Event]:
    """A track for each chip: kernels and idle time of one inference alone."""
    tracks = [{"pid": _CRITICAL, "tid": first_thread + chip} for chip in range(len(names))]
    for track, name in zip(tracks, names, strict=True):
        yield {"ph": "M", **track, "name": "thread_name", "args": {"name": f"{name} alone"}}
    for kernel in path.kernels:
        end_s = kernel.start_s + kernel.seconds
        yield tracks[kernel.chip] | _stretch(kernel.ops[0], "kernel", kernel.start_s, end_s)
    for idle in path.idle:
        name = f"{idle.cause}: {idle.name}" if idle.name else idle.cause
        yield tracks[idle.chip] | _stretch(name, "idle", idle.start_s, idle.end_s)


def _stretch(name: str, category: str, start_s: float, end_s: float) -> _Event:
    start_ns = _ns(start_s)
    return {"ph": "X", "name": name, "cat": category, "ts": _us(start_ns), "dur": _us(_ns(end_s) - start_ns)}


def _middle_ns(span: Span) -> int:
    return (_ns(span.start_s) + _ns(span.end_s)) // 2


def _ns(seconds: float) -> int:
    """Whole nanoseconds, so that adjacent spans stay adjacent after rounding."""
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float:
    """Microseconds, rounded up: viewers truncate to whole nanoseconds."""
    microseconds = nanoseconds / 1e3
    return microseconds if microseconds * 1e3 >= nanoseconds else math.nextafter(microseconds, math.inf)
