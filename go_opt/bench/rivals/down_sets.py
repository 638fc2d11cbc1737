"""The dynamic program over down-sets as a rival: exact where they are few, nothing where they are not."""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.bench.rivals.placement_search import evaluate_units
from go_opt.bench.rivals.trial import Trial
from go_opt.bench.rivals.units import unit_problem
from go_opt.solver.exact.down_sets import down_set_optimum
from go_opt.solver.exact.ring import ring_problem

MOST_DOWN_SETS: Final = 300_000


def down_sets(trial: Trial, seed: int) -> None:
    """The optimum of the default kernels, streamed weights and memory left out; or it gives up.

    It knows no relays: where tensors may be relayed it lets them pass for nothing, and its
    plan is costed with them. Its optimum is a lower bound either way.
    """
    problem = trial.problem
    tables = problem.instance.tables
    are_alike = len(np.unique(tables.chip_kind)) == 1
    if not (tables.is_ring and problem.target.constraints.acyclic and are_alike):
        trial.notes.append("the program is of rings and chains of like chips with acyclic dataflow only")
        return
    units = unit_problem(problem)
    ring = ring_problem(tables, units, passing="adjacent" if problem.is_adjacent else "free")
    found = down_set_optimum(ring, max_ideals=MOST_DOWN_SETS)
    if found is None:
        trial.notes.append(f"gave up: more than {MOST_DOWN_SETS} down-sets")
    elif found.placement is not None:
        trial.bound_s = found.objective_s
        trial.notes.append(f"{found.down_sets} down-sets")
        evaluate_units(trial, units, found.placement[None])
