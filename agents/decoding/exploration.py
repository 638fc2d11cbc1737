"""Perturbs keys in feature space, and computes their density.

    key = mean + Φ (std * ε),    Φ [N, F] the exploration features, ε Gaussian,

is a Gaussian on the subspace that Φ spans. With U an orthonormal basis of it and y = Uᵀ key,
G = Uᵀ Φ, the density is that of y: normal with mean Uᵀ mean and covariance C = G diag(std²) Gᵀ.
Directions along which Φ varies little are left out of U, so that C is well conditioned.
The low rank is deliberate: independent noise on each op's key gives orders that cut badly, and
teaches nothing about other graphs.

Axes: ``N`` ops, ``F`` features, ``K`` dimensions of the subspace, ``S`` draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray

# Directions with a smaller share of the largest singular value are drawn but not scored: their
# gradient, noise divided by variance, would dominate the others.
_LEAST_SHARE: Final = 0.25


@dataclass(frozen=True, eq=False)
class KeySpace:
    """The subspace in which the keys of one graph are perturbed."""

    features: FloatArray  # Φ [N, F]
    basis: FloatArray  # U [N, K], orthonormal columns

    @cached_property
    def projected(self) -> FloatArray:
        """G [K, F]."""
        return self.basis.T @ self.features


@dataclass(frozen=True, eq=False)
class KeyDensity:
    """Log-density of drawn keys under a mean and a spread, and its gradient."""

    log_density: FloatArray  # [S]
    to_mean: FloatArray  # [S, N] d log density / d mean
    to_log_std: FloatArray  # [S, F] d log density / d log std


def key_space(features: NDArray[np.floating]) -> KeySpace:
    """The subspace of ``features`` [N, F] (in the graph's own order of ops)."""
    columns = np.asarray(features, dtype=np.float64)
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    return KeySpace(columns, left[:, singular > _LEAST_SHARE * singular[0]])


def antithetic_normals(rng: np.random.Generator, num_draws: int, num_features: int) -> FloatArray:
    """ε [S, F] in pairs of opposite sign; the last is alone if S is odd."""
    half = rng.standard_normal(((num_draws + 1) // 2, num_features))
    return np.stack([half, -half], axis=1).reshape(-1, num_features)[:num_draws]


def draw_keys(space: KeySpace, mean: FloatArray, log_std: FloatArray, normals: FloatArray) -> FloatArray:
    """Keys [S, N] of ``mean`` [N] and ``log_std`` [F] at ``normals`` [S, F]."""
    return mean + (normals * np.exp(log_std)) @ space.features.T


def key_density(space: KeySpace, mean: FloatArray, log_std: FloatArray, keys: FloatArray) -> KeyDensity:
    """The density of ``keys`` [S, N] under ``mean`` [N] and ``log_std`` [F]."""
    projected = space.projected
    variance = np.exp(2.0 * log_std)
    covariance = (projected * variance) @ projected.T
    precision = np.linalg.inv(covariance)
    offset = (keys - mean) @ space.basis  # [S, K]
    pull = offset @ precision
    log_det = float(np.linalg.slogdet(covariance)[1])
    constant = len(covariance) * np.log(2.0 * np.pi)
    spread = variance * np.einsum("kf,kl,lf->f", projected, precision, projected)
    return KeyDensity(
        log_density=-0.5 * ((offset * pull).sum(axis=1) + log_det + constant),
        to_mean=pull @ space.basis.T,
        to_log_std=variance * (pull @ projected) ** 2 - spread,
    )
