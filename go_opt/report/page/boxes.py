"""The boxes that stand for ops in the drawing of a graph: one an op, a kernel, or some kernels of a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from go_opt.report.page.subject import Subject

MOST_BOXES: Final = 6_000  # that a browser draws at once without delay
Level = Literal["op", "kernel", "kernels"]


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
