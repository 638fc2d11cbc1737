"""Reads the profile that ``end_profiling`` of ONNX Runtime writes, and maps its nodes to ops."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from go_opt.common.files import read_json
from go_opt.env import greedy_fusion, loop_roles
from go_opt.errors import InvalidInputError
from go_opt.model.graph import MATRIX, VECTOR, Graph

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


# What ONNX Runtime puts behind the name of a node or tensor when it makes another node of it.
_BEHIND: Final = re.compile(r"(_token_\d+|_(bn_|mul_)?nchwc|_new_reshape|/\w*Fusion/?)$")
_BEFORE: Final = "fused "
_FUSED: Final = re.compile(rf"^{_BEFORE}|/\w*Fusion/?(_token_\d+)?$")
# Where no name matches, these are the runtime's own: it lays tensors out anew, or looks at them otherwise.
_OWN: Final = frozenset(
    "Cast Flatten Identity MemcpyFromHost MemcpyToHost ReorderInput ReorderOutput Reshape Squeeze "  # noqa: SIM905
    "Transpose Unsqueeze".split()
)
_MATRIX_ROWS: Final = {"FusedConv": "Conv", "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "Gemm": "MatMul"}
_PATIENCE: Final = 512  # open ops in a row that are not ready: the search for one ends


def mapped_rows(graph: Graph, rows: Sequence[ProfileRow]) -> tuple[dict[str, float], list[ProfileRow]]:
    """Seconds by op name, and the rows that belong to no op."""
    replay = _Replay(graph, rows)
    unmapped = [row for i, row in enumerate(rows) if not replay.run(i, row)]
    replay.take_rest()
    return {graph.op_names[op]: seconds for op, seconds in sorted(replay.seconds().items())}, unmapped


class _Replay:
    """Which row computes which op, row by row."""

    def __init__(self, graph: Graph, rows: Sequence[ProfileRow]) -> None:
        self._graph = graph
        self._rows = rows
        self._part_of = {node.name: node.op for node in graph.nodes_without_op}
        self._found = [self._by_name(row) for row in rows]  # op, and whether it is a node of the model itself
        self._reserved = {op for op, is_itself in filter(None, self._found) if is_itself}
        self._row_of: dict[int, int] = {}  # op -> the row that computed it
        self._added: list[tuple[int, float]] = []  # op and seconds: of nodes that are part of an op
        self._predecessors = _neighbours(*graph.predecessors)
        self._successors = _neighbours(*graph.successors)
        self._kernel_of = greedy_fusion(loop_roles(graph), np.arange(graph.num_ops, dtype=np.int32))
        ptr, outputs = graph.op_outputs
        first = [int(outputs[ptr[op]]) if ptr[op] < ptr[op + 1] else -1 for op in range(graph.num_ops)]
        self._elements = [int(graph.tensor_elements[tensor]) if tensor >= 0 else 0 for tensor in first]

    def run(self, i: int, row: ProfileRow) -> bool:
        """Process a row; returns whether it belongs to an op."""
        found = self._found[i]
        if found is None:
            op = self._without_name(row)
            if op is None:
                return False
        else:
            op, is_itself = found
            if not is_itself or op in self._row_of:
                self._added.append((op, row.seconds))
                return True
        self._take_with_ancestors(op, i)
        if found is not None and _FUSED.search(row.name):
            self._take_next(op, i)
        return True

    def take_rest(self) -> None:
        """Assign ops on which no op with a row depends to the rows of their producers."""
        for op in range(self._graph.num_ops):
            before = [self._row_of[other] for other in self._predecessors[op] if other in self._row_of]
            if op not in self._row_of and before:
                self._row_of[op] = max(before)

    def seconds(self) -> dict[int, float]:
        """Seconds by op."""
        members: dict[int, list[int]] = {}
        for op, i in self._row_of.items():
            members.setdefault(i, []).append(op)
        result: dict[int, float] = {}
        for i, ops in members.items():
            flops = self._graph.op_flops[ops]
            weights = flops if flops.any() else np.ones(len(ops))
            shares = self._rows[i].seconds * weights / weights.sum()
            result.update(zip(ops, shares.tolist(), strict=True))
        for op, seconds in self._added:
            result[op] = result.get(op, 0.0) + seconds
        return result

    def _by_name(self, row: ProfileRow) -> tuple[int, bool] | None:
        for name in _spellings(row.name):
            if name in self._graph.op_index:
                return self._graph.op_index[name], True
            if self._part_of.get(name) is not None:
                return self._graph.op_index[str(self._part_of[name])], False
            tensor = self._graph.tensor_index.get(name, -1)
            if tensor >= 0 and self._graph.tensor_producer[tensor] >= 0:
                return int(self._graph.tensor_producer[tensor]), True
        return None

    def _is_open(self, op: int) -> bool:
        return op not in self._row_of and op not in self._reserved

    def _take_with_ancestors(self, op: int, i: int) -> None:
        self._row_of[op] = i
        todo, before = [op], set[int]()
        while todo:
            new = {other for other in self._predecessors[todo.pop()] if self._is_open(other)} - before
            before |= new
            todo += new
        for other in sorted(before):
            fused = [p for p in self._predecessors[other] if self._kernel_of[p] == self._kernel_of[other]]
            self._row_of[other] = next((self._row_of[p] for p in fused if p in self._row_of), i)

    def _take_next(self, op: int, i: int) -> None:
        """The activation, bias or factor that a row names by the op before it."""
        readers = self._successors[op]
        if len(readers) == 1 and self._is_open(readers[0]):
            is_alike = self._elements[readers[0]] == self._elements[op]
            if is_alike and self._graph.op_class[readers[0]] == VECTOR:
                self._row_of[readers[0]] = i

    def _without_name(self, row: ProfileRow) -> int | None:
        """The first op of a row's type and size, among those that can have run by now."""
        is_node = row.name == row.op_type or re.fullmatch(rf"{re.escape(row.op_type)}_\d+", row.name)
        if row.elements is None or (row.op_type in _OWN and not is_node):
            return None
        kind = _MATRIX_ROWS.get(row.op_type, row.op_type)
        for op in self._ready():
            if self._elements[op] == row.elements and self._graph.op_types[op] in (row.op_type, kind):
                return op
        return None

    def _ready(self) -> Iterator[int]:
        """Ops without a row that depend on others with rows, by way of such that are no products."""
        passed: set[int] = set()
        waiting = 0
        for op in range(self._graph.num_ops):
            if not self._is_open(op):
                continue
            if all(other in self._row_of or other in passed for other in self._predecessors[op]):
                waiting = 0
                if self._graph.op_class[op] != MATRIX:
                    passed.add(op)
                yield op
            else:
                waiting += 1
                if waiting > _PATIENCE:
                    return


def _spellings(name: str) -> Iterator[str]:
    """A name, and what is left of it without the runtime's additions, one after the other."""
    while name:
        yield name
        shorter = _BEHIND.sub("", name.removeprefix(_BEFORE))
        if shorter == name:
            return
        name = shorter


def _neighbours(ptr: np.ndarray, ops: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ops, ptr[1:-1])]
