"""METIS + repair: any partition becomes a valid pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

pytest.importorskip("pymetis")

from go_opt.bench.rivals import Limits, Trial, compete
from go_opt.bench.rivals.trial import unit_problem
from go_opt.solver import broken_rules
from go_opt.solver.problem.problem import TRIANGLE_ADJACENT
from tests.agents.rivals.cases import Clock, random_problem, toy_problem
from tests.benchmarks.library_rivals import LIBRARY_RIVALS
from tests.benchmarks.metis_rival import _numbered, _weighted_graph
from tests.benchmarks.rival_units import repaired
from tests.strategies import examples, seeds


@pytest.mark.parametrize("relays", [False, True])
@settings(max_examples=examples(30))
@given(seed=seeds)
def test_any_partition_is_repaired(relays: bool, seed: int) -> None:
    problem = random_problem(seed, relays=relays)
    units = unit_problem(problem)
    trial = Trial(problem, Limits(evaluations=1), "metis", Clock())
    part = np.random.default_rng(seed).integers(0, units.num_chips, units.num_units)
    fixed = repaired(trial, units, _numbered(units, part), seed)
    rules = units if relays else units._replace(triangle=TRIANGLE_ADJACENT)
    assert (broken_rules(rules, fixed) == 0).all()


def test_parts_are_numbered_by_their_mean_place() -> None:
    units = unit_problem(toy_problem())
    # Kernels embed, dense + relu, mix + add, logits stand at 0, 1, 2, 3.
    assert units.topological.tolist() == [0, 1, 2, 3]
    assert _numbered(units, np.array([7, 5, 7, 5])).tolist() == [0, 1, 0, 1]
    assert _numbered(units, np.array([9, 2, 2, 0])).tolist() == [0, 1, 1, 2]


def test_weights_by_hand() -> None:
    problem = toy_problem()
    units = unit_problem(problem)
    (xadj, adjncy), edges, vertices = _weighted_graph(
        Trial(problem, Limits(evaluations=1), "metis", Clock()), units
    )
    # x (2000 bytes) has two readers; a and y one each.
    assert xadj.tolist() == [0, 2, 4, 7, 8]
    assert adjncy.tolist() == [1, 2, 2, 0, 3, 0, 1, 2]
    np.testing.assert_allclose(edges / edges[0], [1, 1, 2, 1, 2, 1, 2, 2], rtol=1e-6)
    np.testing.assert_allclose(vertices / vertices.sum(), np.array([3.4, 14, 8, 14]) / 39.4, rtol=1e-6)
    assert vertices.sum() == pytest.approx(1e9, rel=1e-6)


def test_a_seed_is_a_run() -> None:
    problem = random_problem(5, relays=False, max_ops=40)
    runs = [compete(LIBRARY_RIVALS["metis"], problem, Limits(evaluations=20), 3, Clock()) for _ in range(2)]
    assert runs[0].curve == runs[1].curve
