"""Keys and their density: against SciPy's singular normal, by hand, by finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from scipy.stats import multivariate_normal

from go_opt.agents.decoding.exploration import KeySpace, antithetic_normals, draw_keys, key_density, key_space
from go_opt.agents.inputs.features import graph_features
from go_opt.common.arrays import FloatArray
from tests.agents.degenerate import DEGENERATE
from tests.strategies import examples, random_graph, seeds, small_mcm


class Keys:
    """Some keys of a graph, drawn under another mean and spread than those asked about."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        num_features = int(rng.integers(1, 6))
        # More features than ops at times: the subspace is then all there is.
        features = rng.standard_normal((int(rng.integers(1, 12)), num_features))
        self.space = key_space(features)
        self.mean, old_mean = rng.standard_normal((2, len(features)))
        self.log_std, old_log_std = 0.5 * rng.standard_normal((2, num_features))
        self.weight = rng.standard_normal(7)
        normals = antithetic_normals(rng, 7, num_features)
        self.keys = draw_keys(self.space, old_mean, old_log_std, normals)


def slope(function: Callable[[FloatArray], float], at: FloatArray, step: float = 1e-5) -> FloatArray:
    """Central differences of ``function`` by each entry of ``at``."""
    ends = [(function(at + step * e), function(at - step * e)) for e in np.eye(len(at))]
    return np.array([(ahead - behind) / (2 * step) for ahead, behind in ends])


def test_by_hand() -> None:
    """Two ops, one feature (3, 4): keys lie along u = (0.6, 0.8), five times as spread.

    With a spread of 2 and mean 0, y = uᵀ key has deviation 10. At key (6, 8), y = 10: one deviation.
    """
    space = key_space(np.array([[3.0], [4.0]]))
    keys = np.array([[6.0, 8.0]])
    density = key_density(space, np.zeros(2), np.log([2.0]), keys)
    constant = np.log(10.0) + 0.5 * np.log(2 * np.pi)
    assert density.log_density == pytest.approx([-0.5 - constant])
    # d / d y of y² / 200 is 0.1, along u; one deviation off, the spread is just right.
    np.testing.assert_allclose(density.to_mean, [[0.06, 0.08]], atol=1e-12)
    np.testing.assert_allclose(density.to_log_std, [[0.0]], atol=1e-12)


@settings(max_examples=examples(100))
@given(seed=seeds)
def test_it_is_the_normal_on_the_subspace(seed: int) -> None:
    """SciPy takes the pseudo-inverse of the covariance among all ops; no direction is left out."""
    case = Keys(seed)
    features = case.space.features
    assume(case.space.basis.shape[1] == min(features.shape))
    covariance = features @ np.diag(np.exp(2 * case.log_std)) @ features.T
    # Means apart within the subspace alone: else SciPy calls the keys impossible.
    mean = case.keys[0] + features @ case.weight[: features.shape[1]]
    keys = mean + (case.keys - mean) @ case.space.basis @ case.space.basis.T
    density = key_density(case.space, mean, case.log_std, keys)
    expected = multivariate_normal(mean, covariance, allow_singular=True)
    np.testing.assert_allclose(density.log_density, np.atleast_1d(expected.logpdf(keys)), atol=1e-6)


@settings(max_examples=examples(50))
@given(seed=seeds)
def test_gradients_are_the_slopes(seed: int) -> None:
    case = Keys(seed)

    def weighted(mean: FloatArray, log_std: FloatArray) -> float:
        return float(case.weight @ key_density(case.space, mean, log_std, case.keys).log_density)

    density = key_density(case.space, case.mean, case.log_std, case.keys)
    for got, expected in (
        (case.weight @ density.to_mean, slope(lambda x: weighted(x, case.log_std), case.mean)),
        (case.weight @ density.to_log_std, slope(lambda x: weighted(case.mean, x), case.log_std)),
    ):
        np.testing.assert_allclose(got, expected, atol=1e-5 * max(1.0, np.abs(expected).max()))


def test_draws_have_the_covariance() -> None:
    """Exactly: the noise of one feature at a time adds up to it."""
    rng = np.random.default_rng(0)
    features, mean = rng.standard_normal((9, 4)), rng.standard_normal(9)
    log_std = rng.standard_normal(4)
    moved = draw_keys(key_space(features), mean, log_std, np.eye(4)) - mean
    covariance = features @ np.diag(np.exp(2 * log_std)) @ features.T
    np.testing.assert_allclose(moved.T @ moved, covariance, atol=1e-12)


