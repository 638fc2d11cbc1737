"""The log-probability of drawn placements under any logits, and its gradient.

``decoded`` stays fixed, the logits change.
:class:`go_opt.agents.decoding.decode.Decoded` defines the density for each mode:

* ``slice_sampled``: the cuts given the order. With ``w`` the log-weights of
  :func:`go_opt.agents.decoding.decode.sliceable_logits` by kernel and ``Z`` the sum over all slicings,
  ``log p = Σ_m w[m, chip of m] - log Z``; the gradient of ``log Z`` is the marginals.
* ``sample``, ``fix`` and their adjacent forms: the chips drawn, kernel by kernel, among the open
  ones (:mod:`go_opt.solver.propagation.choices`).
* ``slice_cheapest``, ``slice_likeliest``: nothing is drawn, so the result is 0 without a gradient.

Samples with log-probability -inf have no gradient, nor have samples of an order for which no
slicing has mass.

Axes: ``S`` samples, ``K`` samples of one row of keys, ``N`` ops, ``M`` kernels, ``D`` chips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from go_opt.agents.decoding.decode import MODES, Decoded, Mode, sliceable_logits
from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.env.kernels.numbering import number_kernels
from go_opt.errors import InvalidInputError
from go_opt.solver.orders.instance import Instance
from go_opt.solver.orders.orders import largest_by_kernel
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.propagation.choices import Choices, choice_gradient, choice_log_prob
from go_opt.solver.slicing.likelihood import (
    CutFilter,
    cut_marginals,
    log_prob,
    sequence_filter,
    sum_by_kernel,
)

_DRAWS_NOTHING: Final[tuple[Mode, ...]] = ("slice_cheapest", "slice_likeliest")


@dataclass(frozen=True, eq=False)
class PlacementDensity:
    """The density of samples at given logits, and its derivatives there."""

    log_prob: FloatArray  # [S] of the placement given order and kernels
    _logits: _Logits
    _rows: tuple[_Row, ...]  # empty if nothing was drawn

    def gradient(self, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Derivatives of ``Σ_s weight[s] log_prob[s]``, ``weight`` being [S] and finite.

        Returns:
          [N, D] by the placement logits, and [N] by the cut scores. A kernel's derivative goes to
          its first op with the largest cut score.
        """
        if np.shape(weight) != self.log_prob.shape:
            raise InvalidInputError(
                f"weight has shape {np.shape(weight)}, must be {self.log_prob.shape}.", field="weight"
            )
        by_logit = np.zeros_like(self._logits.placement)
        by_score = np.zeros_like(self._logits.cut_score)
        counted = np.where(np.isneginf(self.log_prob), 0.0, weight)
        for row in self._rows:
            if not counted[row.samples].any():
                continue
            by_kernel = row.gradient(counted[row.samples])
            by_logit += by_kernel[row.kernel_of]
            if isinstance(row, _SlicedRow):
                _add_by_cut_score(by_kernel, row.kernel_of, self._logits.cut_score, by_score)
        return by_logit, by_score


def placement_density(
    instance: Instance,
    placement_logits: FloatArray,
    cut_score: FloatArray,
    decoded: Decoded,
    mode: Mode,
    draws: int = 1,
) -> PlacementDensity:
    """The density of ``decoded`` under ``placement_logits`` [N, D] and ``cut_score`` [N].

    Args:
      decoded: the result of :func:`go_opt.agents.decoding.decode.decode` for ``mode`` and ``draws`` under
        any logits. Equal logits give equal log-probabilities.

    Raises:
      InvalidInputError: the samples are not rows of ``draws``, or logits or scores have the wrong
        shape or contain NaN or infinity.
    """
    num_samples = len(decoded.placement)
    if mode not in MODES:
        raise InvalidInputError(f"mode is {mode!r}, must be one of {', '.join(MODES)}.", field="mode")
    if draws < 1 or num_samples % draws:
        raise InvalidInputError(f"draws is {draws}, must divide {num_samples} samples.", field="draws")
    logits = _checked_logits(instance, placement_logits, cut_score)
    if mode in _DRAWS_NOTHING:
        return PlacementDensity(np.zeros(num_samples), logits, ())
    make = _sliced_row if mode == "slice_sampled" else _chosen_row
    rows = tuple(
        make(instance, logits, decoded, slice(first, first + draws)) for first in range(0, num_samples, draws)
    )
    return PlacementDensity(np.concatenate([row.log_prob for row in rows]), logits, rows)


@dataclass(frozen=True, eq=False)
class _Logits:
    placement: FloatArray  # [N, D]
    cut_score: FloatArray  # [N]


