"""The graph of a page: its drawing, and the properties of each op and kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from go_opt.env.cost.op_quantities import bytes_out, weight_bytes
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import OP_CLASSES, WEIGHT
from go_opt.report.page.drawing import Boxes, draw
from go_opt.report.page.subject import Subject, short

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
