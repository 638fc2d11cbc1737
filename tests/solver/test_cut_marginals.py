"""Marginals of cuts against enumeration, finite differences, samples, and exact sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.solver.slicing.likelihood import chip_of_kernel, cut_filter, cut_marginals, sample_cuts
from tests.solver.cut_cases import Case, FloatArray, LongArray
from tests.strategies import JIT_IS_ON, examples, seeds


def test_by_hand() -> None:
    """Three kernels, weights 1 but 3 for kernel 1 on chip 0; kernels 0 and 1 may not be cut apart.

    Chips 000 and 001 have weight 3 each; 011 is not legal, and neither is 012. On two chips
    at least, 001 is left.
    """
    reach = np.array([2, 3, 3, 4])
    log_probs = np.log([[1.0, 1.0, 1.0], [3.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    expected = [[1, 0, 0], [1, 0, 0], [0.5, 0.5, 0]]
    np.testing.assert_allclose(cut_marginals(cut_filter(reach, log_probs)), expected, atol=1e-15)
    expected = [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    found = cut_filter(reach, log_probs, min_chips=2)
    np.testing.assert_allclose(cut_marginals(found), expected, atol=1e-15)


@settings(max_examples=examples(300))
@given(seed=seeds)
def test_marginals_are_sums_over_all_slicings(seed: int) -> None:
    case = Case(seed)
    used = (case.cuts < len(case.reach) - 1).sum(axis=1)
    for min_chips in range(1, case.levels + 1):
        try:
            found = cut_filter(case.reach, case.log_probs, min_chips=min_chips)
        except InfeasibleError:
            continue
        if found.log_total == -np.inf:
            with pytest.raises(InvalidInputError, match="any mass"):
                cut_marginals(found)
            continue
        marginals = cut_marginals(found)
        probability = np.where(used >= min_chips, np.exp(case.weights - found.log_total), 0.0)
        chip = chip_of_kernel(case.cuts)
        expected = [probability @ (chip == d) for d in range(case.levels)]
        np.testing.assert_allclose(marginals, np.stack(expected, axis=1), atol=1e-9)
        assert (marginals >= 0).all()
        assert not marginals[np.isneginf(case.log_probs[:, : case.levels])].any()


@settings(max_examples=examples(60))
@given(seed=seeds)
def test_marginals_are_the_gradient_of_the_log_partition_function(seed: int) -> None:
    case = Case(seed)
    if case.log_total == -np.inf:
        return
    direction = np.random.default_rng(seed).standard_normal(case.log_probs.shape)
    ahead, behind = (cut_filter(case.reach, case.log_probs + step * direction) for step in (1e-5, -1e-5))
    slope = (ahead.log_total - behind.log_total) / 2e-5
    marginals = cut_marginals(cut_filter(case.reach, case.log_probs))
    assert (marginals * direction[:, : case.levels]).sum() == pytest.approx(slope, abs=1e-5)


def test_samples_lie_on_chips_as_often_as_the_marginals_say() -> None:
    rng = np.random.default_rng(0)
    count = 20_000 if JIT_IS_ON else 500
    reach = long_reach(30)
    found = cut_filter(reach, rng.normal(size=(30, 5)))
    _, cuts = sample_cuts(found, 1, count)
    chip = chip_of_kernel(cuts)
    share = np.stack([(chip == d).mean(axis=0) for d in range(5)], axis=1)
    expected = cut_marginals(found)
    assert np.abs(share - expected).max() < 5 * np.sqrt(0.25 / count)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("drift", [0.0, 50.0])
def test_long_sequences_stay_exact(scale: float, drift: float) -> None:
    """Uniform to nearly one-hot rows; with a drift, later chips weigh ever more."""
    num_kernels, num_chips = (600, 36) if JIT_IS_ON else (60, 4)
    reach = long_reach(num_kernels)
    rows = np.random.default_rng(2).normal(size=(num_kernels, num_chips)) * scale
    rows += drift * np.arange(num_chips) / num_chips
    rows[num_kernels // 2, ::3] = -np.inf
    marginals = cut_marginals(cut_filter(reach, rows))
    np.testing.assert_allclose(marginals, forward_backward(reach, rows), atol=1e-9)
    np.testing.assert_allclose(marginals.sum(axis=1), 1.0, atol=1e-9)


def long_reach(num_kernels: int) -> LongArray:
    """[M + 1] the third cut further on."""
    return np.append(np.minimum(np.arange(num_kernels) + 3, num_kernels), num_kernels + 1)


def forward_backward(reach: LongArray, rows: FloatArray) -> FloatArray:
    """Marginals from both ends in extended precision; massless kernels count as exp(-30000)."""
    num_kernels, num_chips = rows.shape
    rows = np.where(np.isneginf(rows), -30000.0, rows).astype(np.longdouble)
    sums = np.concatenate([np.zeros((1, num_chips), np.longdouble), np.cumsum(rows, axis=0)])
    cuts = np.arange(num_kernels + 1)
    last_start = np.searchsorted(reach[:-1], cuts, side="right") - 1
    before = [np.where(cuts == 0, np.longdouble(0), -np.inf)]  # of a segment on chip d that starts here
    for chip in range(num_chips):
        running = np.logaddexp.accumulate((before[-1] - sums[:, chip])[:-1])
        ended = np.where(last_start >= 0, running[last_start] + sums[:, chip], -np.inf)
        before.append(ended)
    behind = np.where(cuts == num_kernels, np.longdouble(0), -np.inf)  # of what a cut leaves
    started = np.zeros((num_chips + 1, num_kernels), np.longdouble)
    log_total = np.logaddexp.reduce([ended[-1] for ended in before[1:]])
    for chip in range(num_chips - 1, -1, -1):
        running = np.logaddexp.accumulate((behind + sums[:, chip])[::-1])[::-1]
        segment = running[np.minimum(reach[:-1], num_kernels)] - sums[:-1, chip]
        started[chip] = np.exp(before[chip][:-1] + segment - log_total)
        behind = np.append(segment, np.longdouble(0))
    begun = np.cumsum(started, axis=1)
    return (begun[:-1] - begun[1:]).T.astype(np.float64)
