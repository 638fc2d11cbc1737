"""Says in words why a candidate interval was refuted."""

from __future__ import annotations

import numpy as np

from go_opt.solver.refinement_kernels import ChainSearch
from go_opt.solver.refinement_problem import RefinementProblem
from go_opt.solver.refinement_states import EVERYTHING, StatePool


def refuted_because(problem: RefinementProblem, pool: StatePool, search: ChainSearch, ticks: int) -> str:
    """Where the chains within ``ticks`` end, by the labels of the last search.

    A label bounds the work that so many chips can have done; chains that have done less than
    the chips left require have no labels.
    """
    units, tick_us = problem.units, problem.tick_s * 1e6
    labels = int(search.level_end.max())
    furthest = int(np.argmax(search.label_work[:labels]))
    chip = int(np.searchsorted(search.level_end[search.level_end > 0], furthest, side="right"))
    state, work = int(search.label_state[furthest]), int(search.label_work[furthest])
    inside = np.unpackbits(pool.inside[state].view(np.uint8), bitorder="little")[: units.num_units]
    to_do = np.flatnonzero(inside == 0)
    filled = int(np.searchsorted(np.cumsum(units.unit_ticks[to_do]), ticks))
    first, last = problem.name_of(int(to_do[0])), problem.name_of(int(to_do[min(filled, len(to_do) - 1)]))
    enters = (
        f", with {pool.cut_bytes[state] / 1e6:.3g} MB or more to take in" if pool.cut_bytes[state] else ""
    )
    return (
        f"with {ticks * tick_us:.4g} us a chip no placement on {units.num_chips} chips gets beyond "
        f"{work * tick_us:.4g} of {pool.high[EVERYTHING] * tick_us:.4g} us of work in time: "
        f"chip {chip} is stuck at ops {first!r} … {last!r}{enters}"
    )
