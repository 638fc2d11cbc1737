"""Slicing by likelihood against the enumeration of all cut sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import cost_tables, greedy_fusion, load_target, load_zoo, loop_roles
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.slicing.likelihood import (
    ZERO_MASS,
    chip_of_kernel,
    cut_filter,
    likelihood_slicing,
    log_prob,
    most_likely_cuts,
    sample_cuts,
)
from tests.solver.brute_force import all_slicings
from tests.solver.cut_cases import Case, FloatArray, LongArray, log_weight
from tests.strategies import (
    JIT_IS_ON,
    chip_kind,
    examples,
    kind_names,
    random_graph,
    random_order,
    random_target,
    seeds,
    small_mcm,
    toy_graph,
)


def test_by_hand() -> None:
    """Two kernels, two chips, kernel 0 with mass 0.5 | 0.5, kernel 1 with 0.2 | 0.8.

    One chip: 0.5 * 0.2 = 0.1. Two: 0.5 * 0.8 = 0.4. Given that it is one of them: 0.2 and 0.8.
    """
    log_probs = np.log([[0.5, 0.5], [0.2, 0.8]])
    found = cut_filter(np.array([1, 2, 3]), log_probs)
    assert np.exp(found.log_total) == pytest.approx(0.5)
    probability = np.exp(log_prob(found, np.array([[0, 2, 2], [0, 1, 2], [0, 0, 2], [1, 2, 2]])))
    assert probability.tolist() == pytest.approx([0.2, 0.8, 0, 0])
    chips, cuts = most_likely_cuts(np.array([1, 2, 3]), log_probs)
    assert (chips.tolist(), cuts.tolist()) == ([2], [[0, 1, 2]])
    assert chip_of_kernel(cuts).tolist() == [[0, 1]]


@settings(max_examples=examples(300))
@given(seed=seeds)
def test_log_probabilities_are_exact(seed: int) -> None:
    case = Case(seed)
    found = cut_filter(case.reach, case.log_probs)
    if case.log_total == -np.inf:
        assert found.log_total == -np.inf
        return
    assert found.log_total == pytest.approx(case.log_total, abs=1e-9)
    assert log_prob(found, case.cuts) == pytest.approx(case.weights - case.log_total, abs=1e-9)
    assert np.exp(log_prob(found, case.cuts)).sum() == pytest.approx(1, abs=1e-9)


@settings(max_examples=examples(300))
@given(seed=seeds)
def test_most_likely_is_the_likeliest_of_all(seed: int) -> None:
    case = Case(seed)
    chips, cuts = most_likely_cuts(case.reach, case.log_probs)
    if case.log_total == -np.inf:
        assert chips.tolist() == [0]
        return
    assert cuts[0].tolist() in case.cuts.tolist()
    assert log_weight(case.log_probs, cuts[0]) == pytest.approx(case.weights.max(), abs=1e-9)


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_samples_follow_the_conditional(seed: int) -> None:
    """Total variation to the distribution by enumeration, against its expectation by chance."""
    case = Case(seed, max_kernels=6, max_chips=4)
    if case.log_total == -np.inf:
        return
    count = 20_000 if JIT_IS_ON else 500
    chips, cuts = sample_cuts(cut_filter(case.reach, case.log_probs), seed, count)
    place = {tuple(row): i for i, row in enumerate(case.cuts.tolist())}
    times = np.bincount([place[tuple(row)] for row in cuts.tolist()], minlength=len(case.cuts))
    expected = np.exp(case.weights - case.log_total)
    assert not times[expected == 0].any()
    noise = 0.5 * np.sqrt(2 * expected * (1 - expected) / (np.pi * count)).sum()
    assert 0.5 * np.abs(times / count - expected).sum() < 3 * noise + 5 / count
    assert chips.tolist() == [(row < len(case.reach) - 1).sum() for row in cuts]


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_no_fewer_chips_than_asked_for(seed: int) -> None:
    case = Case(seed)
    used = (case.cuts < len(case.reach) - 1).sum(axis=1)
    for min_chips in range(1, case.levels + 1):
        enough = used >= min_chips
        if not enough.any():
            with pytest.raises(InfeasibleError, match=f"at most {used.max()} segments"):
                cut_filter(case.reach, case.log_probs, min_chips=min_chips)
            continue
        found = cut_filter(case.reach, case.log_probs, min_chips=min_chips)
        total = np.logaddexp.reduce(case.weights[enough])
        assert found.log_total == pytest.approx(total, abs=1e-9)
        assert (log_prob(found, case.cuts[~enough]) == -np.inf).all()
        chips, _ = most_likely_cuts(case.reach, case.log_probs, min_chips=min_chips)
        assert chips[0] >= min_chips or total == -np.inf


@settings(max_examples=examples(150))
@given(seed=seeds)
def test_the_door_draws_slicings_of_the_graph(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_target(rng, num_chips=int(rng.integers(1, 5)), topology="ring")
    graph = random_graph(rng, int(rng.integers(1, 9)), kinds=kind_names(target))
    tables = cost_tables(graph, target)
    order = random_order(rng, graph)
    group = greedy_fusion(loop_roles(graph), order)
    adjacent = bool(rng.random() < 0.6)
    sequence = kernel_sequence(tables, order, group, adjacent=adjacent)
    slicings = all_slicings(graph, tables, order, group, adjacent=adjacent, max_chips=target.num_chips)
    rows = rng.normal(size=(graph.num_ops, target.num_chips)) * 5
    if not len(slicings):
        with pytest.raises(InfeasibleError, match="chip kind"):
            likelihood_slicing(sequence, rows, target.chip_kind, num_samples=3)
        return
    weights = rows[np.arange(graph.num_ops), slicings].sum(axis=1)
    chance = {tuple(row): w - np.logaddexp.reduce(weights) for row, w in zip(slicings, weights, strict=True)}
    drawn = likelihood_slicing(sequence, rows, target.chip_kind, seed=seed, num_samples=10)
    assert [chance[tuple(row)] for row in drawn.placement] == pytest.approx(drawn.log_prob, abs=1e-9)
    best = likelihood_slicing(sequence, rows, target.chip_kind)
    assert chance[tuple(best.placement[0])] == pytest.approx(max(chance.values()), abs=1e-9)
    assert best.log_prob[0] == pytest.approx(max(chance.values()), abs=1e-9)


def test_no_mass_at_all_counts_kernels_without() -> None:
    """All mass on chip 1: chip 0 must have a kernel without, and one is the fewest."""
    graph, target = toy_graph(), small_mcm(2)
    ops = np.arange(6, dtype=np.int32)
    sequence = kernel_sequence(cost_tables(graph, target), ops, ops, adjacent=True)
    rows = np.tile([-np.inf, 0.0], (6, 1))
    drawn = likelihood_slicing(sequence, rows, target.chip_kind, num_samples=50)
    assert not drawn.has_mass
    assert (drawn.placement == [0, 1, 1, 1, 1, 1]).all()
    assert drawn.log_prob == pytest.approx(0, abs=1e-9)
    assert likelihood_slicing(sequence, rows, target.chip_kind).placement.tolist() == [[0, 1, 1, 1, 1, 1]]
    assert np.exp(ZERO_MASS) == 0
    found = cut_filter(sequence.reach, rows)
    with pytest.raises(InvalidInputError, match="any mass"):
        sample_cuts(found, 0, 1)


def test_excluded_kinds_never_count() -> None:
    rng = np.random.default_rng(2)
    target = random_target(rng, topology="ring", kinds=[chip_kind("a", 1), chip_kind("b", 1)])
    graph = random_graph(rng, 20, kinds=("a", "b"))
    ops = np.arange(20, dtype=np.int32)
    tables = cost_tables(graph, target)
    assert not tables.can_run.all()
    sequence = kernel_sequence(tables, ops, ops, adjacent=False)
    rows = np.tile([-np.inf, 0.0], (20, 1))
    drawn = likelihood_slicing(sequence, rows, target.chip_kind, num_samples=20)
    assert tables.can_run[target.chip_kind[drawn.placement], ops].all()


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("name", ["gpt2", "nasnet_large"])
def test_long_sequences_stay_exact(name: str, scale: float) -> None:
    """Log-probabilities of samples against plain sums, for uniform to nearly one-hot policies."""
    graph, target = load_zoo(name), load_target("mcm-6x6")
    ops = np.arange(graph.num_ops, dtype=np.int32)
    sequence = kernel_sequence(cost_tables(graph, target), ops, ops, adjacent=True)
    rows = np.random.default_rng(1).normal(size=(graph.num_ops, target.num_chips)) * scale
    if not JIT_IS_ON:
        rows = rows[:, :4]
    found = cut_filter(sequence.reach, rows)
    _, cuts = sample_cuts(found, 3, 20)
    plain = np.array([log_weight(rows, row) for row in cuts]) - found.log_total
    assert log_prob(found, cuts) == pytest.approx(plain, abs=1e-9)
    # Backwards the same weights have the same sum.
    total = log_total_from_behind(sequence.reach, rows)
    assert found.log_total == pytest.approx(total, rel=1e-13, abs=1e-9)


def log_total_from_behind(reach: LongArray, rows: FloatArray) -> float:
    """Log-weight of all slicings, chip by chip from the last cut, with exact sums."""
    num_kernels, num_chips = rows.shape
    prefix = np.concatenate([np.zeros((1, num_chips)), np.cumsum(rows.astype(np.longdouble), axis=0)])
    behind = np.full(num_kernels + 1, -np.inf, dtype=np.longdouble)
    behind[num_kernels] = 0
    for chip in range(min(rows.shape) - 1, -1, -1):
        entering = (behind + prefix[:, chip])[::-1]
        running = np.logaddexp.accumulate(entering)[::-1]  # of all ends from a cut on
        found = running[np.minimum(reach[:-1], num_kernels)] - prefix[:-1, chip]
        behind = np.append(found, np.longdouble(0))
    return float(behind[0])


def test_malformed_arguments() -> None:
    reach = np.array([1, 2, 3])
    with pytest.raises(InvalidInputError, match="log_probs has shape"):
        cut_filter(reach, np.zeros((3, 2)))
    with pytest.raises(InvalidInputError, match="NaN"):
        cut_filter(reach, np.full((2, 2), np.nan))
    with pytest.raises(InfeasibleError, match="at most 2 segments"):
        cut_filter(reach, np.zeros((2, 2)), min_chips=3)
