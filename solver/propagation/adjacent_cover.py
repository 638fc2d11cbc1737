"""The no-skip rule in the adjacent core: closing gaps between chips, and anchors that prevent gaps.

Without bounds from the caller, components simply move down. If all chips must be used, or
bounds keep components from moving, some units are fixed in advance so that every required
chip is covered (:func:`anchor`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.compiling import compiled_inner, int32, int64, uncounted_inner
from go_opt.errors import InfeasibleError
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    PlacementProblem,
    component_width,
    span_from_sources,
)
from go_opt.solver.propagation.adjacent_domains import NO_UNIT, Domains, fix


class Cover(NamedTuple):
    """Chips that must be covered, and the units and components that can cover them."""

    last_chip: int  # chips 0 … last_chip must be used; -1: the rule is off
    uses_all: bool
    may_anchor: bool  # False if moving components down is always enough
    span: IntArray  # [U] see span_from_sources; 0 if any source is suitable
    width: IntArray  # [C] the most chips a component can use; 1 if any source is suitable


def what_to_cover(problem: PlacementProblem, start: Domains | None) -> Cover | None:
    """Returns the chips to cover given ``start``; ``None`` if the bounds certainly forbid it.

    Raises:
      InfeasibleError: all chips must be used, but no placement does, whatever the bounds.
    """
    last_of_all = problem.num_chips - 1
    if problem.no_skip == NO_SKIP_ALL:
        span = span_from_sources(problem)
        width = component_width(problem, span)
        most = int(width.sum())
        if most < problem.num_chips:
            raise InfeasibleError(
                f"not all {problem.num_chips} chips can be used: this graph uses at most {most} where every "
                "edge spans at most one chip."
            )
        if start is None or start.lower.min() > 0 or start.upper.max() < last_of_all:
            return None
        return Cover(last_of_all, True, True, span, width)
    span = np.zeros(problem.num_units, dtype=np.int32)
    width = np.ones(problem.num_components, dtype=np.int32)
    if problem.no_skip == NO_SKIP_OFF:
        return Cover(-1, False, False, span, width)
    if start is None or start.lower.min() > 0:
        return None
    # A single component only skips chips below itself. Several components must cover all chips
    # up to the highest chip that bounds force any unit onto.
    last_chip = 0 if problem.num_components == 1 else int(start.lower.max())
    return Cover(last_chip, False, bool((start.lower > 0).any()), span, width)


@compiled_inner
def anchor(
    problem: PlacementProblem, domains: Domains, cover: Cover, preference: FloatArray, turn: float
) -> bool:
    """Fixes sources and sinks so that chips 0 … last_chip are covered; returns False on failure.

    For each component, a source takes the next chip to cover, then a sink takes the highest
    chip it can. Ties go to the source of least and the sink of greatest preference. Adding
    ``turn`` modulo 1 to preferences makes another try choose other units.
    """
    used = np.zeros(problem.num_components, np.bool_)
    following = int64(0)
    while following <= cover.last_chip:
        source = NO_UNIT
        best = np.inf
        for unit in range(len(domains.lower)):
            if problem.predecessor_ptr[unit] < problem.predecessor_ptr[unit + 1]:
                continue
            component = problem.component[unit]
            wanted = min(cover.last_chip - following, cover.width[component] - 1)
            if used[component] or domains.lower[unit] > following or cover.span[unit] < wanted:
                continue
            if (preference[unit] + turn) % 1.0 < best:
                best = (preference[unit] + turn) % 1.0
                source = unit
        if source == NO_UNIT:
            return False
        component = problem.component[source]
        used[component] = True
        chip = min(following, int64(domains.upper[source]))
        fix(domains, int32(source), chip)
        highest = _raise_a_sink(problem, domains, component, cover.last_chip, chip, preference, turn)
        following = max(following, highest + 1)
    return True


@uncounted_inner
def _raise_a_sink(
    problem: PlacementProblem,
    domains: Domains,
    component: int,
    last_chip: int,
    chip: int,
    preference: FloatArray,
    turn: float,
) -> int:
    """Fixes a sink of ``component`` as high as possible; returns its chip (``chip`` if no sink is higher)."""
    sink = NO_UNIT
    highest = int64(chip)
    best = -np.inf
    for unit in range(len(domains.lower)):
        is_sink = problem.successor_ptr[unit] == problem.successor_ptr[unit + 1]
        if not is_sink or problem.component[unit] != component:
            continue
        reached = min(int64(domains.upper[unit]), last_chip)
        wish = (preference[unit] + turn) % 1.0
        if reached > highest or (reached == highest and sink != NO_UNIT and wish > best):
            highest = reached
            sink = unit
            best = wish
    if sink != NO_UNIT:
        fix(domains, int32(sink), highest)
    return highest


@compiled_inner
def close_gaps(problem: PlacementProblem, start: Domains, cover: Cover, chips: IntArray) -> bool:
    """Moves components of ``chips`` [U] down as far as needed and allowed; returns False if gaps remain.

    Lowest component first: a component above the first uncovered chip moves down to that chip,
    or as far as the bounds in ``start`` allow all its units to move.
    """
    if cover.last_chip < 0:
        return True
    num_components = problem.num_components
    num_chips = problem.num_chips
    low = np.empty(num_components, np.int64)
    high = np.empty(num_components, np.int64)
    slack = np.empty(num_components, np.int64)
    for c in range(num_components):
        low[c] = num_chips
        high[c] = -1
        slack[c] = num_chips
    for unit in range(len(chips)):
        c = problem.component[unit]
        low[c] = min(low[c], chips[unit])
        high[c] = max(high[c], chips[unit])
        slack[c] = min(slack[c], chips[unit] - start.lower[unit])
    first = np.empty(num_chips, np.int64)
    following = np.empty(num_components, np.int64)
    for chip in range(num_chips):
        first[chip] = -1
    for c in range(num_components):
        following[c] = first[low[c]]
        first[low[c]] = c
    covered = int64(0)
    moves = False
    for chip in range(num_chips):
        c = first[chip]
        while c >= 0:
            shift = min(max(int64(0), chip - covered), slack[c])
            if chip - shift > covered:
                return False
            covered = max(covered, high[c] - shift + 1)
            slack[c] = shift
            moves |= shift > 0
            c = following[c]
    if moves:
        for unit in range(len(chips)):
            chips[unit] -= slack[problem.component[unit]]
    return covered == num_chips if cover.uses_all else covered > cover.last_chip