def _checked_logits(instance: Instance, placement_logits: FloatArray, cut_score: FloatArray) -> _Logits:
    logits = _Logits(np.asarray(placement_logits, dtype=np.float64), np.asarray(cut_score, dtype=np.float64))
    shape = (instance.graph.num_ops, instance.target.num_chips)
    for name, values, wanted in (
        ("placement_logits", logits.placement, shape),
        ("cut_score", logits.cut_score, shape[:1]),
    ):
        if values.shape != wanted:
            raise InvalidInputError(f"{name} has shape {values.shape}, must be {wanted}.", field=name)
        if not values.max(initial=-np.inf) < np.inf:  # NaN is not either
            raise InvalidInputError(f"{name} holds NaN or infinity.", field=name)
    return logits


@dataclass(frozen=True, eq=False)
class _SlicedRow:
    """Slicings of one order."""

    samples: slice  # K of the S samples
    kernel_of: IntArray  # [N] along the order
    log_prob: FloatArray  # [K]
    chip: IntArray  # [K, M]
    cut_filter: CutFilter
    has_mass: bool
    num_chips: int

    def gradient(self, weight: FloatArray) -> FloatArray:
        """[M, D] derivative of ``Σ_k weight[k] log_prob[k]`` by the log-weights of the kernels."""
        num_kernels = self.chip.shape[1]
        gradient = np.zeros((num_kernels, self.num_chips))
        if not self.has_mass:
            return gradient
        np.add.at(gradient, (np.arange(num_kernels), self.chip), weight[:, None])
        total = weight.sum()
        if total != 0.0:
            marginals = cut_marginals(self.cut_filter)
            gradient[:, : marginals.shape[1]] -= total * marginals
        return gradient


@dataclass(frozen=True, eq=False)
class _ChosenRow:
    """Chips chosen kernel by kernel."""

    samples: slice  # K of the S samples
    kernel_of: IntArray  # [N] along the order
    log_prob: FloatArray  # [K]
    choices: Choices
    log_mass: FloatArray  # [K, M]

    def gradient(self, weight: FloatArray) -> FloatArray:
        """[M, D] derivative of ``Σ_k weight[k] log_prob[k]`` by the sums of logits of the kernels."""
        return choice_gradient(self.choices, self.log_mass, weight)


_Row = _SlicedRow | _ChosenRow


def _sliced_row(instance: Instance, logits: _Logits, decoded: Decoded, samples: slice) -> _SlicedRow:
    tables = instance.tables
    order, group = decoded.order[samples.start], decoded.fusion_group[samples.start]
    sequence = kernel_sequence(tables, order, group, adjacent=instance.is_adjacent)
    cut_filter, _, has_mass = sequence_filter(
        sequence,
        sliceable_logits(logits.placement, logits.cut_score, sequence.kernel_of),
        tables.chip_kind,
        min_chips=instance.min_chips,
    )
    chip = decoded.drawn[samples].take(_first_op(sequence.kernel_of), axis=1)
    num_levels = len(cut_filter.end)
    # First kernel of chips 0, 1, …, or the end: chip numbers never decrease along the order.
    cuts = np.stack([np.searchsorted(of_kernel, np.arange(num_levels + 1)) for of_kernel in chip])
    return _SlicedRow(
        samples=samples,
        kernel_of=sequence.kernel_of,
        log_prob=log_prob(cut_filter, cuts.astype(np.int64)),
        chip=chip,
        cut_filter=cut_filter,
        has_mass=has_mass,
        num_chips=instance.target.num_chips,
    )


def _chosen_row(instance: Instance, logits: _Logits, decoded: Decoded, samples: slice) -> _ChosenRow:
    kernel_of = number_kernels(decoded.order[samples.start], decoded.fusion_group[samples.start])
    first_op = _first_op(kernel_of)
    choices = Choices(
        sum_by_kernel(kernel_of, logits.placement),
        decoded.drawn[samples].take(first_op, axis=1),
        decoded.open_chips[samples].take(first_op, axis=1),
    )
    log_prob, log_mass = choice_log_prob(choices)
    return _ChosenRow(samples, kernel_of, log_prob, choices, log_mass)


def _first_op(kernel_of: IntArray) -> LongArray:
    """[M] an op of each kernel."""
    return np.unique(kernel_of, return_index=True)[1]


def _add_by_cut_score(
    by_kernel: FloatArray,
    kernel_of: IntArray,
    cut_score: FloatArray,
    by_score: FloatArray,
) -> None:
    """Add the derivatives by cut scores to ``by_score`` [N]: the chain rule of ``sliceable_logits``."""
    by_step = by_kernel @ np.arange(by_kernel.shape[1])
    is_largest = cut_score == largest_by_kernel(kernel_of, cut_score)[kernel_of]
    candidates = np.flatnonzero(is_largest)
    largest = candidates[_first_op(kernel_of[candidates])]
    by_score[largest] += np.diff(by_step, prepend=0.0)
