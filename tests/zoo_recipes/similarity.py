"""How near two graphs are to being duplicates: the same ops at the same costs, up to a factor.

A graph's profile says which share of its ops falls on each op type and cost. Shares know
no depth: a block repeated 12 or 24 times has one profile. Costs of two graphs are compared
up to one factor for each op class, because a wider model does not scale evenly: twice the
width is 4 times the FLOPs of a matrix product and twice those of an addition.

Axes: ``C`` pairs of op class and type, ``B`` bins of costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray
from go_opt.model.graph import NO_PRODUCER, OP_CLASSES, Graph

_BINS_PER_OCTAVE: Final = 8
_NUM_BINS: Final = 50 * _BINS_PER_OCTAVE  # no op costs 2**48 FLOPs; an octave is left free at each end
_MAX_SHIFT: Final = 6 * _BINS_PER_OCTAVE  # costs differ by a factor of 64 at most

# Above this, two graphs count as near-duplicates: tests/env/test_zoo_similarity.py has the reason.
NEAR_DUPLICATE: Final = 0.92


@dataclass(frozen=True, eq=False)
class CostProfile:
    """The share of a graph's ops on each op type and cost; all shares sum to 1."""

    row: dict[tuple[int, str], int]  # op class and type -> row of ``share``
    share: NDArray[np.float32]  # [C, B]


def cost_profile(graph: Graph) -> CostProfile:
    """The profile of ``graph``. An op without FLOPs costs the elements it writes.

    An op's share is spread over an octave to each side, so that costs need not fall into
    the same bin to be alike.
    """
    keys = list(zip(graph.op_class.tolist(), graph.op_types, strict=True))
    row = {key: i for i, key in enumerate(sorted(set(keys)))}
    octave = np.log2(np.maximum(_op_costs(graph), 1.0))
    middle = np.rint((octave + 1) * _BINS_PER_OCTAVE).astype(np.int64)
    share = np.zeros((len(row), _NUM_BINS), dtype=np.float32)
    rows = np.array([row[key] for key in keys])
    for offset in range(1 - _BINS_PER_OCTAVE, _BINS_PER_OCTAVE):
        weight = (_BINS_PER_OCTAVE - abs(offset)) / _BINS_PER_OCTAVE**2 / graph.num_ops
        np.add.at(share, (rows, middle + offset), weight)
    return CostProfile(row, share)


def similarity(first: CostProfile, second: CostProfile) -> float:
    """The share of ops that two graphs have in common, from 0 to 1: a duplicate."""
    return sum(_class_overlap(first, second, op_class) for op_class in range(len(OP_CLASSES)))


def _class_overlap(first: CostProfile, second: CostProfile, op_class: int) -> float:
    """What the ops of one class have in common under the factor that suits them best."""
    shared = [key for key in first.row if key[0] == op_class and key in second.row]
    if not shared:
        return 0.0
    ours = np.pad(first.share[[first.row[key] for key in shared]], ((0, 0), (_MAX_SHIFT, _MAX_SHIFT)))
    theirs = second.share[[second.row[key] for key in shared]]
    shifted = np.lib.stride_tricks.sliding_window_view(ours, theirs.shape[1], axis=1)
    return float(np.minimum(shifted, theirs[:, None]).sum(axis=(0, 2)).max())


def _op_costs(graph: Graph) -> FloatArray:
    """[N] FLOPs, or the elements an op writes where it has none."""
    written = np.zeros(graph.num_ops)
    produced = graph.tensor_producer != NO_PRODUCER
    np.add.at(written, graph.tensor_producer[produced], graph.tensor_elements[produced])
    return np.where(graph.op_flops > 0, graph.op_flops, written)
