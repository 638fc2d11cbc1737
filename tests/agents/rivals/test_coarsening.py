"""Contraction along chains leaves a DAG of few blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from go_opt.bench.rivals.trial import unit_problem
from tests.agents.rivals.cases import random_problem
from tests.benchmarks.metis_rival import coarsened
from tests.benchmarks.rival_units import unit_seconds
from tests.strategies import examples, seeds


@settings(max_examples=examples(40))
@given(seed=seeds)
def test_blocks_are_of_whole_kernels_and_acyclic(seed: int) -> None:
    problem = random_problem(seed, relays=False, max_ops=40)
    units = unit_problem(problem)
    seconds = unit_seconds(problem, units.unit_of_op).max(axis=0)
    block = coarsened(units, seconds, max(1, units.num_units // 3), float(seconds.sum()) / 8)
    coarse = unit_problem(problem, block)  # raises where a cycle is left
    assert coarse.num_units <= units.num_units
    for unit in range(units.num_units):
        assert len(np.unique(block[units.unit_of_op == unit])) == 1
    np.testing.assert_allclose(
        unit_seconds(problem, coarse.unit_of_op).sum(axis=1),
        unit_seconds(problem, units.unit_of_op).sum(axis=1),
    )


def test_a_chain_is_halved_evenly() -> None:
    from go_opt.bench.rivals import pose
    from tests.cli.conftest import chain
    from tests.strategies import small_mcm

    problem = pose(chain(8), small_mcm(2), relays=False, decide="placement")
    units = unit_problem(problem)
    assert coarsened(units, np.ones(8), 4, 2.0).tolist() == [0, 0, 2, 2, 4, 4, 6, 6]
    assert len(set(coarsened(units, np.ones(8), 1, 2.0).tolist())) == 1
    assert coarsened(units, np.ones(8), 8, 2.0).tolist() == list(range(8))
