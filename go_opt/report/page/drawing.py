"""Layout of a graph's boxes: stages follow each other in rows, like the words of a text.

Within a stage, a box is in a column after all its producers (layers by longest path);
within a column, its lane is close to theirs. Units are columns and lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import csr
from go_opt.env.cost.tables import bytes_out, weight_bytes
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import OP_CLASSES, WEIGHT
from go_opt.model.plan import number_by_first_place
from go_opt.report.page.facts import Subject, short

MOST_LANES: Final = 10  # per column; further boxes take another column
COLUMN_PER_LANE: Final = 2.5  # width of a column, in heights of a lane
ASPECT: Final = 1.6  # width to height of the drawing
_LEAST_COLUMNS: Final = 6  # of a stage that starts after another one in a row
_Columns = list[list[int]]
MOST_BOXES: Final = 6_000  # that a browser draws at once without delay
Level = Literal["op", "kernel", "kernels"]


class Band(NamedTuple):
    """A part of a stage in one row."""

    stage: int
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, eq=False)
class Drawing:
    """Axis: ``B`` boxes."""

    x: NDArray[np.int32]  # [B] column
    y: NDArray[np.int32]  # [B] lane, from the top
    bands: tuple[Band, ...]
    width: int
    height: int


def draw(boxes: Boxes) -> Drawing:
    """The drawing whose aspect ratio is closest to ``ASPECT``."""
    lane = np.zeros(len(boxes.stage), dtype=np.int32)
    columns = [*_columns_by_stage(boxes, lane)]
    total = sum(map(len, columns)) + len(columns)
    widths = sorted({max(_LEAST_COLUMNS, round(total / rows)) for rows in range(1, 200)})
    lanes = [[1 + max(int(lane[box]) for box in column) for column in of_stage] for of_stage in columns]
    bands = min((_bands(lanes, width) for width in widths), key=_distance)
    return _drawing(columns, lane, bands)


def _columns_by_stage(boxes: Boxes, lane: NDArray[np.int32]) -> Iterator[_Columns]:
    """The columns of each stage, in the order of stages; fills in ``lane``."""
    inside = boxes.stage[boxes.edges[:, 0]] == boxes.stage[boxes.edges[:, 1]]
    edges = boxes.edges[inside]
    pointers, by_reader = csr(edges[:, 1], len(boxes.stage))
    ptr, source = pointers.tolist(), edges[by_reader, 0].tolist()
    layer = _layers(boxes, ptr, source)
    for stage in range(int(boxes.stage.max()) + 1):
        layers: dict[int, list[int]] = {}
        for box in np.flatnonzero(boxes.stage == stage).tolist():
            layers.setdefault(layer[box], []).append(box)
        columns: _Columns = []
        for _, of_layer in sorted(layers.items()):
            columns += _lanes(of_layer, lane, ptr, source)
        yield columns


def _layers(boxes: Boxes, ptr: list[int], source: list[int]) -> list[int]:
    """[B] longest path inside the stage; a box without a producer there is just before its first reader."""
    layer = [0] * len(boxes.stage)
    first_reader: dict[int, int] = {}
    for box in range(len(layer)):  # numbered in execution order
        before = source[ptr[box] : ptr[box + 1]]
        layer[box] = max((layer[other] + 1 for other in before), default=0)
        for other in before:
            first_reader[other] = min(first_reader.get(other, layer[box]), layer[box])
    for box, reader in first_reader.items():
        if ptr[box] == ptr[box + 1]:
            layer[box] = reader - 1
    return layer


def _lanes(of_layer: list[int], lane: NDArray[np.int32], ptr: list[int], source: list[int]) -> _Columns:
    """The boxes of a layer in columns, each close to the lanes of its producers."""

    def wanted(box: int) -> float:
        before = source[ptr[box] : ptr[box + 1]]
        return float(np.mean(lane[before])) if before else 0.0

    by_lane = sorted((wanted(box), box) for box in of_layer)
    columns = []
    for begin in range(0, len(by_lane), MOST_LANES):
        column = by_lane[begin : begin + MOST_LANES]
        free = 0
        for place, (want, box) in enumerate(column):
            highest = MOST_LANES - (len(column) - place)  # leaves room for the rest of the column
            lane[box] = min(max(free, round(want)), highest)
            free = int(lane[box]) + 1
        members = [box for _, box in column]
        # If boxes were pushed down on average, the whole column moves up.
        too_low = round(float(np.mean(lane[members] - [want for want, _ in column])))
        lane[members] -= min(max(too_low, 0), int(lane[members[0]]))
        columns.append(members)
    return columns


def _bands(lanes: list[list[int]], width: int) -> list[Band]:
    """The stages in rows of ``width`` columns, with a lane above for the name and a column in between.

    Args:
      lanes: number of lanes of each column of each stage.
    """
    bands: list[Band] = []
    x = y = height = 0
    for stage, of_stage in enumerate(lanes):
        begin = 0
        while begin < len(of_stage):
            left = len(of_stage) - begin
            if x > 0 and width - x < min(left, _LEAST_COLUMNS):
                x, y, height = 0, y + height + 1, 0
            taken = min(left, max(width - x, 1))
            most = max(of_stage[begin : begin + taken])
            bands.append(Band(stage, x, y + 1, taken, most))
            x, begin, height = x + taken + 1, begin + taken, max(height, most)
    return bands


def _size(bands: list[Band]) -> tuple[int, int]:
    return max(band.x + band.width for band in bands), max(band.y + band.height for band in bands)


def _distance(bands: list[Band]) -> float:
    width, height = _size(bands)
    return abs(float(np.log(width * COLUMN_PER_LANE / height / ASPECT)))


def _drawing(columns: list[_Columns], lane: NDArray[np.int32], bands: list[Band]) -> Drawing:
    x, y = np.zeros((2, len(lane)), dtype=np.int32)
    drawn = [0] * len(columns)  # number of columns drawn of each stage
    for band in bands:
        of_band = columns[band.stage][drawn[band.stage] : drawn[band.stage] + band.width]
        drawn[band.stage] += band.width
        for i, column in enumerate(of_band):
            x[column] = band.x + i
            y[column] = band.y + lane[column]
    return Drawing(x, y, tuple(bands), *_size(bands))


@dataclass(frozen=True, eq=False)
class Boxes:
    """Axes: ``B`` boxes, numbered in execution order; ``N`` ops; ``C`` edges between boxes."""

    level: Level
    box_of_op: NDArray[np.int32]  # [N]
    stage: NDArray[np.int32]  # [B] index into ``Subject.stages``
    edges: NDArray[np.int32]  # [C, 2] each pair once
    kernels_per_box: int  # at most; 1 if boxes are ops or kernels


def boxes_of(subject: Subject, most: int = MOST_BOXES) -> Boxes:
    """One box per op; above ``most`` boxes, one per kernel or per run of successive kernels."""
    loads = subject.loads
    if loads.graph.num_ops <= most:
        box_of_op = np.empty(loads.graph.num_ops, dtype=np.int32)
        box_of_op[loads.plan.order] = np.arange(loads.graph.num_ops)
        return _boxes(subject, "op", box_of_op, 1)
    kernels = len(loads.kernel_chip)
    if kernels <= most:
        return _boxes(subject, "kernel", loads.kernel_of, 1)
    # The last box of each stage may have fewer kernels.
    in_a_row = -(-kernels // max(most - len(subject.stages), 1))
    return _boxes(subject, "kernels", _runs(subject.kernel_stage, in_a_row)[loads.kernel_of], in_a_row)


def _runs(kernel_stage: NDArray[np.int32], in_a_row: int) -> NDArray[np.int32]:
    """[M] box of each kernel, numbered by first kernel: ``in_a_row`` kernels of a stage share one."""
    place = np.empty(len(kernel_stage), dtype=np.int64)
    for stage in np.unique(kernel_stage):
        of_stage = np.flatnonzero(kernel_stage == stage)
        place[of_stage] = np.arange(len(of_stage)) // in_a_row
    run = place * (int(kernel_stage.max()) + 1) + kernel_stage
    return number_by_first_place(run)


def _boxes(subject: Subject, level: Level, box_of_op: NDArray[np.int32], kernels_per_box: int) -> Boxes:
    loads = subject.loads
    stage = np.empty(int(box_of_op.max()) + 1, dtype=np.int32)
    stage[box_of_op] = subject.kernel_stage[loads.kernel_of]
    ends = np.stack([box_of_op[loads.graph.edge_src], box_of_op[loads.graph.edge_dst]], axis=1)
    between = ends[ends[:, 0] != ends[:, 1]]
    edges = np.unique(between, axis=0) if len(between) else between.reshape(0, 2)
    return Boxes(level, box_of_op, stage, edges, kernels_per_box)


_COPIED = "relays of the plan"


def drawing_rows(boxes: Boxes) -> dict[str, Any]:
    """Positions of boxes in columns and lanes, and the background bands of stages."""
    drawing = draw(boxes)
    return {
        "level": boxes.level,
        "kernels_per_box": boxes.kernels_per_box,
        "x": drawing.x.tolist(),
        "y": drawing.y.tolist(),
        "bands": [list(band) for band in drawing.bands],
        "width": drawing.width,
        "height": drawing.height,
    }


def op_rows(subject: Subject, boxes: Boxes) -> dict[str, Any]:
    """Lists over ops [N], and the edges between ops."""
    graph, tables = subject.loads.graph, subject.loads.tables
    types, type_number = _numbered(graph.op_types)
    is_weight = tables.tensor_kind[tables.reader_tensor] == WEIGHT
    read = np.bincount(tables.reader_op[~is_weight], tables.read_bytes[~is_weight], graph.num_ops)
    origins, origin = _origins(subject)
    return {
        "name": list(graph.op_names),
        "types": types,
        "type": type_number,
        "classes": list(OP_CLASSES),
        "class": graph.op_class.tolist(),
        "dtypes": list(DTYPES),
        "dtype": graph.op_dtype.tolist(),
        "flops": short(graph.op_flops),
        "read_bytes": read.astype(np.int64).tolist(),
        "weight_bytes": weight_bytes(tables).astype(np.int64).tolist(),
        "written_bytes": bytes_out(tables).astype(np.int64).tolist(),
        "kernel": subject.loads.kernel_of.tolist(),
        "box": boxes.box_of_op.tolist(),
        "origins": origins,
        "origin": origin,
        "edge_from": graph.edge_src.tolist(),
        "edge_to": graph.edge_dst.tolist(),
    }


def kernel_rows(subject: Subject) -> dict[str, Any]:
    """Lists over kernels [M]. Seconds are per inference; a chip of a replicated stage runs only some."""
    loads = subject.loads
    return {
        "stage": subject.kernel_stage.tolist(),
        "seconds": short(loads.kernel_s),
        "limits": list(loads.parts_s),
        "limit": np.argmax([*loads.parts_s.values()], axis=0).tolist(),
        **{f"{limit.lower()}_s": short(parts_s) for limit, parts_s in loads.parts_s.items()},
        "moved_bytes": loads.moved_bytes.tolist(),
        **_slack(subject),
    }


def _slack(subject: Subject) -> dict[str, Any]:
    """Start and slack of kernels in a single inference; empty unless the objective is latency."""
    path = subject.explanation.path
    if path is None:
        return {}
    start_s, slack_s = np.zeros((2, len(subject.loads.kernel_chip)))
    for kernel in path.kernels:
        number = subject.loads.kernel_of[subject.places[kernel.ops[0]]]
        start_s[number], slack_s[number] = kernel.start_s, kernel.slack_s
    return {"start_s": short(start_s), "slack_s": short(slack_s)}


def _numbered(names: tuple[str, ...]) -> tuple[list[str], list[int]]:
    kinds = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return list(kinds), [kinds[name] for name in names]


def _origins(subject: Subject) -> tuple[list[str], list[int]]:
    """The origins, and the index of each op's origin; relays share one of their own."""
    plan, places = subject.plan, subject.places
    names = [*plan.provenance, _COPIED]
    origin: NDArray[np.int32] = np.full(len(places), len(plan.provenance), dtype=np.int32)
    origin[[places[name] for name in subject.graph.op_names]] = plan.op_provenance
    return names, origin.tolist()
