"""The static rules of whole placements, compiled: the full-rule verifier of the hot loops.

O(U + E) per placement, plus O(chip dependencies) for the triangle rule. ``further[a]`` is the
bitset of chips that chip a reaches by two or more dependencies (three-chip form: exactly two).
The rule forbids ``depends[a] & further[a]``.
:mod:`go_opt.solver.verify.verifier` is its independent twin on plans.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, CodeArray, IntArray, WordArray
from go_opt.common.compiling import compiled, compiled_inner, uint64, uncounted_inner
from go_opt.solver.problem.problem import (
    NO_SKIP_ALL,
    NO_SKIP_OFF,
    TRIANGLE_ADJACENT,
    TRIANGLE_LONGEST_PATH,
    TRIANGLE_OFF,
    PlacementProblem,
)

# The first rule that a placement breaks, by code.
RULE_NAMES: Final = ("none", "chips", "kinds", "acyclic", "no_skip", "triangle")
NONE, CHIPS, KINDS, ACYCLIC, NO_SKIP, TRIANGLE = range(6)


def broken_rules(problem: PlacementProblem, placements: IntArray) -> CodeArray:
    """Returns the first rule [S] that each of ``placements`` [S, U] breaks, an index into ``RULE_NAMES``."""
    broken = np.zeros(len(placements), dtype=np.int8)
    _check_all(problem, placements, broken)
    return broken


@compiled
def _check_all(problem: PlacementProblem, placements: IntArray, broken: CodeArray) -> None:
    num_words = (problem.num_chips + 63) // 64
    for s in range(len(placements)):
        depends = np.zeros((problem.num_chips, num_words), np.uint64)
        is_used = np.zeros(problem.num_chips, np.bool_)
        broken[s] = _check_units(problem, placements[s], is_used)
        if broken[s] == NONE:
            broken[s] = _check_edges(problem, placements[s], depends)
        if broken[s] == NONE and not _is_gapless(problem, is_used):
            broken[s] = NO_SKIP
        if broken[s] == NONE and problem.triangle != TRIANGLE_OFF and _has_detour(problem, depends):
            broken[s] = TRIANGLE


@uncounted_inner
def _check_units(problem: PlacementProblem, placement: IntArray, is_used: BoolArray) -> int:
    for unit in range(len(placement)):
        chip = placement[unit]
        if chip < 0 or chip >= problem.num_chips:
            return CHIPS
        if not problem.can_run[problem.chip_kind[chip], unit]:
            return KINDS
        is_used[chip] = True
    return NONE


@uncounted_inner
def _check_edges(problem: PlacementProblem, placement: IntArray, depends: WordArray) -> int:
    goes_far = False
    for unit in range(len(placement)):
        chip = placement[unit]
        for i in range(problem.successor_ptr[unit], problem.successor_ptr[unit + 1]):
            reader = placement[problem.successor[i]]
            if problem.acyclic and reader < chip:
                return ACYCLIC
            goes_far |= problem.triangle == TRIANGLE_ADJACENT and reader > chip + 1
            if reader != chip:
                depends[chip, reader >> 6] |= uint64(1) << uint64(reader & 63)
    return TRIANGLE if goes_far else NONE


@uncounted_inner
def _is_gapless(problem: PlacementProblem, is_used: BoolArray) -> bool:
    if problem.no_skip == NO_SKIP_OFF:
        return True
    last = problem.num_chips - 1
    while problem.no_skip != NO_SKIP_ALL and not is_used[last]:
        last -= 1
    for chip in range(last):
        if not is_used[chip]:
            return False
    return is_used[last]


@compiled_inner
def _has_detour(problem: PlacementProblem, depends: WordArray) -> bool:
    """Returns whether a direct dependency has a detour; dependencies go to higher chips only."""
    num_chips, num_words = depends.shape
    further = np.zeros((num_chips, num_words), np.uint64)
    for a in range(num_chips - 1, -1, -1):
        for c in range(a + 1, num_chips):
            if (depends[a, c >> 6] >> uint64(c & 63)) & uint64(1):
                for w in range(num_words):
                    further[a, w] |= depends[c, w]
                    if problem.triangle == TRIANGLE_LONGEST_PATH:
                        further[a, w] |= further[c, w]
        for w in range(num_words):
            if depends[a, w] & further[a, w]:
                return True
    return False
