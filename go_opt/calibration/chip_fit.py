"""Fits the figures of a chip to the measured seconds of chips.

A product takes ``a * padded / peak + fill``, padded to whole tiles (:mod:`go_opt.env.cost.shapes`). Any
other op takes ``b * padded / peak``, padded to whole lanes. A kernel takes ``max(sum of its ops, c * bytes /
bandwidth) + overhead``. A chip takes the sum of its kernels and, without overlap, of its transfers. Sizes of
tiles and vectors are drawn at random; the best are improved one size at a time. For each choice of sizes,
a, b, fill, c and overhead minimise relative errors, drawn to the target's own figures. If enough chips were
measured, ops of a type and shape then get a factor (:class:`OpGroups`), and the sizes that
make what was measured most probable are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from scipy.optimize import nnls

from go_opt.calibration.samples import Sample
from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.env import Target
from go_opt.env.copies.relays import expanded_tables, plan_tables, relays_of
from go_opt.env.copies.stages import size_by_chip
from go_opt.env.cost.shapes import factors_of_ops, product_shapes, shaped_op_seconds
from go_opt.env.cost.tables import tables_with_effects
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.target.kinds import ChipKind, KindParameters, OpFactor, ideal_parameters
from go_opt.model.graph import MATRIX as IS_MATRIX
from go_opt.model.graph import Graph
from go_opt.model.matrix_flops import MATRIX_FLOPS


@dataclass(frozen=True, eq=False)
class Observations:
    """The kernels of measured plans on their chips.

    Axes: ``E`` ops in kernels, including relays (without work); ``M`` kernels; ``R`` working
    chips of all plans; ``P`` plans.
    """

    op: IntArray  # [E] op of the graph; N: a relay
    kernel_of: IntArray  # [E]
    moved_s: FloatArray  # [M] bytes divided by the SRAM bandwidth
    row_of: IntArray  # [M]
    turns: FloatArray  # [R] chips r of its stage, each of which runs every r-th inference
    transfers_s: FloatArray  # [R] in and out over the target's links; 0 if chips compute meanwhile
    seconds: FloatArray  # [R] of an inference; NaN if only the interval was measured
    plan_of: IntArray  # [R]
    interval_s: FloatArray  # [P]

    def measured_s(self, predicted_s: FloatArray) -> FloatArray:
        """[R] measured, or NaN: an interval alone goes to the busiest chip by ``predicted_s``."""
        seconds = self.seconds.copy()
        for plan in np.unique(self.plan_of[np.isnan(seconds)]):
            rows = np.flatnonzero(self.plan_of == plan)
            if np.isnan(seconds[rows]).all():
                seconds[rows[np.argmax(predicted_s[rows])]] = self.interval_s[plan]
        return seconds


def observe(graph: Graph, target: Target, samples: Sequence[Sample]) -> Observations:
    """The observations of measured plans that run; ``target`` has one kind of chip."""
    return _joined([_observed(graph, target, sample) for sample in samples])


def _observed(graph: Graph, target: Target, sample: Sample) -> Observations:
    plan, tables = sample.plan, tables_with_effects(graph, target, ideal_parameters(1))
    # Op numbers replace op seconds; relays have none.
    numbers = tables._replace(op_s=np.arange(-graph.num_ops, 0, dtype=np.float64)[None])
    expanded, placement, order, group = expanded_tables(
        numbers, plan.placement, plan.order, plan.fusion_group, relays_of(graph, plan)
    )
    kernel_of = number_kernels(order, group)
    moved_only = expanded._replace(
        op_s=np.zeros_like(expanded.op_s),
        measured_s=np.full_like(expanded.op_s, np.nan),
        kernel_overhead_s=np.zeros(1),
    )
    moved_s = kernel_seconds(moved_only, kernel_of)[0]
    chip_of = np.empty(len(moved_s), np.int32)
    chip_of[kernel_of] = placement
    chips, row_of = np.unique(chip_of, return_inverse=True)
    seconds = sample.seconds_of_chips(target.num_chips)
    link_s = plan_tables(graph, target, plan).evaluate().link_s[0, :-2] * (not target.overlap)
    ends = np.concatenate([target.topology.link_from, target.topology.link_to])
    return Observations(
        (expanded.op_s[0] + graph.num_ops).astype(np.int32),
        kernel_of,
        moved_s,
        row_of.astype(np.int32),
        size_by_chip(plan.placement, plan.replication, target.num_chips)[chips].astype(np.float64),
        np.bincount(ends[ends >= 0], np.tile(link_s, 2)[ends >= 0], target.num_chips).astype(np.float64)[
            chips
        ],
        seconds[chips],
        np.zeros(len(chips), np.int32),
        np.array([sample.interval_s]),
    )


def _joined(parts: Sequence[Observations]) -> Observations:
    """All of them, numbered on."""
    numbers = {
        "kernel_of": np.cumsum([0, *(len(part.moved_s) for part in parts)]),
        "row_of": np.cumsum([0, *(len(part.turns) for part in parts)]),
        "plan_of": np.arange(len(parts)),
    }
    columns: dict[str, Any] = {}
    for one in fields(Observations):
        arrays = [getattr(part, one.name) for part in parts]
        if one.name in numbers:
            arrays = [array + first for array, first in zip(arrays, numbers[one.name], strict=False)]
        columns[one.name] = np.concatenate(arrays)
    return Observations(**columns)


_TYPE_SHARE: Final = 0.5  # of the variance
_ALIKE: Final = 2.0  # standard deviations of similar shapes, in powers of two
_LEAST_LOG: Final = 0.005  # logarithm of a factor; smaller ones are left out


class OpGroups:
    """The groups of a graph's ops.

    Attributes:
      of_op: [N + 1] group of each op; the last is for relays, which have no work.
      root: [G, G] matrix whose square is the covariance of logarithms, for a variance of 1.
    """

    def __init__(self, graph: Graph) -> None:
        shapes = np.stack(product_shapes(graph), axis=1)
        is_matrix = (graph.op_class == IS_MATRIX).tolist()
        keys = list(zip(graph.op_types, is_matrix, map(tuple, shapes.astype(np.int64).tolist()), strict=True))
        self._keys = list(dict.fromkeys(keys))
        number = {key: i for i, key in enumerate(self._keys)}
        self.of_op: IntArray = np.array([*map(number.__getitem__, keys), 0], np.int32)
        types = np.array([op_type for op_type, _, _ in self._keys])
        of_class = np.array([is_matrix for _, is_matrix, _ in self._keys])
        place = np.log2(np.array([shape for _, _, shape in self._keys], np.float64))
        apart = ((place[:, None] - place[None]) ** 2).sum(axis=2)
        near = np.exp(-apart / (2 * _ALIKE**2)) * (of_class[:, None] == of_class[None])
        covariance = _TYPE_SHARE * (types[:, None] == types[None]) + (1 - _TYPE_SHARE) * near
        values, vectors = np.linalg.eigh(covariance)
        self.root: FloatArray = vectors * np.sqrt(np.fmax(values, 0.0))

    def __len__(self) -> int:
        return len(self._keys)

    def factors(self, logs: FloatArray) -> tuple[OpFactor, ...]:
        """The factors with these logarithms [G]; for other shapes of a type, the mean of its groups."""
        by_type: dict[str, list[float]] = {}
        for (op_type, _, _), log in zip(self._keys, logs.tolist(), strict=True):
            by_type.setdefault(op_type, []).append(log)
        rows = [(op_type, float(np.mean(values)), ()) for op_type, values in by_type.items()]
        rows += [
            (op_type, log, shape)
            for (op_type, is_matrix, shape), log in zip(self._keys, logs.tolist(), strict=True)
            if is_matrix and len(by_type[op_type]) > 1
        ]
        if np.abs(logs).max() <= _LEAST_LOG:
            return ()
        return tuple(
            OpFactor(op_type, float(np.exp(log)), shape)
            for op_type, log, shape in rows
            if abs(log) > _LEAST_LOG or shape
        )


MATRIX, VECTOR, FILL, BYTE, OVERHEAD = range(5)
_SIZES: Final = {
    name: tuple(2**i for i in range(most))
    for name, most in (
        ("tile_rows", 9),
        ("tile_inner", 9),
        ("tile_columns", 9),
        ("tiles_at_once", 5),
        ("vector_lanes", 11),
    )
}
_DRAWS: Final = 200
_BETTERED: Final = 3  # number of these that are improved
_KEPT: Final = 30  # number of those that are tried with factors
# Measured chips for each group, below which no factors predict better: after one sample of 20 graphs on 4
# machines without hidden efficiencies ops are 4.7 % off instead of 6.4, on 4 with them 19.8 instead of 19.5.
_CHIPS_PER_GROUP: Final = 2
_ERROR: Final = 0.05  # relative, of a chip's seconds: the part that no figures explain
_RATE_ERROR: Final = 0.5  # relative uncertainty of a target's rates
_FILL_OVERHEADS: Final = 3.0  # uncertainty of the fill, in kernel overheads
_ROUNDS: Final = 2  # each decides what bounds a kernel, solves, and updates weights
_FACTOR_SPREADS: Final = (0.0, 0.1, 0.3)  # standard deviations of logarithms of factors of ops
_ERRORS: Final = (0.002, 0.005, 0.01, 0.03)  # relative, of a chip's seconds
_CAUTION: Final = 2.0  # a few measurements that fit by chance do not make errors small
_MOST_LOG: Final = 2.0
_DISTURBED: Final = 0.05  # standard deviation, at a temperature of 1
_LEAST_FACTOR: Final = 0.01  # lower limit of a, b and c


@dataclass(frozen=True, eq=False)
class ChipFigures:
    """The parameters that determine the seconds of a chip."""

    sizes: KindParameters  # only those in _SIZES; the others are ideal
    terms: FloatArray  # [5] factors a and b, fill in seconds, factor c, overhead in seconds
    groups: OpGroups | None = None  # of the ops whose factors are known
    logs: FloatArray = field(default_factory=lambda: np.zeros(0))  # [G] of the groups' factors

    @property
    def factors(self) -> tuple[OpFactor, ...]:
        """Factors on the seconds of ops."""
        return () if self.groups is None else self.groups.factors(self.logs)

    def kind(self, sheet: ChipKind) -> ChipKind:
        """The chip kind ``sheet`` with these figures, those of tiles in place of figures of kernels."""
        a, b, _, c, _ = np.maximum(self.terms, _LEAST_FACTOR).tolist()
        sizes = {name: getattr(self.sizes, name) for name in _SIZES}
        return replace(
            sheet,
            matrix_flops_per_s={name: rate / a for name, rate in sheet.matrix_flops_per_s.items()},
            vector_flops_per_s={name: rate / b for name, rate in sheet.vector_flops_per_s.items()},
            flops_per_s_by_op_type={
                op_type: {name: rate / (a if op_type in MATRIX_FLOPS else b) for name, rate in rates.items()}
                for op_type, rates in sheet.flops_per_s_by_op_type.items()
            },
            sram_bytes_per_s=sheet.sram_bytes_per_s / c,
            kernel_overhead_s=float(self.terms[OVERHEAD]),
            kernels=None,
            simulator=replace(
                sheet.simulator, fill_s=float(self.terms[FILL]), op_factors=self.factors, **sizes
            ),
        )


class ChipFit:
    """Figures tried on the observations of a graph, and their negative log-probabilities."""

    def __init__(self, graph: Graph, target: Target, seen: Observations) -> None:
        self._graph, self._seen, self._groups = graph, seen, OpGroups(graph)
        self._peak_s = tables_with_effects(graph, target, ideal_parameters(1)).op_s
        kind = target.kinds[0]
        self._sheet = np.array([1.0, 1.0, kind.simulator.fill_s, 1.0, kind.kernel_overhead_s])
        overhead_s = max(kind.kernel_overhead_s, 1e-8)
        self._spread = np.full(5, _RATE_ERROR)
        self._spread[[FILL, OVERHEAD]] = _FILL_OVERHEADS * overhead_s, overhead_s
        sizes = KindParameters(**{name: getattr(kind.simulator, name) for name in _SIZES})
        self._plain: dict[KindParameters, tuple[float, ChipFigures]] = {}  # without factors
        self._tried = self._plain
        self._own = ChipFigures(sizes, self._sheet)

    def run(self, seed: int) -> None:
        """Try random sizes, then sizes near the best; first without factors, which is fast."""
        rng = np.random.default_rng(seed)
        self._rough(self._own.sizes)
        for _ in range(_DRAWS):
            drawn: dict[str, Any] = {name: int(rng.choice(sizes)) for name, sizes in _SIZES.items()}
            self._rough(KindParameters(**drawn))
        for _, figures in self.best()[:_BETTERED]:
            self._better(figures.sizes, self._rough)
        num_measured = np.isfinite(self._seen.measured_s(self._seen.turns)).sum()
        if num_measured < _CHIPS_PER_GROUP * len(self._groups):
            return
        kept, self._tried = self.best()[:_KEPT], {}
        for _, figures in kept:
            self._try(figures.sizes)
        for _, figures in self.best()[:_BETTERED]:
            self._better(figures.sizes, self._try)

    def best(self) -> list[tuple[float, ChipFigures]]:
        """Negative log-probabilities with their figures, likeliest first."""
        return sorted(self._tried.values(), key=lambda tried: tried[0])

    def drawn(self, rng: np.random.Generator, temperature: float) -> ChipFigures:
        """Figures drawn in proportion to their probability to the power of 1 / ``temperature``.

        Factors are disturbed as well: many measurements leave little doubt, and their plans would repeat.
        """
        scores = np.array([score for score, _ in self._tried.values()])
        weights = np.exp((scores.min() - scores) / temperature)
        figures = list(self._tried.values())[rng.choice(len(scores), p=weights / weights.sum())][1]
        noise = _DISTURBED * temperature * rng.standard_normal(len(figures.logs))
        return replace(figures, logs=figures.logs + np.clip(noise, -_MOST_LOG, _MOST_LOG))

    def predicted_s(self, figures: ChipFigures, seen: Observations) -> FloatArray:
        """[R] seconds of each chip for an inference."""
        work = self._work(figures.sizes, factors_of_ops(self._graph, figures.factors))
        return _chip_seconds(figures.terms, _by_kernel(work, seen), seen)

    def _better(self, sizes: KindParameters, score_of: Callable[[KindParameters], float]) -> None:
        """Change one size at a time while the score improves."""
        least, is_better = score_of(sizes), True
        while is_better:
            is_better = False
            for name, choices in _SIZES.items():
                for size in choices:
                    changed = replace(sizes, **{name: size})
                    score = score_of(changed)
                    if score < least - 1e-3:
                        sizes, least, is_better = changed, score, True

    def _rough(self, sizes: KindParameters) -> float:
        """Absolute errors of the best terms without factors, and how far they are from the target's."""
        if sizes not in self._plain:
            work = _by_kernel(self._work(sizes, np.ones(self._graph.num_ops)), self._seen)
            terms = self._solved(work)
            predicted_s = _chip_seconds(terms, work, self._seen)
            errors = np.abs(predicted_s / self._seen.measured_s(predicted_s) - 1)
            off = (terms - self._sheet) / self._spread
            score = float(np.nansum(errors) / _ERROR + 0.5 * off @ off)
            self._plain[sizes] = score, ChipFigures(sizes, terms, self._groups, np.zeros(len(self._groups)))
        return self._plain[sizes][0]

    def _try(self, sizes: KindParameters) -> float:
        if sizes not in self._tried:
            self._tried[sizes] = self._fitted(sizes)
        return self._tried[sizes][0]

    def _fitted(self, sizes: KindParameters) -> tuple[float, ChipFigures]:
        """The negative logarithm of the probability of what was measured, and the likeliest figures.

        Gauss-Newton: the seconds of chips are linear in the terms and, nearly, in the logarithms of factors.
        """
        seen, prior, near = self._seen, self._groups.root, self._sheet
        work = self._work(sizes, np.ones(self._graph.num_ops))
        terms, logs = self._solved(_by_kernel(work, seen)), np.zeros(len(self._groups))
        score = 0.0
        for _ in range(_ROUNDS):
            ops = work * np.exp(logs)[self._groups.of_op]
            kernels = _by_kernel(ops, seen)
            is_compute = terms[:3] @ kernels >= terms[BYTE] * seen.moved_s
            predicted_s = _chip_seconds(terms, kernels, seen)
            measured_s = seen.measured_s(predicted_s)
            known = measured_s > 0
            off = 1 - (predicted_s / measured_s)[known]
            trust = 1 / np.sqrt(np.fmax(np.abs(off) / _ERROR, 1.0))
            scale = (trust / measured_s[known])[:, None]
            columns = [*(kernels * is_compute), seen.moved_s * ~is_compute, np.ones(len(seen.moved_s))]
            by_term = np.stack([_by_chip(seen, column) for column in columns], axis=1)[known] * scale
            by_group = self._by_group(terms[:3] @ ops, is_compute)[known] * scale
            off = off * trust + by_term @ (terms - near) + by_group @ logs
            left = np.concatenate([by_group @ prior, by_term * self._spread], axis=1)
            score, found = _likeliest(left, off, len(logs))
            score -= float(np.log(trust).sum())
            logs = np.clip(prior @ found[: len(logs)], -_MOST_LOG, _MOST_LOG)
            terms = np.fmax(near + found[len(logs) :] * self._spread, 0.0)
        # Where measurements decide nothing, sizes win that need no other rates than the target's.
        far = (terms - near) / self._spread
        score += 0.5 * float(far @ far)
        return score, ChipFigures(sizes, terms, self._groups, logs)

    def _by_group(self, op_s: FloatArray, is_compute: BoolArray) -> FloatArray:
        """[R, G] seconds of each chip by group of ops, in kernels that compute bounds."""
        seen, num_groups = self._seen, len(self._groups)
        place = seen.row_of[seen.kernel_of] * num_groups + self._groups.of_op[seen.op]
        seconds = op_s[seen.op] * is_compute[seen.kernel_of]
        table = np.bincount(place, seconds, len(seen.turns) * num_groups).reshape(-1, num_groups)
        return table / seen.turns[:, None]

    def _work(self, sizes: KindParameters, factors: FloatArray) -> FloatArray:
        """[3, N + 1] of each op: seconds of products, seconds of other ops, number of products.

        The last column is for relays, which have no work.
        """
        seconds = shaped_op_seconds(self._graph, self._peak_s, (sizes,))[0]
        is_matrix = self._graph.op_class == IS_MATRIX
        of_op = np.zeros((3, self._graph.num_ops + 1))
        of_op[:, :-1] = seconds * is_matrix, seconds * ~is_matrix, is_matrix & (seconds > 0)
        of_op[:, :-1] *= factors
        return of_op

    def _solved(self, work: FloatArray) -> FloatArray:
        """[5] the terms that fit the observations best."""
        seen, terms, near = self._seen, self._sheet, self._sheet / self._spread
        weights = np.ones(len(seen.turns))
        for _ in range(_ROUNDS):
            is_compute = terms[:3] @ work >= terms[BYTE] * seen.moved_s
            columns = [*(work * is_compute), seen.moved_s * ~is_compute, np.ones(len(seen.moved_s))]
            measured_s = seen.measured_s(_chip_seconds(terms, work, seen))
            known = measured_s > 0  # False for NaN
            rows = np.stack([_by_chip(seen, column) for column in columns], axis=1)[known]
            rows *= (self._spread / measured_s[known, None]) * (weights[known, None] / _ERROR)
            kernels = 1 - (seen.transfers_s / measured_s)[known]  # kernels' share of the seconds
            right = np.concatenate([kernels * weights[known] / _ERROR, near])
            terms = nnls(np.concatenate([rows, np.eye(5)]), right)[0] * self._spread
            off = np.abs(_chip_seconds(terms, work, seen) / measured_s - 1) / _ERROR
            weights = 1 / np.sqrt(np.fmax(off, 1.0))  # NaN gives 1: the chip may count in the next round
        return terms


