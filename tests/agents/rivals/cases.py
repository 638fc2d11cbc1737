"""Problems for the rivals, by hand and at random, and the plans they must find."""

from __future__ import annotations

import itertools

import numpy as np

from go_opt.bench.rivals import Problem, pose
from go_opt.bench.rivals.trial import unit_problem
from go_opt.solver import broken_rules
from go_opt.solver.problem.problem import TRIANGLE_ADJACENT, TRIANGLE_OFF
from tests.strategies import random_graph, random_target, small_mcm, toy_graph


class Clock:
    """Each look at it takes ``step_s``."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self.step_s = 100.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def toy_problem(*, relays: bool = False, num_chips: int = 3, **changes) -> Problem:
    return pose(toy_graph(), small_mcm(num_chips, link_bytes_per_s=1e9, **changes), relays=relays)


def random_problem(seed: int, *, relays: bool, max_ops: int = 20, max_chips: int = 5, **fields) -> Problem:
    """On a ring with memory for everything, so that every rule is of placement."""
    rng = np.random.default_rng(seed)
    fields = {"topology": "ring", "num_kinds": 1, "sram_bytes": 10**9} | fields
    target = random_target(rng, num_chips=int(rng.integers(1, max_chips + 1)), **fields)
    return pose(random_graph(rng, int(rng.integers(1, max_ops + 1))), target, relays=relays)


def best_by_brute_force_s(problem: Problem) -> float:
    """Over all placements of the default kernels that leave no chip empty before a used one."""
    units = unit_problem(problem)
    chips = range(units.num_chips)
    rows = np.array(list(itertools.product(chips, repeat=units.num_units)), dtype=np.int32)
    used = np.sort(rows, axis=1)
    is_prefix = (used[:, 0] == 0) & (np.diff(used, axis=1) <= 1).all(axis=1)
    rule = TRIANGLE_ADJACENT if problem.is_adjacent else TRIANGLE_OFF
    rows = rows[is_prefix]
    rows = rows[broken_rules(units._replace(triangle=rule), rows) == 0][:, units.unit_of_op]
    order, kernels = (np.tile(row, (len(rows), 1)) for row in (problem.order, problem.kernels))
    return float(problem.interval_s(rows, order, kernels).min())
