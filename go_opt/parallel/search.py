"""The fastest configuration of a step, exactly, and what no configuration is below.

Configurations are taken in the order of a closed-form bound; each is solved exactly unless a bound with the
memory of its ranks rules it out. The search ends when the bound passes the best. The proven bound is of all
schedules that run a micro-batch's backward pass on a rank in one piece, and with one stage a device keep no
more micro-batches than 1F1B does: first closed, where it decides also with whole layers and the memory of
ranks.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from go_opt.common.units import format_bytes
from go_opt.errors import InfeasibleError
from go_opt.parallel.case import Case
from go_opt.parallel.configuration import Configuration
from go_opt.parallel.division import best_division, load_divisions
from go_opt.parallel.space import Candidate, candidates
from go_opt.parallel.step import Step
from go_opt.result import OPTIMAL_GAP

CHOICES: Final = 3  # that are returned


@dataclass(frozen=True)
class StepPlan:
    """The best steps, of different degrees or micro-batches, and a bound on all steps of the space."""

    choices: tuple[Step, ...]
    lower_bound_s: float
    configurations: int
    solved: int
    is_complete: bool  # whether the first choice is the best of the space, as predicted
    wall_s: float

    @property
    def best(self) -> Step:
        return self.choices[0]

    @property
    def gap(self) -> float:
        return self.best.step_s / self.lower_bound_s - 1.0

    @property
    def status(self) -> str:
        return "OPTIMAL" if self.gap <= OPTIMAL_GAP else "FEASIBLE"


def plan_step(
    case: Case,
    budget_s: float = 5.0,
    should_stop: Callable[[], bool] = lambda: False,
    allows: Callable[[Configuration], bool] = lambda chosen: True,
) -> StepPlan:
    """The fastest step that fits into memory, within ``budget_s``, of configurations that ``allows`` accepts.

    Raises:
      InfeasibleError: no configuration fits, or the batch divides among no configuration.
    """
    load_divisions()
    begin = time.perf_counter()

    def is_over() -> bool:
        return time.perf_counter() - begin > budget_s or should_stop()

    ranked = candidates(case, allows)
    if not ranked:
        raise InfeasibleError(
            f"no configuration divides {case.batch} sequences among {case.machine.devices} devices.",
            is_proven=True,
        )
    ranked.sort(key=lambda one: one.formula_s(one.least_work_s))
    best: dict[tuple[int, ...], Step] = {}
    solved, is_complete = 0, True
    for one in ranked:
        worst_s = _worst(best)
        if one.formula_s(one.least_work_s) >= worst_s:
            break
        if best and is_over():
            is_complete = False
            break
        if one.formula_s(one.least_fitting_work_s) < worst_s:
            solved += 1
            found = solve(one, worst_s)
            if found is not None:
                _keep(best, found)
    if not best:
        raise InfeasibleError(_misfit(ranked), is_proven=True)
    choices = tuple(sorted(best.values(), key=lambda step: step.step_s))
    bound_s = _lower_bound(ranked, choices[0].step_s, is_over)
    wall_s = time.perf_counter() - begin
    return StepPlan(choices, bound_s, len(ranked), solved, is_complete, wall_s)


def solve(one: Candidate, at_most_s: float) -> Step | None:
    """The best layers and recomputation of ranks; None if no step is below ``at_most_s``."""
    seconds, kinds = one.table(at_most_s)
    layers, left_s = one.case.model.layers, at_most_s - one.fixed_s
    counts = best_division(seconds, one.block.head_s, layers, one.number, one.share, left_s)
    return one.step(counts, kinds) if counts.any() else None


def _key(step: Step) -> tuple[int, ...]:
    chosen = step.chosen
    return chosen.tensor, chosen.pipeline, chosen.data, chosen.expert, chosen.micro_batch


def _worst(best: dict[tuple[int, ...], Step]) -> float:
    return max(step.step_s for step in best.values()) if len(best) == CHOICES else math.inf


def _keep(best: dict[tuple[int, ...], Step], found: Step) -> None:
    key = _key(found)
    if key not in best or found.step_s < best[key].step_s:
        best[key] = found
    if len(best) > CHOICES:
        del best[max(best, key=lambda one: best[one].step_s)]


def _lower_bound(ranked: list[Candidate], best_s: float, is_over: Callable[[], bool]) -> float:
    """The least bound of all configurations, which is sharpened as long as it can be and there is time."""
    heap = [(one.schedule_s(one.least_work_s), 0, i) for i, one in enumerate(ranked)]
    heapq.heapify(heap)
    while heap:
        bound_s, sharpness, i = heap[0]
        if sharpness == 2 or bound_s >= best_s or is_over():
            return min(bound_s, best_s)
        one = ranked[i]
        if sharpness == 0:
            sharper_s = one.schedule_s(one.least_fitting_work_s)
        else:
            sharper_s = one.least_schedule_s(best_s)
        heapq.heapreplace(heap, (max(sharper_s, bound_s), sharpness + 1, i))
    return best_s


def _misfit(ranked: list[Candidate]) -> str:
    """Which configuration needs the least memory, and how much."""

    def needs(one: Candidate) -> float:
        per_rank = -(-one.case.model.layers // one.chosen.pipeline)
        ranks = one.ranks
        return float(per_rank * (ranks.state_bytes + ranks.in_flight[0] * ranks.kept_bytes[2]))

    least = min(ranked, key=needs)
    chosen, limit = least.chosen, least.case.memory_bytes
    degrees = f"tensor={chosen.tensor}, pipeline={chosen.pipeline} and zero={chosen.zero}"
    needed, held = format_bytes(int(needs(least))), format_bytes(limit)
    return f"no configuration fits into {held} of a device: with {degrees} layers alone need {needed}."