def test_normals_come_in_pairs() -> None:
    normals = antithetic_normals(np.random.default_rng(0), 40_000, 3)
    np.testing.assert_array_equal(normals[::2], -normals[1::2])
    np.testing.assert_allclose(normals.T @ normals / 40_000, np.eye(3), atol=0.03)
    assert antithetic_normals(np.random.default_rng(0), 5, 3).shape == (5, 3)
    # What is drawn does not depend on how many more are.
    np.testing.assert_array_equal(antithetic_normals(np.random.default_rng(0), 1, 3), normals[:1])


def test_columns_that_say_the_same_add_up() -> None:
    """Twice a column with spreads 3 and 4 is the column with a spread of 5; zeros say nothing."""
    column = np.random.default_rng(0).standard_normal((6, 1))
    mean, keys = np.zeros(6), np.array([[2.0], [-1.0]]) * column[:, 0]
    alone = key_density(key_space(column), mean, np.log([5.0]), keys)
    columns = np.hstack([column, column, np.zeros((6, 1))])
    space = key_space(columns)
    assert space.basis.shape == (6, 1)
    density = key_density(space, mean, np.log([3.0, 4.0, 7.0]), keys)
    np.testing.assert_allclose(density.log_density, alone.log_density)
    np.testing.assert_allclose(density.to_mean, alone.to_mean, atol=1e-12)
    # Of the variance 9 and 16 parts of 25 come from the two.
    share = np.array([9 / 25, 16 / 25, 0.0])
    np.testing.assert_allclose(density.to_log_std, alone.to_log_std * share, atol=1e-12)


def test_without_any_feature_keys_are_the_mean() -> None:
    space, mean = key_space(np.zeros((4, 2))), np.arange(4.0)
    normals = antithetic_normals(np.random.default_rng(0), 3, 2)
    keys = draw_keys(space, mean, np.zeros(2), normals)
    np.testing.assert_array_equal(keys, np.tile(mean, (3, 1)))
    density = key_density(space, mean, np.zeros(2), keys)
    for numbers in (density.log_density, density.to_mean, density.to_log_std):
        assert not numbers.any()


def test_directions_that_hardly_vary_do_not_count() -> None:
    """Two columns a thousandth apart: their difference would outweigh all else by a million."""
    rng = np.random.default_rng(0)
    column = rng.standard_normal((50, 1))
    space = key_space(np.hstack([column, column + 1e-3 * rng.standard_normal((50, 1))]))
    assert space.basis.shape == (50, 1)
    # The density of what is kept is that of the draws all the same: the entropy of a normal, negative.
    log_std = np.log([2.0, 0.5])
    keys = draw_keys(space, np.zeros(50), log_std, rng.standard_normal((40_000, 2)))
    density = key_density(space, np.zeros(50), log_std, keys)
    spread = float(np.sqrt((space.projected**2) @ np.exp(2 * log_std))[0])
    entropy = 0.5 * np.log(2.0 * np.pi * np.e) + np.log(spread)
    assert density.log_density.mean() == pytest.approx(-entropy, abs=0.02)
    assert np.abs(density.to_mean).max() < 1.0


def spaces_of_graphs() -> list[KeySpace]:
    graphs = [build() for build in DEGENERATE]
    graphs += [random_graph(np.random.default_rng(seed), 30) for seed in range(3)]
    return [key_space(graph_features(graph, small_mcm(3)).exploration) for graph in graphs]


def test_every_graph_has_finite_densities() -> None:
    """Single ops, equal ops, columns that are all zero: what standardising leaves of them."""
    rng = np.random.default_rng(0)
    for space in spaces_of_graphs():
        num_ops, num_features = space.features.shape
        mean, log_std = rng.standard_normal(num_ops), 2 * rng.standard_normal(num_features)
        keys = draw_keys(space, mean, log_std, antithetic_normals(rng, 8, num_features))
        density = key_density(space, mean, log_std, keys)
        for numbers in (density.log_density, density.to_mean, density.to_log_std):
            assert np.isfinite(numbers).all()
        # Each direction's deviation is 1 when drawn: K on average.
        assert np.abs(density.to_log_std.sum(axis=1)).max() < 100 * space.basis.shape[1]
