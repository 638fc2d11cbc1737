"""Explains in a sentence why a candidate interval was refuted."""

from __future__ import annotations

import numpy as np

from go_opt.solver.certify.problem.problem import RefinementProblem, UnitGraph
from go_opt.solver.certify.states.chains import find_chain
from go_opt.solver.certify.states.open_fusion import ChainSearch
from go_opt.solver.certify.states.states import EVERYTHING, StatePool


def refuted_because(
    problem: RefinementProblem,
    units: UnitGraph,
    pool: StatePool,
    search: ChainSearch,
    ticks: int,
    dead_ticks: int,
) -> str:
    """Returns a sentence on where the chains of ``units`` within ``ticks`` end.

    A label of the search bounds the work done by a number of chips. Chains whose remaining work
    is too much for the remaining chips have no labels.
    """
    tick_us = problem.tick_s * 1e6
    memory = ""
    if units.counts_memory and find_chain(problem.units, pool, search, ticks, dead_ticks) != 0:
        memory = (
            f"; {units.chip.sram_bytes / 1e6:.3g} MB of memory per chip are too few: too many weights "
            "would have to stream from the host, or activations do not fit"
        )
    find_chain(units, pool, search, ticks, dead_ticks)
    labels = int(search.level_end.max())
    states, done = search.label_state[:labels], search.label_work[:labels]
    if not units.overlap and not units.replicates:
        # A label at its upper bound stands for the most work of its state.
        done = np.where(done < pool.give[states] + pool.cut[states], done, pool.high[states])
    furthest = int(np.argmax(done))
    chip = int(np.searchsorted(search.level_end[search.level_end > 0], furthest, side="right"))
    state, work = int(states[furthest]), int(done[furthest])
    inside = np.unpackbits(pool.inside[state].view(np.uint8), bitorder="little")[: units.num_units]
    to_do = np.flatnonzero(inside == 0)
    filled = int(np.searchsorted(np.cumsum(units.unit_ticks[to_do]), ticks))
    first, last = problem.name_of(int(to_do[0])), problem.name_of(int(to_do[min(filled, len(to_do) - 1)]))
    enters = f", which read at least {pool.cut_bytes[state] / 1e6:.3g} MB" if pool.cut_bytes[state] else ""
    return (
        f"no placement on {units.num_chips} chips has an interval of {ticks * tick_us:.4g} us: at most "
        f"{work * tick_us:.4g} of {pool.high[EVERYTHING] * tick_us:.4g} us of work fit before chip {chip}, "
        f"which cannot continue with ops {first!r} … {last!r}{enters}{memory}"
    )
