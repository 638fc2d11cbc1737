"""Decodes a policy's raw decisions into plans: kernels, then an order, then a placement.

Fusion priorities determine kernels (:mod:`go_opt.env.kernels.priority_fusion`), schedule priorities
their order (list scheduling; the ops of a kernel stay together), and one of the modes
places them on chips:

* ``slice_cheapest``: the exact slicer. It reads costs, so it must not be used if the reward
  is a black box. Falls back to greedy slicing if no slicing fits in memory.
* ``slice_likeliest``, ``slice_sampled``: cuts along the order with weight
  ``exp(Σ logits[op, chip of op] + Σ cut_score of the kernel after each cut)``.
  Falls back if no slicing has mass.
* ``sample``, ``sample_adjacent``: kernel by kernel from the logits, within the solver's domains;
  falls back to the adjacent core.
* ``fix``, ``fix_adjacent``: the chips of the largest logits, made valid.

Axes: ``R`` rows of keys, ``S`` plans, ``N`` ops, ``D`` chips, ``W`` words of a set of chips.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Literal, get_args

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray, WordArray
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver import PlacementProblem, Placements, fix, likelihood_slicing, placement_problem, sample
from go_opt.solver.orders.cheapest import cheapest_slicing
from go_opt.solver.orders.instance import Instance
from go_opt.solver.orders.orders import largest_by_kernel, schedule
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.propagation.modes import Rule

Mode = Literal[
    "slice_cheapest", "slice_likeliest", "slice_sampled", "sample", "sample_adjacent", "fix", "fix_adjacent"
]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
DRAWING: Final[tuple[Mode, ...]] = ("slice_sampled", "sample", "sample_adjacent")


@dataclass(frozen=True, eq=False)
class Decisions:
    """A policy's decisions about a graph, before they are made valid."""

    schedule_priority: FloatArray  # [R, N] a kernel has the largest of its ops; high is early
    fusion_priority: FloatArray  # [R, N] finite, 0 is neutral
    placement_logits: FloatArray  # [N, D] a kernel has the sums over its ops; -inf is no mass
    cut_score: FloatArray  # [N] of a cut before the op; a kernel has the largest of its ops


@dataclass(frozen=True, eq=False)
class Decoded:
    """Plans and their log-probabilities.

    For slices, ``log_prob`` is exactly that of the cuts given the order. For SAMPLE and FIX, it is that of
    ``drawn`` within ``open_chips``, kernel by kernel. If SAMPLE did not backtrack, ``drawn`` is the placement
    (under the adjacent rule, before weak components move down to leave no chip empty). Otherwise, and in
    FIX, it is the proposal among all chips, and the solver counts as part of the environment.
    """

    placement: IntArray  # [S, N]
    order: IntArray  # [S, N]
    fusion_group: IntArray  # [S, N]
    log_prob: FloatArray  # [S] of the placement given order and kernels; 0 for slice_cheapest
    backtracked: BoolArray  # [S] whether the solver backtracked
    fell_back: BoolArray  # [S] see the modes
    drawn: IntArray  # [S, N] chips that the log-probability refers to
    open_chips: WordArray  # [S, N, W] sets that the chips were drawn from; empty for slices


def decode(instance: Instance, decisions: Decisions, mode: Mode, *, seed: int = 0, draws: int = 1) -> Decoded:
    """``S = R * draws`` plans, grouped by row of keys; deterministic for a seed.

    Args:
      draws: placements per row of keys; must be 1 in modes that draw nothing.

    Raises:
      InfeasibleError: not all required chips can be used, or no allowed chip can run an op.
    """
    if mode not in MODES:
        raise InvalidInputError(f"mode is {mode!r}, must be one of {', '.join(MODES)}.", field="mode")
    if draws > 1 and mode not in DRAWING:
        raise InvalidInputError(f"draws is {draws}, must be 1: {mode} draws nothing.", field="draws")
    keys = zip(decisions.schedule_priority, decisions.fusion_priority, strict=True)
    parts = []
    for r, (schedule_priority, fusion_priority) in enumerate(keys):
        group, order = schedule(instance, schedule_priority, fusion_priority)
        row_seed = int(np.random.default_rng((seed, r)).integers(2**31))
        parts.append(_PLACERS[mode](_Row(instance, decisions, order, group, row_seed, draws)))
    return Decoded(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))


