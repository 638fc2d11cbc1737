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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.common.units import format_bytes
from go_opt.errors import InfeasibleError
from go_opt.parallel.block import Block
from go_opt.parallel.configuration import RECOMPUTE, ZERO, Configuration, undivided
from go_opt.parallel.division import (
    Ranks,
    Waits,
    best_division,
    least_schedule_s,
    load_divisions,
    rank_seconds_table,
)
from go_opt.parallel.step import Case, Layers, Step, Sums, least_reduction_s, reduction_s
from go_opt.result import OPTIMAL_GAP

MOST_SEQUENCES: Final = 32  # of a micro-batch
MOST_STAGES: Final = 8  # of a device
_ROUNDING: Final = 1.0 - 1e-12  # bounds are rounded down


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]


def configurations(case: Case) -> Iterator[Configuration]:
    """Every configuration of the space; recomputation and layers of ranks are decided later.

    Tensor ranks are of one node. GPipe is left out: it takes as long as 1F1B and keeps more.
    """
    model, devices = case.model, case.machine.devices
    for t in _divisors(devices, case.machine.node):
        if undivided(model, t):
            continue
        for p in _divisors(devices // t, model.layers):
            for e in _divisors(devices // (t * p), model.experts):
                d = devices // (t * p * e)
                if model.experts % e == 0 and case.batch % (d * e) == 0:
                    yield from _of_degrees(case, Configuration(t, p, d, e))


def _of_degrees(case: Case, degrees: Configuration) -> Iterator[Configuration]:
    p, per_replica, layers = degrees.pipeline, case.batch // degrees.replicas, case.model.layers
    is_divisible = degrees.tensor > 1 and case.model.sequence % degrees.tensor == 0
    for b in _divisors(per_replica, MOST_SEQUENCES):
        for v in range(1, MOST_STAGES + 1):
            if v > 1 and (p == 1 or layers % v or p * v > layers or per_replica // b % p):
                continue
            has_replicas = degrees.replicas > 1
            ways = product(
                ZERO if has_replicas else ZERO[:1],
                (False, True) if is_divisible else (False,),
                (False, True) if has_replicas else (False,),
            )
            for zero, is_divided, overlaps in ways:
                yield replace(
                    degrees,
                    micro_batch=b,
                    schedule="interleaved" if v > 1 else "1f1b",
                    stages_per_device=v,
                    zero=zero,
                    sequence_parallel=is_divided,
                    overlap=overlaps,
                )


@dataclass(frozen=True)
class Candidate:
    """A configuration with what its bounds need."""

    case: Case
    chosen: Configuration
    block: Block
    sent_s: float  # a message between ranks, in one direction
    sums: Sums
    update_s: float

    @cached_property
    def number(self) -> float:
        """Micro-batches."""
        return float(self.chosen.micro_batches(self.case.batch))

    @cached_property
    def once_s(self) -> float:
        """Reduction and optimizer."""
        layers = self.case.model.layers
        return reduction_s(self.sums, self.chosen, self.block, layers) + self.update_s

    def least_once_s(self, seconds: FloatArray) -> FloatArray:
        """[K] at most what any schedule leaves, by layers of the first rank of so many seconds at least."""
        return least_reduction_s(self.sums, self.chosen, self.block, seconds) + self.update_s

    @cached_property
    def share(self) -> float:
        return 1.0 / self.chosen.stages_per_device

    @cached_property
    def least_work_s(self) -> float:
        """Of a micro-batch on all ranks, without recomputation and limits of memory."""
        return self.case.model.layers * self.block.layer_s[0] + self.block.head_s

    @cached_property
    def fixed_s(self) -> float:
        """Of the predicted step what no division of layers changes."""
        return self.once_s + 2.0 * self.sent_s * self.case.waits(self.chosen)

    def formula_s(self, work_s: float) -> float:
        """At most the predicted step if all ranks together have ``work_s`` in a micro-batch: equal ranks."""
        ranks = self.chosen.pipeline
        return (work_s / ranks * (self.number + (ranks - 1) * self.share) + self.fixed_s) * _ROUNDING

    def schedule_s(self, work_s: float) -> float:
        """At most what any schedule takes: ranks whose shares fall by 1 - share / m, all equally long."""
        ranks, number, share = self.chosen.pipeline, self.number, self.share
        fall = 1.0 - (1.0 - share / number) ** ranks
        received_s = number * (2 * self.chosen.stages_per_device - 1) * self.sent_s  # at the first rank
        return (share * work_s / fall + received_s + self._least_once_s) * _ROUNDING

    @cached_property
    def _least_once_s(self) -> float:
        """Whatever the first rank has: all layers that others leave, recomputed."""
        v, ranks = self.chosen.stages_per_device, self.chosen.pipeline
        counts = np.arange(self.case.model.layers - (ranks - 1) * v + 1, dtype=np.float64)
        return float(self.least_once_s(counts * max(self.block.layer_s))[v:].min())

    @cached_property
    def waits(self) -> Waits:
        """Each stage but the last receives gradients, each but the first inputs."""
        ranks, v = self.chosen.pipeline, self.chosen.stages_per_device
        own = np.full(ranks, 2.0 * v)
        ahead = np.full(ranks, 2.0)
        own[0] -= 1.0
        own[-1] -= 1.0
        ahead[0] = 1.0
        return Waits(own * self.sent_s, ahead * self.sent_s)

    @cached_property
    def ranks(self) -> Ranks:
        """What layers cost on each rank."""
        case, chosen, block = self.case, self.chosen, self.block
        number = chosen.pipeline
        last = np.arange(number) == number - 1
        held = [case.state_bytes(chosen, 0, is_end=rank in (0, number - 1)) for rank in range(number)]
        of_layer = case.state_bytes(chosen, 1, is_end=False) - case.state_bytes(chosen, 0, is_end=False)
        return Ranks(
            np.array(block.layer_s),
            np.array(block.kept_bytes),
            np.array(block.working_bytes),
            of_layer,
            np.array([case.in_flight(chosen, rank) for rank in range(number)], np.float64),
            case.memory_bytes - np.array(held),
            block.head_bytes * last,
            block.head_s * last,
            chosen.stages_per_device,
        )

    @cached_property
    def least_fitting_work_s(self) -> float:
        """As ``least_work_s``, with the memory of each rank, layers divisible; infinite if it holds too few.

        A rank takes layers that recompute nothing until its memory is full, then turns some into layers that
        recompute more, which makes room for further ones: its seconds are convex in its layers.
        """
        ranks, left = self.ranks, float(self.case.model.layers)
        layer = ranks.state_bytes + ranks.in_flight[:, None] * ranks.kept_bytes  # [P, 3]
        free = np.maximum(ranks.free_bytes - ranks.least_working_bytes, 0.0)
        held = free[:, None] / layer  # layers of one kind that fit
        sizes, slopes = [held[:, 0]], [np.full(len(held), ranks.layer_s[0])]
        # The lower convex hull of the points (layers, seconds) of ranks full with one kind.
        seconds = held * ranks.layer_s
        direct = _slope(held[:, 0], held[:, 2], seconds[:, 0], seconds[:, 2])
        first = _slope(held[:, 0], held[:, 1], seconds[:, 0], seconds[:, 1])
        second = _slope(held[:, 1], held[:, 2], seconds[:, 1], seconds[:, 2])
        bends = (first < second) & (held[:, 1] < held[:, 2])
        sizes += [np.where(bends, held[:, 1], held[:, 2]) - held[:, 0], (held[:, 2] - held[:, 1]) * bends]
        slopes += [np.where(bends, first, direct), np.where(bends, second, direct)]
        size, slope = np.concatenate(sizes), np.concatenate(slopes)
        order = np.argsort(slope, kind="stable")
        taken = np.minimum(np.cumsum(np.maximum(size[order], 0.0)), left)
        if taken[-1] < left * (1.0 - 1e-9):
            return float("inf")
        return float(np.diff(taken, prepend=0.0) @ np.where(np.isfinite(slope[order]), slope[order], 0.0)) + (
            self.block.head_s
        )

    def table(self, at_most_s: float) -> tuple[FloatArray, IntArray]:
        """:func:`rank_seconds_table` of as many layers as steps below ``at_most_s`` have."""
        ranks, layers = self.chosen.pipeline, self.case.model.layers
        most = layers - (ranks - 1) * self.ranks.unit
        if np.isfinite(at_most_s):
            most = min(
                most, int((at_most_s - self._least_once_s) / (self.number * self.block.layer_s[0])) + 1
            )
        seconds, kinds = rank_seconds_table(self.ranks, max(most, 1))
        return seconds, kinds

    def least_schedule_s(self, at_most_s: float) -> float:
        """At most what any schedule takes, with whole layers and the memory of ranks; or ``at_most_s``."""
        seconds, _ = self.table(at_most_s)
        least_s: float = least_schedule_s(
            seconds,
            self.waits,
            self.least_once_s(seconds[0] - self.ranks.more_s[0]),
            self.ranks.in_flight,
            self.case.model.layers,
            self.number,
            self.share,
            at_most_s,
        )
        return least_s

    def step(self, counts: IntArray, kinds: IntArray) -> Step:
        """The step with so many layers on each rank; ``kinds`` is of :meth:`table`."""
        layers: list[Layers] = []
        for rank, count in enumerate(counts.tolist()):
            some, all_again = kinds[rank, count].tolist()
            layers.append((count - some - all_again, some, all_again))
        used = [name for kind, name in enumerate(RECOMPUTE) if any(row[kind] for row in layers)]
        return Step(self.case, replace(self.chosen, recompute=used[-1]), tuple(layers))


def _slope(x: FloatArray, y: FloatArray, from_s: FloatArray, to_s: FloatArray) -> FloatArray:
    slope = np.full(len(x), np.inf)
    np.divide(to_s - from_s, y - x, out=slope, where=y > x)
    return slope


def candidate(case: Case, chosen: Configuration) -> Candidate:
    """One configuration."""
    of_once = case.sums(chosen), case.optimizer_s(chosen)
    return Candidate(case, chosen, case.block(chosen), case.message_s(chosen), *of_once)


def candidates(case: Case, allows: Callable[[Configuration], bool] = lambda chosen: True) -> list[Candidate]:
    """All configurations that ``allows`` accepts."""
    blocks: dict[tuple[int, int, int, bool], Block] = {}
    messages, once = dict[tuple[object, ...], float](), dict[tuple[object, ...], tuple[Sums, float]]()
    found = []
    for chosen in filter(allows, configurations(case)):
        key = chosen.tensor, chosen.expert, chosen.micro_batch, chosen.sequence_parallel
        if key not in blocks:
            blocks[key] = case.block(chosen)
        sent = (*key, chosen.pipeline, chosen.schedule)
        if sent not in messages:
            messages[sent] = case.message_s(chosen)
        number = chosen.micro_batches(case.batch) if chosen.zero > 1 else 0
        ends = (chosen.tensor, chosen.pipeline, chosen.expert, chosen.zero, number)
        if ends not in once:
            once[ends] = case.sums(chosen), case.optimizer_s(chosen)
        found.append(Candidate(case, chosen, blocks[key], messages[sent], *once[ends]))
    return found


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
