"""The graph of a page: its drawing, and of every op and kernel what a reader may ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost.op_quantities import bytes_out, weight_bytes
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import OP_CLASSES, WEIGHT
from go_opt.report.page.drawing import draw
from go_opt.report.page.subject import Subject, short

_COPIED = "relays and clones of the plan"
MOST_BOXES: Final = 6_000  # that a browser draws at once without delay
Level = Literal["op", "kernel", "kernels"]


def drawing_rows(boxes: Boxes) -> dict[str, Any]:
    """Places of boxes in columns and lanes, and the parts of stages behind them."""
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
    """[N] lists, and the edges between ops."""
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
    """[M] lists. Seconds are of one inference; of a replicated stage each chip runs only some of those."""
    loads = subject.loads
    seconds = {
        "compute": np.where(loads.is_modelled, loads.compute_s, 0.0),
        "SRAM": np.where(loads.is_modelled, loads.sram_s, 0.0),
        "overhead": loads.overhead_s,
        "measured": loads.measured_s,
    }
    limits = list(seconds)
    return {
        "stage": subject.kernel_stage.tolist(),
        "seconds": short(loads.kernel_s),
        "limits": limits,
        "limit": np.argmax([seconds[limit] for limit in limits], axis=0).tolist(),
        "compute_s": short(seconds["compute"]),
        "sram_s": short(seconds["SRAM"]),
        "overhead_s": short(seconds["overhead"]),
        "measured_s": short(seconds["measured"]),
        "moved_bytes": loads.moved_bytes.tolist(),
        **_slack(subject),
    }


def _slack(subject: Subject) -> dict[str, Any]:
    """When kernels begin in one inference alone, and how much later they may; of a makespan only."""
    path = subject.told.path
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
    """The methods that placed ops, and that of each; of relays and clones what they are."""
    plan, places = subject.plan, subject.places
    names = [*plan.provenance, _COPIED]
    origin: NDArray[np.int32] = np.full(len(places), len(plan.provenance), dtype=np.int32)
    origin[[places[name] for name in subject.graph.op_names]] = plan.op_provenance
    return names, origin.tolist()


@dataclass(frozen=True, eq=False)
class Boxes:
    """Axes: ``B`` boxes, numbered along the order; ``N`` ops; ``C`` edges between boxes."""

    level: Level
    box_of_op: NDArray[np.int32]  # [N]
    stage: NDArray[np.int32]  # [B] place in ``Subject.stages``
    edges: NDArray[np.int32]  # [C, 2] each pair once
    kernels_per_box: int  # at most; 1 where boxes are ops or kernels


def boxes_of(subject: Subject, most: int = MOST_BOXES) -> Boxes:
    """One box an op; where those are more than ``most`` one a kernel, or one for some kernels in a row."""
    loads = subject.loads
    if loads.graph.num_ops <= most:
        box_of_op = np.empty(loads.graph.num_ops, dtype=np.int32)
        box_of_op[loads.plan.order] = np.arange(loads.graph.num_ops)
        return _boxes(subject, "op", box_of_op, 1)
    kernels = len(loads.kernel_chip)
    if kernels <= most:
        return _boxes(subject, "kernel", loads.kernel_of, 1)
    # Each stage may end with a box that is not full.
    in_a_row = -(-kernels // max(most - len(subject.stages), 1))
    return _boxes(subject, "kernels", _runs(subject.kernel_stage, in_a_row)[loads.kernel_of], in_a_row)


def _runs(kernel_stage: NDArray[np.int32], in_a_row: int) -> NDArray[np.int32]:
    """[M] box of each kernel: ``in_a_row`` of a stage share one. Boxes are numbered by first kernel."""
    place = np.empty(len(kernel_stage), dtype=np.int64)
    for stage in np.unique(kernel_stage):
        of_stage = np.flatnonzero(kernel_stage == stage)
        place[of_stage] = np.arange(len(of_stage)) // in_a_row
    run = place * (int(kernel_stage.max()) + 1) + kernel_stage
    _, first, inverse = np.unique(run, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int32)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]


def _boxes(subject: Subject, level: Level, box_of_op: NDArray[np.int32], kernels_per_box: int) -> Boxes:
    loads = subject.loads
    stage = np.empty(int(box_of_op.max()) + 1, dtype=np.int32)
    stage[box_of_op] = subject.kernel_stage[loads.kernel_of]
    ends = np.stack([box_of_op[loads.graph.edge_src], box_of_op[loads.graph.edge_dst]], axis=1)
    between = ends[ends[:, 0] != ends[:, 1]]
    edges = np.unique(between, axis=0) if len(between) else between.reshape(0, 2)
    return Boxes(level, box_of_op, stage, edges, kernels_per_box)