def sliceable_logits(logits: FloatArray, cut_score: FloatArray, kernel_of: IntArray) -> FloatArray:
    """[N, D] log-weights whose sum along a slicing includes the score of each cut.

    Let ``s[m]`` be the score of a cut before kernel m, and add ``d * (s[m] - s[m + 1])`` on chip d.
    A cut moves all kernels after it up by one chip, so its terms telescope to its score.
    """
    score = np.append(largest_by_kernel(kernel_of, cut_score), 0.0)
    _, first_op = np.unique(kernel_of, return_index=True)
    chips = np.arange(logits.shape[1])
    weights = logits.astype(np.float64)
    weights[first_op] += (score[:-1] - score[1:])[:, None] * chips
    return weights


@dataclass(frozen=True, eq=False)
class _Row:
    """The order and kernels of one row of keys, with the parameters of its placement."""

    instance: Instance
    decisions: Decisions
    order: IntArray  # [N]
    fusion_group: IntArray  # [N]
    seed: int
    draws: int


def _slice_cheapest(row: _Row) -> Decoded:
    cheapest = cheapest_slicing(row.instance, row.order, row.fusion_group)
    return _sliced(row, cheapest.placement[None], np.zeros(1), not cheapest.fits)


def _slice_by_likelihood(row: _Row, num_samples: int) -> Decoded:
    tables = row.instance.tables
    sequence = kernel_sequence(tables, row.order, row.fusion_group, adjacent=row.instance.is_adjacent)
    slicing = likelihood_slicing(
        sequence,
        sliceable_logits(row.decisions.placement_logits, row.decisions.cut_score, sequence.kernel_of),
        tables.chip_kind,
        seed=row.seed,
        num_samples=num_samples,
        min_chips=row.instance.min_chips,
    )
    return _sliced(row, slicing.placement, slicing.log_prob, not slicing.has_mass)


def _sliced(row: _Row, placement: IntArray, log_prob: FloatArray, fell_back: bool) -> Decoded:
    num_plans = len(placement)
    num_words = (row.instance.target.num_chips + 63) // 64
    return Decoded(
        placement=placement,
        order=np.tile(row.order, (num_plans, 1)),
        fusion_group=np.tile(row.fusion_group, (num_plans, 1)),
        log_prob=log_prob,
        backtracked=np.zeros(num_plans, dtype=np.bool_),
        fell_back=np.full(num_plans, fell_back),
        drawn=placement,
        open_chips=np.zeros((*placement.shape, num_words), dtype=np.uint64),
    )


def _sample(row: _Row, rule: Rule) -> Decoded:
    problem, logits = _unit_logits(row)
    return _placed(row, problem, sample(problem, logits, seed=row.seed, num_samples=row.draws, rule=rule))


def _fix(row: _Row, rule: Rule) -> Decoded:
    problem, logits = _unit_logits(row)
    proposal = np.argmax(logits, axis=1)[None].astype(np.int32)
    return _placed(row, problem, fix(problem, proposal, log_probs=logits, seed=row.seed, rule=rule))


def _unit_logits(row: _Row) -> tuple[PlacementProblem, FloatArray]:
    """The kernels as units, and the sums [U, D] of their ops' logits."""
    problem = placement_problem(row.instance.graph, row.instance.target, row.fusion_group)
    logits = np.zeros((problem.num_units, problem.num_chips))
    np.add.at(logits, problem.unit_of_op, row.decisions.placement_logits)
    return problem, logits


def _placed(row: _Row, problem: PlacementProblem, placements: Placements) -> Decoded:
    if not placements.found.all():
        raise InfeasibleError("no placement was found that uses the chips it must and may use.")
    num_plans = len(placements.placement)
    return Decoded(
        placement=placements.placement[:, problem.unit_of_op],
        order=np.tile(row.order, (num_plans, 1)),
        fusion_group=np.tile(row.fusion_group, (num_plans, 1)),
        log_prob=placements.log_prob,
        backtracked=placements.backtracked,
        fell_back=placements.fell_back,
        drawn=placements.drawn[:, problem.unit_of_op],
        open_chips=placements.open_chips[:, problem.unit_of_op],
    )


_PLACERS: Final[Mapping[Mode, Callable[[_Row], Decoded]]] = MappingProxyType(
    {
        "slice_cheapest": _slice_cheapest,
        "slice_likeliest": partial(_slice_by_likelihood, num_samples=0),
        "slice_sampled": lambda row: _slice_by_likelihood(row, num_samples=row.draws),
        "sample": partial(_sample, rule="full"),
        "sample_adjacent": partial(_sample, rule="adjacent"),
        "fix": partial(_fix, rule="full"),
        "fix_adjacent": partial(_fix, rule="adjacent"),
    }
)
_FIELDS: Final = tuple(Decoded.__dataclass_fields__)
