"""Fits rates and op seconds to measured segments by non-negative least squares of relative errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from go_opt.common.arrays import FloatArray
from go_opt.run.profiling.segments import Segment

# Error of a measurement relative to the deviation of an op from its rates.
_TRUSTS: Final = (0.03, 0.1, 0.3, 1.0, 3.0)
_FOLDS: Final = 4  # of the cross-validation over segments that chooses the trust
_LEAST_OP_S: Final = 1e-7  # below this, an op's relative deviation is meaningless


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of each quantity."""

    per_quantity_s: FloatArray  # of QUANTITIES
    per_cut_byte_s: float  # per byte that enters or leaves a segment, for copies and layout changes
    per_segment_s: float

    def op_s(self, quantities: FloatArray) -> FloatArray:
        """[N] seconds of each op."""
        seconds: FloatArray = quantities @ self.per_quantity_s
        return seconds

    def segment_s(self, segment: Segment, op_s: FloatArray) -> float:
        """Predicted seconds of a segment."""
        return float(op_s[segment.ops].sum() + segment.bytes * self.per_cut_byte_s + self.per_segment_s)


def fit_rates(segments: Sequence[Segment], quantities: FloatArray) -> Rates:
    """The rates that fit the seconds of the segments best."""
    rows = np.array([[*quantities[one.ops].sum(axis=0), one.bytes, 1.0] for one in segments])
    solution = _solve(rows / _seconds(segments)[:, None], np.ones(len(segments)))
    return Rates(solution[:-2], float(solution[-2]), float(solution[-1]))


def fit_ops(segments: Sequence[Segment], quantities: FloatArray, rates: Rates) -> tuple[FloatArray, Rates]:
    """[N] seconds of each op, regularised towards the rates, and the rates with refitted costs of cuts.

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
    rows = np.zeros((len(segments), num_ops + 2))
    for row, segment in zip(rows, segments, strict=True):
        row[segment.ops] = expected[segment.ops]
        row[-2:] = segment.bytes, 1.0
    rows /= _seconds(segments)[:, None]
    near = trust * np.eye(num_ops, num_ops + 2)
    right = np.concatenate([np.ones(len(segments)), np.full(num_ops, trust)])
    solution = _solve(np.concatenate([rows, near]), right)
    refined = Rates(rates.per_quantity_s, float(solution[-2]), float(solution[-1]))
    return solution[:-2] * expected, refined


def relative_error(segments: Sequence[Segment], rates: Rates, op_s: FloatArray) -> float:
    """Mean absolute error of the predictions, relative to the measurements."""
    predicted = np.array([rates.segment_s(segment, op_s) for segment in segments])
    return float(np.abs(predicted / _seconds(segments) - 1).mean())


def _seconds(segments: Sequence[Segment]) -> FloatArray:
    return np.array([segment.seconds for segment in segments])


def _solve(rows: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with columns scaled to length 1, because quantities differ by orders of magnitude."""
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    solution: FloatArray = nnls(rows / scale, right)[0] / scale
    return solution
