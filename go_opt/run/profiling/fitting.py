"""Fits rates and op seconds to measured segments by non-negative least squares, as a target.

Errors are relative to the longest segment of the cut, because the busiest stage of a plan is its interval.
Otherwise the fit spreads the start of short segments, which no rate describes, over the ops of long ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from go_opt.common.arrays import BoolArray, FloatArray
from go_opt.env.cost.tables import CostTables, bytes_out, cost_tables
from go_opt.env.target import Target
from go_opt.model.graph import MATRIX, VECTOR, Graph
from go_opt.run.profiling.profiling import Segment

QUANTITIES: Final = ("matrix FLOP", "vector FLOP", "byte moved", "op", "transcendental element")
_TRANSCENDENTAL: Final = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BiasGelu Celu Cos Cosh Elu Erf Exp FastGelu Gelu LRN Log LogSoftmax "  # noqa: SIM905
    "Mish Pow Selu Sigmoid Sin Sinh Softmax Softplus Swish Tan Tanh".split()
)


def op_quantities(graph: Graph, target: Target) -> FloatArray:
    """[N, len(QUANTITIES)] of each op."""
    tables: CostTables = cost_tables(graph, target)
    is_transcendental = np.isin(graph.op_types, list(_TRANSCENDENTAL))
    return np.stack(
        [
            graph.op_flops * (graph.op_class == MATRIX),
            graph.op_flops * (graph.op_class == VECTOR),
            tables.op_bytes().astype(np.float64),
            np.ones(graph.num_ops),
            bytes_out(tables) / 4.0 * is_transcendental,  # float32
        ],
        axis=1,
    )


# Error of a measurement relative to the deviation of an op from its rates.
_TRUSTS: Final = (0.03, 0.1, 0.3, 1.0, 3.0)
_FOLDS: Final = 4  # of the cross-validation over segments that chooses the trust
_LEAST_OP_S: Final = 1e-7  # below this, an op's relative deviation is meaningless
# Orders of magnitude of the rates of a processor and of a byte at a cut. Segments of one model hardly tell
# apart quantities that all its ops have in the same proportion; then only these ratios do.
_TYPICAL_S: Final = (1e-11, 1e-10, 2e-11, 1e-5, 1e-8, 1e-10)
_TYPICAL_TRUST: Final = 0.1  # error of a segment relative to the deviation of a rate from these ratios
_ROUNDS: Final = 20  # usually 2 to 5


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of each quantity."""

    per_quantity_s: FloatArray  # of QUANTITIES
    per_cut_byte_s: float  # per byte that enters or leaves a segment, for copies, layout changes and calls

    def op_s(self, quantities: FloatArray) -> FloatArray:
        """[N] seconds of each op as a kernel of the cost model, plus those of its transcendental elements."""
        is_moving = self.moves(quantities)
        seconds: FloatArray = _binding(quantities, is_moving) @ self.per_quantity_s
        return seconds

    def moves(self, quantities: FloatArray) -> BoolArray:
        """[N] whether an op takes longer to move its bytes than to compute."""
        terms = quantities * self.per_quantity_s
        is_moving: BoolArray = terms[:, 2] > terms[:, :2].sum(axis=1)
        return is_moving

    def segment_s(self, segment: Segment, op_s: FloatArray) -> float:
        """Predicted seconds of a segment."""
        return float(op_s[segment.ops].sum() + segment.bytes * self.per_cut_byte_s)


def fit_rates(segments: Sequence[Segment], quantities: FloatArray) -> Rates:
    """The rates that fit the seconds of the segments best, if an op takes what a kernel of a target does.

    Alternates between which ops move bytes for longer than they compute, and the rates.
    """
    seconds = _seconds(segments)
    rates = Rates(np.array(_TYPICAL_S[:-1]), _TYPICAL_S[-1])
    predicted = [rates.segment_s(one, rates.op_s(quantities)) for one in segments]
    typical = np.array(_TYPICAL_S) * np.median(seconds / predicted)
    rates = Rates(typical[:-1], float(typical[-1]))
    near = _TYPICAL_TRUST * math.sqrt(len(segments)) / typical
    scale = 1 / _longest(segments)
    right = np.concatenate([seconds * scale, near * typical])
    for _ in range(_ROUNDS):
        is_moving = rates.moves(quantities)
        terms = _binding(quantities, is_moving)
        rows = np.array([[*terms[one.ops].sum(axis=0), one.bytes] for one in segments])
        solution = _solve(np.concatenate([rows * scale[:, None], np.diag(near)]), right)
        rates = Rates(solution[:-1], float(solution[-1]))
        if (rates.moves(quantities) == is_moving).all():
            break
    return rates


