"""Reads the profile that ``InferenceSession.end_profiling`` of ONNX Runtime writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from go_opt.common.files import read_json
from go_opt.errors import InvalidInputError

_KERNEL: Final = "_kernel_time"


@dataclass(frozen=True)
class ProfileRow:
    """A node of the model as the runtime ran it."""

    name: str
    op_type: str
    seconds: float  # of one inference
    elements: int | None  # of its first output


class _Event(NamedTuple):
    start: float  # microseconds, as all times of the file
    end: float
    thread: object
    name: str
    args: Mapping[str, Any]


def is_profile(path: Path) -> bool:
    """Whether a file begins like JSON; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"[", b"{")
    except (OSError, ValueError):
        return False


def read_profile(path: Path) -> tuple[ProfileRow, ...]:
    """The nodes in the order of their first execution.

    Seconds are the mean of the middle half of all executions, without the first run if there are more.
    A node with a body, such as Loop, includes the nodes of the body.

    Raises:
      InvalidInputError: the file is not such a profile.
    """
    data = read_json(path, "costs")
    if not isinstance(data, list) or not all(isinstance(event, dict) for event in data):
        raise _wrong(path, "is JSON, but no profile of ONNX Runtime: it must be a list of events")
    runs = sorted(_times(path, event)[0] for event in data if event.get("name") == "model_run")
    events = sorted(_events(path, data), key=lambda event: (event.start, -event.end))
    if not events:
        raise _wrong(path, f"is no profile of ONNX Runtime: no event has a name that ends with {_KERNEL}")
    executions: dict[str, list[_Event]] = {}
    for event in _outermost(events):
        executions.setdefault(event.name, []).append(event)
    second_run = runs[1] if len(runs) > 1 else -math.inf
    num_runs = max(len(runs) - 1, 1)
    rows = []
    for name, all_of in executions.items():
        of_node = [event for event in all_of if event.start >= second_run] or all_of
        micros = _middle_mean([event.end - event.start for event in of_node])
        args = of_node[0].args
        times = len(of_node) / (num_runs if runs else len(of_node))
        rows.append(ProfileRow(name, str(args.get("op_name", "")), micros * times * 1e-6, _elements(args)))
    return tuple(rows)


def _events(path: Path, data: list[dict[str, Any]]) -> Iterator[_Event]:
    for event in data:
        name = event.get("name")
        if event.get("cat") == "Node" and isinstance(name, str) and name.endswith(_KERNEL):
            args = event.get("args")
            start, duration = _times(path, event)
            known = args if isinstance(args, dict) else {}
            yield _Event(start, start + duration, event.get("tid"), name.removesuffix(_KERNEL), known)


def _times(path: Path, event: Mapping[str, Any]) -> tuple[float, float]:
    times = []
    for key in ("ts", "dur"):
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise _wrong(path, f"is no profile: {key} of event {str(event.get('name'))[:80]!r} is no time")
        times.append(float(value))
    return times[0], times[1]


def _outermost(events: list[_Event]) -> Iterator[_Event]:
    """The events that did not run inside another one on the same thread."""
    until: dict[object, float] = {}
    for event in events:
        if event.end > until.get(event.thread, -1.0) or event.start >= until[event.thread]:
            until[event.thread] = event.end
            yield event


def _middle_mean(values: list[float]) -> float:
    middle = sorted(values)[len(values) // 4 : len(values) - len(values) // 4]
    return sum(middle) / len(middle)


def _elements(args: Mapping[str, Any]) -> int | None:
    shapes = args.get("output_type_shape")
    first = shapes[0] if isinstance(shapes, list) and shapes else None
    sizes = next(iter(first.values()), None) if isinstance(first, dict) else None
    is_shape = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
    return math.prod(sizes) if is_shape else None  # type: ignore[arg-type]


def _wrong(path: Path, problem: str) -> InvalidInputError:
    return InvalidInputError(f"costs {str(path)!r} {problem}.", field="costs")
