"""Targets with faster links."""

from __future__ import annotations

import numpy as np
import pytest

from go_opt.bench.matches import with_links_scaled
from go_opt.env import load_target
from go_opt.errors import InvalidInputError


@pytest.mark.parametrize("name", ["mcm-6x6", "gpu-4", "mcm-6x6:paper"])
def test_links_change_and_nothing_else(name: str) -> None:
    target = load_target(name)
    fast = with_links_scaled(target, 8)
    np.testing.assert_allclose(fast.topology.rate_bytes_per_s, 8 * target.topology.rate_bytes_per_s)
    assert fast.host_in_bytes_per_s == target.host_in_bytes_per_s
    assert (fast.kinds, fast.constraints, fast.overlap) == (target.kinds, target.constraints, target.overlap)
    assert fast.name == f"{target.name}, links x8"
    assert fast.analytical_effects == target.analytical_effects
    assert fast.fingerprint != target.fingerprint
    assert with_links_scaled(target, 1) is target


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_scales(scale: float) -> None:
    with pytest.raises(InvalidInputError, match="link_scale must be above zero"):
        with_links_scaled(load_target("mcm-6x6"), scale)
