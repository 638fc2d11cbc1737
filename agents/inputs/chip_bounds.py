"""First and last chip of each op when the graph is stretched over as many chips as it can be.

Without more, the adjacent rule lets every op lie on every chip: a whole component may sit
on one. What tells ops apart is how far each lies from the two ends, so the two are held
apart: a source on the first chip, the op farthest from it on the last it can reach. The
rest follows by the solver's bounds propagation. A feature of the policy, not a restriction.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.solver import PlacementProblem
from go_opt.solver.problem.problem import span_from_sources
from go_opt.solver.propagation.adjacent_domains import Domains, chip_runs, start_domains

Bounds = tuple[IntArray, IntArray]


def chip_bounds(problem: PlacementProblem, rank: IntArray) -> Bounds:
    """[U] first and last chip of each unit; chips that may run it where no order of chips is asked.

    Args:
      rank: [U] canonical rank of each unit; of ends equally far apart the first source and
        the last unit are taken, so that the answer does not depend on how units are stored.
    """
    free = start_domains(problem, None, None) if problem.acyclic else None
    if free is None:
        first, last = chip_runs(problem)
        return first, np.maximum(first, last)
    source = _best_of_component(problem, span_from_sources(problem), rank)
    last_chip = np.full(problem.num_units, problem.num_chips - 1, dtype=np.int32)
    last_chip[source] = free.lower[source]
    reached = _narrowed(problem, None, last_chip)
    farthest = _best_of_component(problem, reached.upper, -rank)
    first_chip = np.zeros(problem.num_units, dtype=np.int32)
    first_chip[farthest] = reached.upper[farthest]
    held = _narrowed(problem, first_chip, last_chip)
    return held.lower, held.upper


def _best_of_component(problem: PlacementProblem, value: IntArray, rank: IntArray) -> IntArray:
    """[C] the unit of the largest value, the lowest rank among equals, of each weak component."""
    best_first = np.lexsort((rank, -value, problem.component)).astype(np.int32)
    return best_first[np.unique(problem.component[best_first], return_index=True)[1]]


def _narrowed(problem: PlacementProblem, first_chip: IntArray | None, last_chip: IntArray) -> Domains:
    domains = start_domains(problem, first_chip, last_chip)
    # Propagation is complete under the adjacent rule: a chip left in a domain can be taken.
    assert domains is not None
    return domains