def _by_kernel(work: FloatArray, seen: Observations) -> FloatArray:
    """[3, M] the work [3, N + 1] of each kernel's ops."""
    return np.stack([np.bincount(seen.kernel_of, row[seen.op], len(seen.moved_s)) for row in work])


def _likeliest(left: FloatArray, right: FloatArray, num_groups: int) -> tuple[float, FloatArray]:
    """The negative logarithm of the probability of ``right``, and the likeliest x of ``right = left @ x``.

    The prior of x is normal, with the spread of factors for the first ``num_groups`` and 1 for the rest. The
    spread and the errors are those that make ``right`` likeliest (empirical Bayes).
    """
    square, toward, rest = left.T @ left, left.T @ right, float(right @ right)
    best = np.inf, toward
    for spread in _FACTOR_SPREADS:
        scale = np.repeat([spread, 1.0], [num_groups, len(toward) - num_groups])
        free = np.flatnonzero(scale)
        values, basis = np.linalg.eigh(square[np.ix_(free, free)] * scale[free] * scale[free, None])
        basis = scale[:, None] * np.eye(len(toward))[:, free] @ basis
        values, turned = np.fmax(values, 0.0), basis.T @ toward
        for error in _ERRORS:
            around = error**2 + values
            score = 0.5 * float((rest - turned @ (turned / around)) / error**2)
            score += 0.5 * float(np.log1p(values / error**2).sum()) + len(right) * float(np.log(error))
            score += _CAUTION * float(np.log(_ERROR / error))
            if score < best[0]:
                best = score, basis @ (turned / around)
    return best


def _chip_seconds(terms: FloatArray, work: FloatArray, seen: Observations) -> FloatArray:
    kernel_s = np.maximum(terms[:3] @ work, terms[BYTE] * seen.moved_s) + terms[OVERHEAD]
    return _by_chip(seen, kernel_s) + seen.transfers_s


def _by_chip(seen: Observations, kernel_values: FloatArray) -> FloatArray:
    values: FloatArray = np.bincount(seen.row_of, kernel_values, len(seen.turns)) / seen.turns
    return values
