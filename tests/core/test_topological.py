"""Sets of nodes that reach each other, beside networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from go_opt.common.topological import strong_components


@pytest.mark.parametrize("seed", range(60))
def test_components_are_those_of_networkx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 14))
    linked = rng.random((size, size)) < rng.choice([0.05, 0.1, 0.2, 0.5])
    found = strong_components([np.flatnonzero(row).tolist() for row in linked])
    expected = nx.strongly_connected_components(nx.from_numpy_array(linked, create_using=nx.DiGraph))
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


def test_a_long_chain_and_a_long_circle() -> None:
    size = 5000
    assert len(strong_components([[i + 1] for i in range(size - 1)] + [[]])) == size
    assert len(strong_components([[(i + 1) % size] for i in range(size)])) == 1
