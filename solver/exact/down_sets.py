"""The exact dynamic program over down-sets (Tarnawski et al., NeurIPS 2020).

A placement whose chips can be put in an order, each reading only from itself and those
before it, is a chain of down-sets; a chip holds the difference of two. All down-sets are
enumerated, where they are not too many, and the cheapest chain is found: on a ring of like
chips (:mod:`go_opt.solver.exact.ring`), or on chips of several kinds around a host, in
any order (:mod:`go_opt.solver.exact.star`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from go_opt.solver.exact.lattice import DownSets, all_down_sets
from go_opt.solver.exact.ring import RingProblem, cheapest_ring_chain
from go_opt.solver.exact.star import StarProblem, cheapest_star_chain


@dataclass(frozen=True, eq=False)
class DownSetOptimum:
    """The optimum, or the proof that nothing is below the bound that was given."""

    placement: NDArray[np.int32] | None  # [U] chip of each unit; None: no plan is below `upper_s`
    objective_s: float  # of `placement`; infinite where there is none
    down_sets: int
    is_complete: bool  # False: the program stopped at its limit, and nothing is proven


def down_set_optimum(
    problem: RingProblem | StarProblem,
    *,
    max_ideals: int,
    upper_s: float = math.inf,
    max_pairs: float = math.inf,
) -> DownSetOptimum | None:
    """The cheapest placement below ``upper_s``; ``None``: there are more than ``max_ideals`` down-sets.

    Args:
      max_pairs: of down-sets that are looked at around a host, where there is no shorter way.
    """
    sets = all_down_sets(problem.units, max_ideals)
    return None if sets is None else cheapest_chain(problem, sets, upper_s, max_pairs)


def cheapest_chain(
    problem: RingProblem | StarProblem,
    sets: DownSets,
    upper_s: float = math.inf,
    max_pairs: float = math.inf,
) -> DownSetOptimum:
    """The cheapest placement below ``upper_s`` whose chips are differences of ``sets``."""
    is_complete = True
    if isinstance(problem, RingProblem):
        chain = cheapest_ring_chain(problem, sets, upper_s)
        chips = None if chain is None else np.arange(len(chain.down_sets) - 1)
    else:
        chain, chips, is_complete = cheapest_star_chain(problem, sets, upper_s, max_pairs)
    if chain is None or chips is None:
        return DownSetOptimum(None, math.inf, sets.num_sets, is_complete)
    placement = np.full(problem.units.num_units, -1, np.int32)
    for place in range(len(chips) - 1, -1, -1):
        placement[_members(sets, chain.down_sets[place + 1])] = chips[place]
    return DownSetOptimum(placement, chain.objective_s, sets.num_sets, is_complete)


def _members(sets: DownSets, down_set: np.int64) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(sets.words[down_set].view(np.uint8), bitorder="little"))