def _binding(quantities: FloatArray, is_moving: BoolArray) -> FloatArray:
    """[N, len(QUANTITIES)] without the FLOPs of ops that move bytes for longer, and the bytes of others."""
    counts: FloatArray = np.where(is_moving[:, None], (0, 0, 1, 1, 1), (1, 1, 0, 1, 1)) * quantities
    return counts


def fit_ops(segments: Sequence[Segment], quantities: FloatArray, rates: Rates) -> tuple[FloatArray, Rates]:
    """[N] seconds of each op, regularised towards the rates, and the rates with a refitted cost of cuts.

    Cross-validation over segments chooses the strength of the regularisation.
    """
    folds = [(segments[i::_FOLDS], _without(segments, i)) for i in range(min(_FOLDS, len(segments) - 1))]

    def error(trust: float) -> float:
        fits = [(out, *_near_rates(rest, quantities, rates, trust)) for out, rest in folds]
        return sum(relative_error(out, refined, op_s) for out, op_s, refined in fits)

    return _near_rates(segments, quantities, rates, min(_TRUSTS, key=error))


def _without(segments: Sequence[Segment], fold: int) -> list[Segment]:
    return [segment for i, segment in enumerate(segments) if i % _FOLDS != fold]


def _near_rates(
    segments: Sequence[Segment], quantities: FloatArray, rates: Rates, trust: float
) -> tuple[FloatArray, Rates]:
    expected = np.maximum(rates.op_s(quantities), _LEAST_OP_S)
    num_ops = len(expected)
    rows = np.zeros((len(segments), num_ops + 1))
    for row, segment in zip(rows, segments, strict=True):
        row[segment.ops] = expected[segment.ops]
        row[-1] = segment.bytes
    rows /= _longest(segments)[:, None]
    near = trust * np.eye(num_ops, num_ops + 1)
    right = np.concatenate([_seconds(segments) / _longest(segments), np.full(num_ops, trust)])
    solution = _solve(np.concatenate([rows, near]), right)
    return solution[:-1] * expected, Rates(rates.per_quantity_s, float(solution[-1]))


def relative_error(segments: Sequence[Segment], rates: Rates, op_s: FloatArray) -> float:
    """Mean absolute error of the predictions, relative to the longest segment of the same cut."""
    predicted = np.array([rates.segment_s(segment, op_s) for segment in segments])
    return float((np.abs(predicted - _seconds(segments)) / _longest(segments)).mean())


def _seconds(segments: Sequence[Segment]) -> FloatArray:
    return np.array([segment.seconds for segment in segments])


def _longest(segments: Sequence[Segment]) -> FloatArray:
    return np.array([segment.longest_s for segment in segments])


def _solve(rows: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with columns scaled to length 1, because quantities differ by orders of magnitude."""
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    solution: FloatArray = nnls(rows / scale, right)[0] / scale
    return solution


KIND: Final = "process"
_LEAST_S: Final = 1e-15  # for a quantity with a fitted cost of zero
UNKNOWN: Final = Rates(np.full(5, 1e-10), 1e-10)  # before anything is measured


def machine_target(rates: Rates, chips: int, name: str) -> str:
    """The text of a target file.

    The file has no rate for transcendental elements: only the costs of ops contain these seconds.
    """
    matrix_s, vector_s, byte_s, op_s, _ = (max(float(value), _LEAST_S) for value in rates.per_quantity_s)
    cut_rate = 1 / max(rates.per_cut_byte_s, _LEAST_S)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // chips
    return f"""\
# Measured by `go-opt profile` in processor seconds of one thread: processes of ONNX Runtime as chips.
name = "{name}"
description = "{chips} processes of ONNX Runtime on one machine, one thread each"
native_dtype = "float32"
overlap = false # a process copies its tensors itself

[constraints]
acyclic = true
no_skip = "off"
triangle = "off"

[topology]
kind = "all_to_all"
rate_bytes_per_s = {cut_rate:.6g} # a tensor that leaves or enters is copied and laid out anew
latency_s = 0.0

[host]
in_bytes_per_s = {cut_rate:.6g}
out_bytes_per_s = {cut_rate:.6g}

[[kinds]]
name = "{KIND}"
count = {chips}
sram_bytes = {memory} # a share of the machine's memory
sram_bytes_per_s = {1 / byte_s:.6g}
kernel_overhead_s = {op_s:.6g}
pays_transfers = true

[kinds.matrix_flops_per_s]
default = {1 / matrix_s:.6g}

[kinds.vector_flops_per_s]
default = {1 / vector_s:.6g}
"""
