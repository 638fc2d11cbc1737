"""Fits the figures of kernels and collectives to tables of measured ones.

The figures minimise the sum of the absolute logarithms of predicted over measured seconds, and of a penalty
that pulls each figure to the one given; so few rows suffice. The search starts from least squares, which is
fast, at the figures given and at the rates that the rows reach, since the target may be of another GPU. It
goes on with the simplex of Nelder and Mead (1965). It draws nothing, so it repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env.gpu.figures import COLLECTIVES, Collective, KernelFigures, scaled_figures
from go_opt.env.target import PAPER, Target, parse_target
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InvalidInputError
from go_opt.kernels.tables import KernelTable, Predictor, predictor_of

# Standard deviation of the logarithm of a figure around that of an unmeasured GPU.
PRODUCT_SPREADS: Final = {
    "start_s": 0.3,
    "matrix_share": 0.3,
    "memory_share": 0.3,
    "feed_bytes_per_s": 1.0,
    "step_s": 1.0,
    "store_bytes_per_s": 1.0,
    "split_overhead_s": 0.5,
}
PREFILL_SPREADS: Final = {"prefill_overhead_s": 0.5, "scores_per_s": 0.5, "prefill_block_s": 1.0}
DECODE_SPREADS: Final = {"decode_overhead_s": 0.5, "decode_block_s": 0.5, "decode_split_s": 0.5}
_COLLECTIVE_SPREADS: Final = {
    "start_s": 0.5,
    "hop_s": 1.0,
    "link_bytes_per_s": 1.0,
    "copy_bytes_per_s": 1.0,
}
_ANY_COLLECTIVE: Final = Collective("all_reduce", 6e-6, 5e11, 0.8e-6, 6e11)  # where none is given
_WORTH_GROUPS: Final = 0.7
_GROUP_SPREADS: Final = {"start_s": 0.7, "link_bytes_per_s": 2.0}
_CACHE_SPREADS: Final = {"cache_bytes": 1.0, "cache_bytes_per_s": 0.7}
_CACHES: Final = (4e6, 12e6, 30e6)  # bytes from which the search starts
_CACHE_RATE: Final = 2.5  # of that of the memory, the same
_SCALE: Final = 0.07  # of the logarithms of errors
_PROCESSORS: Final = 132  # where no file says how many
_SOLD: Final = (  # numbers of processors of GPUs
    20, 24, 28, 34, 40, 46, 56, 60, 68, 72, 80, 84, 92, 108, 114, 128, 132, 142, 148, 160, 170, 188,
)  # fmt: skip
_MOST_TRIED: Final = 100  # rows that decide on processors, evenly spaced
_FEWEST_TRIED: Final = {"products": 100, "prefill": 12, "decode": 12}
_WORTH_PROCESSORS: Final = 0.85
_FOLDS: Final = 5
_WORTH: Final = 0.9  # further figures must lower the error of rows held out to this share
_MOST_COMPARED: Final = 300  # rows, evenly spaced, that decide on further figures
_FEWEST: Final = 20  # rows for further figures
_MOST_OFF: Final = 100.0  # median of predicted over measured seconds, or its inverse: another unit


@dataclass(frozen=True)
class KernelFit:
    """What was fitted."""

    predictor: Predictor
    fitted: frozenset[str]  # names of figures
    errors: dict[str, tuple[int, float]]  # rows, and mean relative error of those held out, by what they are


def fit_kernels(
    tables: Sequence[KernelTable], given: Predictor, *, processors: int | None = None
) -> KernelFit:
    """Figures for measured tables, from those of ``given``; what no table is about stays.

    Args:
      processors: of the measured GPU; None: those of ``given``, or fitted where many rows call for it.

    Raises:
      InvalidInputError: the measured times are of another unit.
    """
    by_subject = dict(_by_subject(tables))
    for what, table in by_subject.items():
        _check_unit(what, table, given)
    number = _processors(by_subject, given) if processors is None else processors
    is_fitted = processors is None and number != given.figures.tiles_at_once
    counted = replace(given, figures=replace(given.figures, tiles_at_once=number))
    fit = KernelFit(counted, frozenset(["tiles_at_once"] if is_fitted else []), {})
    for what, table in by_subject.items():
        fitted = _fitter(what, fit.predictor, by_subject)
        held_out = _error(table, fitted, fit.predictor)
        predictor, names = fitted(table)
        errors = fit.errors | {what: (len(table.sizes), held_out)}
        fit = KernelFit(predictor, fit.fitted | names, errors)
    return fit


def fitted_target(
    target: Target, tables: Sequence[KernelTable], *, processors: int | None = None
) -> tuple[Target, str, KernelFit]:
    """The target with figures fitted to tables, its text with their provenance, and the fit.

    Args:
      processors: as in :func:`fit_kernels`.

    Raises:
      InvalidInputError: the target has several kinds of chips, or times are of another unit.
    """
    if len(target.kinds) > 1:
        raise InvalidInputError(
            f"target {target.name!r} has {len(target.kinds)} kinds of chips; calibrate takes one.",
            field="target",
        )
    kind = target.kinds[0]
    given = predictor_of(target, kind, kind.kernels or _assumed(target))
    fit = fit_kernels(tables, given, processors=processors)
    plain = replace(kind.simulator, tile_rows=1, tile_inner=1, tile_columns=1, tiles_at_once=1, fill_s=0.0)
    found = replace(
        target,
        name=f"{target.name}-calibrated",
        kinds=(replace(kind, kernels=fit.predictor.figures, simulator=plain),),
        collectives=fit.predictor.collectives,
        fitted_to="; ".join(
            f"{what}: {rows} rows" + ("" if np.isnan(error) else f", {error:.1%} off those held out")
            for what, (rows, error) in fit.errors.items()
        ),
    )
    names = [one.name for one in fields(KernelFigures)] + [
        f"{one.op}.{each.name}" for one in found.collectives for each in fields(one)[1:]
    ]
    otherwise = f"as in {target.name}" if kind.kernels else "assumed"
    marks = {name: "fitted" if name in fit.fitted else otherwise for name in names}
    if processors is not None:
        marks["tiles_at_once"] = "given"
    text = "# Written by `go-opt calibrate`.\n" + target_to_toml(found, marks)
    return parse_target(text, target.source.removesuffix(PAPER)), text, fit


def _assumed(target: Target) -> KernelFigures:
    """The figures of a kind without any: scaled by its data sheet."""
    kind = target.kinds[0]
    tiles = kind.simulator.tiles_at_once
    like = predictor_of(target, kind, scaled_figures(1.0, 1.0, 1))
    return scaled_figures(
        like.flops_per_s * like.element_bytes / 2, like.bytes_per_s, tiles if tiles > 1 else _PROCESSORS
    )


def _by_subject(tables: Sequence[KernelTable]) -> Iterator[tuple[str, KernelTable]]:
    """The rows of all tables on products, attention and each collective; of attention what has more first."""
    found: dict[str, list[KernelTable]] = {}
    for table in tables:
        if table.kind == "collectives":
            parts = [(name, table.sizes[:, 0] == i) for i, name in enumerate(COLLECTIVES)]
        elif table.kind == "attention":
            parts = [("prefill", ~table.is_decoding), ("decode", table.is_decoding)]
        else:
            table, parts = table.batched(), [("products", np.ones(len(table.sizes), np.bool_))]
        for name, is_of in parts:
            if is_of.any():
                found.setdefault(name, []).append(table.rows(is_of))
    attention = sorted(
        ("decode", "prefill"), key=lambda name: -sum(len(one.sizes) for one in found.get(name, ()))
    )
    for name in ("products", *attention, *COLLECTIVES):
        if name in found:
            same = found[name]
            yield (
                name,
                replace(
                    same[0],
                    sizes=np.concatenate([one.sizes for one in same]),
                    measured_s=np.concatenate([_measured(one) for one in same]),
                ),
            )


def _measured(table: KernelTable) -> FloatArray:
    assert table.measured_s is not None
    return table.measured_s


def _check_unit(what: str, table: KernelTable, given: Predictor) -> None:
    if what in COLLECTIVES and not any(one.op == what for one in given.collectives):
        given = replace(given, collectives=(replace(_ANY_COLLECTIVE, op=what),))
    ratio = float(np.median(given.seconds(table) / _measured(table)))
    if not 1 / _MOST_OFF < ratio < _MOST_OFF:
        raise InvalidInputError(
            f"{table.source}: measured times are {1 / ratio:.2g} of those expected of {what}; "
            "are they milliseconds?",
            field="kernels",
        )


Fitter = Callable[[KernelTable], tuple[Predictor, frozenset[str]]]


def _fitter(what: str, given: Predictor, tables: Mapping[str, KernelTable]) -> Fitter:
    """What fits figures of one subject of ``tables``."""
    if what in COLLECTIVES:
        return lambda table: _fitted_collective(what, table, given)
    if what == "products":
        return lambda table: _fitted_products(table, given)
    figures = given.figures
    if not figures.attention_matrix_ratio:
        given = replace(given, figures=replace(figures, attention_matrix_ratio=1.0 / figures.matrix_share))
    spreads = _spreads(what, tables)
    return lambda table: (_fitted_figures(table, given, spreads), frozenset(spreads))


def _spreads(what: str, tables: Mapping[str, KernelTable]) -> dict[str, float]:
    """The figures that are fitted to products, prefill or decode; what has most rows says the bandwidth."""
    first = next((one for one in tables if one != "products"), "")
    bandwidth = {"attention_memory_ratio": 0.2} if what == first else {}
    of_attention = {"decode": DECODE_SPREADS, "prefill": PREFILL_SPREADS | {"attention_matrix_ratio": 0.2}}
    return of_attention[what] | bandwidth if what in of_attention else PRODUCT_SPREADS


def _processors(tables: Mapping[str, KernelTable], given: Predictor) -> int:
    """The number of processors: another than that given only if many rows say so."""
    earlier = given.figures.tiles_at_once
    some = {
        what: table.rows(slice(None, None, -(-len(table.sizes) // _MOST_TRIED)))
        for what, table in tables.items()
        if len(table.sizes) >= _FEWEST_TRIED.get(what, math.inf)
    }

    def off(number: int) -> float:
        figures = replace(given.figures, tiles_at_once=number)
        ratio = figures.attention_matrix_ratio or 1.0 / figures.matrix_share
        with_number = replace(given, figures=replace(figures, attention_matrix_ratio=ratio))
        return sum(
            _off(_fitted_figures(rows, with_number, _spreads(what, {what: rows}), is_quick=True), rows)
            for what, rows in some.items()
        )

    if not some:
        return earlier
    found = {number: off(number) for number in {earlier, *_SOLD}}
    best = min(found, key=lambda number: found[number])
    return best if found[best] < _WORTH_PROCESSORS * found[earlier] else earlier


def _error(table: KernelTable, fitted: Fitter, given: Predictor) -> float:
    """Mean relative error of every fifth row, fitted to the others; NaN for too few rows."""
    rows = np.arange(len(table.sizes)) % _FOLDS
    held = rows == _FOLDS - 1
    if held.sum() < 2:
        return float("nan")
    predictor, _ = fitted(table.rows(~held))
    rest = table.rows(held)
    return float(np.abs(predictor.seconds(rest) / _measured(rest) - 1.0).mean())


def _fitted_figures(
    table: KernelTable,
    given: Predictor,
    spreads: Mapping[str, float],
    start: Predictor | None = None,
    *,
    is_quick: bool = False,
) -> Predictor:
    """The figures of ``spreads``, pulled to those of ``given``; the search begins at ``start``."""

    def with_figures(figures: Mapping[str, Any]) -> Predictor:
        return replace(given, figures=replace(given.figures, **figures))

    def at(one: Predictor) -> list[float]:
        return [getattr(one.figures, name) for name in spreads]

    # The target's own GPU, or another of the reached rates.
    priors = [given, _reached(table, given)] if start is None else [given]
    pairs = [(at(prior), at(prior if start is None else start)) for prior in priors]
    return _fitted(table, with_figures, pairs, spreads, is_quick=is_quick)


def _reached(table: KernelTable, given: Predictor) -> Predictor:
    """Figures scaled by the largest rates of any row: a start that is near for whatever GPU was measured."""
    figures, measured_s = given.figures, _measured(table)
    size = given.element_bytes
    if table.kind == "products":
        batch, rows, columns, inner = table.batched().sizes.T
        flops = 2.0 * batch * rows * columns * inner
        moved = size * batch * (rows * inner + inner * columns + rows * columns)
        matrix = float((flops / measured_s).max()) / (figures.matrix_share * given.flops_per_s)
        memory = float((moved / measured_s).max()) / (figures.memory_share * given.bytes_per_s)
        return replace(
            given,
            figures=replace(
                figures,
                matrix_share=figures.matrix_share * matrix,
                feed_bytes_per_s=figures.feed_bytes_per_s * matrix,
                step_s=figures.step_s / matrix,
                memory_share=figures.memory_share * memory,
                store_bytes_per_s=figures.store_bytes_per_s * memory,
            ),
        )
    batch, rows, cached, heads, groups, depth = table.sizes.T
    scores = batch * heads * rows * (cached + rows / 2.0)
    moved = size * batch * depth * (2.0 * rows * heads + 2.0 * (rows + cached) * groups)
    matrix = float((4.0 * depth * scores / measured_s).max()) / given.flops_per_s
    memory = float((moved / measured_s).max()) / (figures.memory_share * given.bytes_per_s)
    return replace(
        given,
        figures=replace(
            figures,
            attention_matrix_ratio=2.0 * matrix / figures.matrix_share,
            attention_memory_ratio=memory,
            scores_per_s=2.0 * float((scores / measured_s).max()),
        ),
    )


def _fitted_products(
    table: KernelTable, given: Predictor, *, is_quick: bool = False
) -> tuple[Predictor, frozenset[str]]:
    """The seven figures, and two of a cache only if rows held out call for them."""
    given = replace(given, figures=replace(given.figures, cache_bytes=0.0, cache_bytes_per_s=0.0))
    spreads = PRODUCT_SPREADS | _CACHE_SPREADS
    plain = _fitted_figures(table, given, PRODUCT_SPREADS, is_quick=is_quick)
    some = table.rows(slice(None, None, -(-len(table.sizes) // _MOST_COMPARED)))
    if len(some.sizes) < _FEWEST:
        return plain, frozenset(PRODUCT_SPREADS)
    rate = _CACHE_RATE * plain.figures.memory_share * given.bytes_per_s
    priors = [
        replace(given, figures=replace(given.figures, cache_bytes=size, cache_bytes_per_s=rate))
        for size in _CACHES
    ]
    found = [(prior, _fitted_figures(some, prior, spreads, is_quick=True)) for prior in priors]
    prior, cached = min(found, key=lambda one: _off(one[1], some))

    def held_out(given: Predictor, start: Predictor, spreads: Mapping[str, float]) -> float:
        return _held_out(some, lambda rows: _fitted_figures(rows, given, spreads, start, is_quick=True))

    if held_out(prior, cached, spreads) > _WORTH * held_out(given, plain, PRODUCT_SPREADS):
        return plain, frozenset(PRODUCT_SPREADS)
    return _fitted_figures(table, prior, spreads, cached, is_quick=is_quick), frozenset(spreads)


def _off(predictor: Predictor, table: KernelTable) -> float:
    """Sum of the absolute logarithms of predicted over measured seconds."""
    return float(np.abs(np.log(predictor.seconds(table) / _measured(table))).sum())


def _held_out(table: KernelTable, fitted: Callable[[KernelTable], Predictor]) -> float:
    """What rows are off that are predicted from the other folds."""
    fold = np.arange(len(table.sizes)) % _FOLDS
    return sum(_off(fitted(table.rows(fold != one)), table.rows(fold == one)) for one in range(_FOLDS))


def _fitted_collective(op: str, table: KernelTable, given: Predictor) -> tuple[Predictor, frozenset[str]]:
    """Four figures for all groups; or where links are no switch, two for each group if that explains more."""
    others = tuple(one for one in given.collectives if one.op != op)
    earlier = [one for one in given.collectives if one.op == op and not one.group]
    prior = earlier[0] if earlier else replace(_ANY_COLLECTIVE, op=op)

    def fitted(rows: KernelTable, by_group: bool, is_quick: bool) -> Predictor:
        groups = np.unique(table.sizes[:, 1]).astype(int).tolist() if by_group else [0]
        found = []
        for group in groups:
            of_group = rows.rows(rows.sizes[:, 1] == group) if by_group else rows
            alone = replace(prior, group=group, hop_s=0.0, copy_bytes_per_s=0.0) if by_group else prior
            spreads = _GROUP_SPREADS if by_group else _COLLECTIVE_SPREADS
            found.append(_fitted_row(of_group, replace(given, collectives=(alone,)), spreads, is_quick))
        whole = [prior] * (by_group and bool(earlier))  # for other groups
        return replace(given, collectives=(*others, *whole, *found))

    def held_out(by_group: bool) -> float:
        return _held_out(table, lambda rows: fitted(rows, by_group, True))

    by_group = len(table.sizes) >= _FEWEST and held_out(True) < _WORTH_GROUPS * held_out(False)
    return fitted(table, by_group, False), frozenset(f"{op}.{name}" for name in _COLLECTIVE_SPREADS)


def _fitted_row(
    table: KernelTable, given: Predictor, spreads: Mapping[str, float], is_quick: bool
) -> Collective:
    """The one collective of ``given``, with figures fitted."""
    (row,) = given.collectives

    def with_figures(figures: Mapping[str, Any]) -> Predictor:
        return replace(given, collectives=(replace(row, **figures),))

    at = [getattr(row, name) for name in spreads]
    return _fitted(table, with_figures, [(at, at)], spreads, is_quick=is_quick).collectives[0]


def _fitted(
    table: KernelTable,
    with_figures: Callable[[Mapping[str, Any]], Predictor],
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    spreads: Mapping[str, float],
    *,
    is_quick: bool = False,
) -> Predictor:
    """The predictor with the figures that fit best.

    Args:
      pairs: means of figures, and where the search begins; the best pair counts.
      spreads: deviations of the logarithms of figures, by name.
    """
    from scipy.optimize import least_squares, minimize

    measured, spread = np.log(_measured(table)), np.array(list(spreads.values()))

    def of(figures: FloatArray) -> Predictor:
        return with_figures(dict(zip(spreads, figures.tolist(), strict=True)))

    def off(at: FloatArray, prior: FloatArray) -> FloatArray:
        errors = (np.log(of(np.exp(at)).seconds(table)) - measured) / _SCALE
        return np.concatenate([errors, (at - prior) / spread])

    def smooth(at: FloatArray, prior: FloatArray) -> FloatArray:  # absolute, but squared near zero
        each = off(at, prior)
        return np.sign(each) * np.sqrt(2.0 * (np.sqrt(1.0 + each**2) - 1.0))

    def loss(at: FloatArray, prior: FloatArray) -> float:
        each = off(at, prior)
        pulls = np.sqrt(1.0 + each[len(measured) :] ** 2)
        return float(np.abs(each[: len(measured)]).sum() + pulls.sum())

    found = [
        (least_squares(smooth, start, args=(prior,), diff_step=1e-3, max_nfev=20).x, prior)
        for prior, start in np.log(np.array(pairs))
    ]
    first, prior = min(found, key=lambda one: loss(*one))
    if is_quick:
        return of(np.exp(first))
    corners = np.vstack([first, first + 0.05 * np.eye(len(first))])
    options = {"maxfev": 30 * len(first), "initial_simplex": corners}
    best = np.exp(minimize(loss, first, (prior,), method="Nelder-Mead", options=options).x)
    return of(np.array([float(f"{figure:.4g}") for figure in best]))
