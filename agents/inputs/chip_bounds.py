"""First and last chip of each op when the graph is stretched over as many chips as possible.

By itself, the adjacent rule allows every op on every chip, because a whole component may be
on one chip. Ops differ in their distance from the two ends. So a source is fixed to the first
chip, and the op farthest from it to the last chip it can reach. The solver's bounds
propagation gives the rest. This is a feature for the policy, not a restriction.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.solver import PlacementProblem
from go_opt.solver.problem.problem import span_from_sources
from go_opt.solver.propagation.adjacent import Domains, chip_runs, start_domains

Bounds = tuple[IntArray, IntArray]


def chip_bounds(problem: PlacementProblem, rank: IntArray) -> Bounds:
    """[U] first and last chip of each unit; without an order of chips, the chips that may run it.

    Args:
      rank: [U] canonical rank of each unit; it breaks ties between ends, so that the result does
        not depend on how units are stored.
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
    """[C] the unit with the largest value in each weak component; the lowest rank breaks ties."""
    best_first = np.lexsort((rank, -value, problem.component)).astype(np.int32)
    return best_first[np.unique(problem.component[best_first], return_index=True)[1]]


def _narrowed(problem: PlacementProblem, first_chip: IntArray | None, last_chip: IntArray) -> Domains:
    domains = start_domains(problem, first_chip, last_chip)
    # Propagation is complete under the adjacent rule: a chip left in a domain can be taken.
    assert domains is not None
    return domains
