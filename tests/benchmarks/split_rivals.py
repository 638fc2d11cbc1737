"""Rivals that decide splits and placements together, on the evaluator of ``go-opt bench``, at equal time.

``flexflow``: Markov chain Monte Carlo over the parts of each op and the chip of each kernel (Jia et al.,
"Beyond data and model parallelism for deep neural networks", MLSys 2019, section 6). A proposal changes one
op: its parts, which go to chips one after the other, or its chip; it is made valid by the same repair as in
annealing of placements.

``gemini``: annealing of the spatial mapping of layer pipelines (Cai et al., "Gemini: mapping and architecture
co-exploration for large-scale DNN chiplet accelerators", HPCA 2024, section IV): chips run segments of the
default order; a proposal changes the parts of an op, or moves a cut between two segments.

Both start from equal work along the default order and know the same ops, factors and rules as go-opt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

from go_opt.bench.rivals.searches import _neighbour
from go_opt.bench.rivals.trial import Limits, Problem, Trial, pose, unit_problem
from go_opt.common.arrays import IntArray
from go_opt.env import Target
from go_opt.env.copies.splits import split_graph
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan, Split
from go_opt.model.start import OpStart, Start
from go_opt.solver.verify.verifier import verify
from tests.benchmarks.rival_units import repaired

HOT: Final = 0.05  # the temperatures of the annealing of placements, in log seconds
COLD: Final = 0.002
PARTS_SHARE: Final = 0.1  # of proposals, that change the parts of an op


class Walk:
    """Metropolis on the log interval, with a temperature that falls with the time."""

    def __init__(
        self, graph: Graph, target: Target, most: tuple[Split, ...], budget_s: float, seed: int
    ) -> None:
        """``most``: the ops that may be split, with the most parts of each."""
        self.graph, self.target, self.most, self.budget_s = graph, target, most, budget_s
        self.rng = np.random.default_rng(seed)
        self.best_s = math.inf
        self.best: Plan | None = None
        self.problem_of = lru_cache(maxsize=256)(self._problem)
        self.started_s = time.monotonic()

    def _problem(self, parts: tuple[int, ...]) -> Problem:
        chosen = [
            Split(op.op, op.factor, number, op.joined)
            for op, number in zip(self.most, parts, strict=True)
            if number > 1
        ]
        graph = split_graph(self.graph, tuple(chosen)) if chosen else self.graph
        return pose(graph, self.target, relays=True)

    def spent(self) -> float:
        return (time.monotonic() - self.started_s) / self.budget_s

    def is_taken(self, problem: Problem, chips: IntArray, now_s: float, then_s: float) -> bool:
        """Whether the walk goes to a placement; the best verified one is kept."""
        if now_s < self.best_s:
            plan = problem.plan(chips, problem.order, kernels_of(problem, chips), "rival")
            if verify(problem.graph, problem.target, plan):
                now_s = math.inf
            else:
                self.best_s, self.best = now_s, plan
        if not math.isfinite(then_s) or now_s <= then_s:
            return True
        temperature = HOT * (COLD / HOT) ** min(1.0, self.spent())
        worse = math.log(now_s / then_s) if math.isfinite(now_s) else math.inf
        return bool(self.rng.random() < math.exp(-worse / temperature))

    def other_parts(self, parts: tuple[int, ...]) -> tuple[int, ...]:
        """One op with another number of parts, a power of two up to its most."""
        i = int(self.rng.integers(len(parts)))
        menu = [2**power for power in range(self.most[i].parts.bit_length())]
        return (*parts[:i], int(self.rng.choice(menu)), *parts[i + 1 :])


def equal_work(problem: Problem) -> IntArray:
    """[N] chips, with as much work on each along the default order as the ops allow."""
    work = problem.graph.op_flops[problem.order] + 1.0
    share = (np.cumsum(work) - work / 2) / work.sum()
    chips = np.empty(problem.graph.num_ops, dtype=np.int32)
    chips[problem.order] = (share * problem.target.num_chips).astype(np.int32)
    return closed_up(chips)


def closed_up(chips: IntArray) -> IntArray:
    return np.unique(chips, return_inverse=True)[1].astype(np.int32)


def kernels_of(problem: Problem, chips: IntArray) -> IntArray:
    """[N] the default kernels, those on several chips in pieces."""
    pairs = np.stack([problem.kernels, chips])
    return np.unique(pairs, axis=1, return_inverse=True)[1].astype(np.int32)


def interval_s(problem: Problem, chips: IntArray) -> float:
    rows = (np.ascontiguousarray(row[None]) for row in (chips, problem.order, kernels_of(problem, chips)))
    return float(problem.interval_s(*rows)[0])


Step = Callable[[Walk, Problem, Problem, IntArray], IntArray]


def _walked(walk: Walk, step: Step) -> None:
    """Proposals of ``step``, which takes the problems before and after a change of parts, and chips."""
    parts = tuple(1 for _ in walk.most)
    problem = walk.problem_of(parts)
    chips, now_s = equal_work(problem), math.inf
    while walk.spent() < 1.0:
        other = walk.other_parts(parts) if walk.rng.random() < PARTS_SHARE else parts
        try:
            there = walk.problem_of(other)
        except PlanError:  # too few rows
            continue
        moved = step(walk, problem, there, chips)
        cost_s = interval_s(there, moved)
        if walk.is_taken(there, moved, cost_s, now_s):
            parts, problem, chips, now_s = other, there, moved, cost_s


def flexflow(walk: Walk) -> None:
    def step(walk: Walk, problem: Problem, there: Problem, chips: IntArray) -> IntArray:
        units = unit_problem(there)
        of_units = np.zeros(units.num_units, dtype=np.int32)
        of_units[units.unit_of_op] = chips if there is problem else carried(problem.graph, chips, there)
        trial = Trial(there, Limits(budget_s=walk.budget_s), "flexflow")
        if there is problem:
            of_units = _neighbour(trial, units, walk.rng, of_units)
        candidates = repaired(trial, units, of_units, seed=0)
        moved = [closed_up(np.asarray(row)[units.unit_of_op]) for row in candidates]
        return min(moved, key=lambda row: interval_s(there, row))

    _walked(walk, step)


def carried(graph: Graph, chips: IntArray, there: Problem) -> IntArray:
    """Chips by the names of ops; parts on chips one after the other, from that of their op.

    An op whose parts are not joined is where its first part is, of however many; what takes rows is where
    these are.
    """
    chip_of = dict(zip(graph.op_names, chips.tolist(), strict=True))
    for name, chip in list(chip_of.items()):
        op, mark, part = name.partition("/part ")
        if mark and part.startswith("1 of "):
            chip_of.setdefault(op, chip)
    found, last = {}, there.target.num_chips - 1
    for name in there.graph.op_names:
        op, _, part = name.partition("/part ")
        behind = int(part.split()[0]) - 1 if part and name not in chip_of else 0
        if name in chip_of or op in chip_of:
            found[name] = OpStart(min(last, chip_of.get(name, chip_of.get(op, 0)) + behind))
    return Start(found).on(there.graph).chip


def gemini(walk: Walk) -> None:
    def step(walk: Walk, problem: Problem, there: Problem, chips: IntArray) -> IntArray:
        if there is problem:
            return cut_moved(there, chips, walk.rng)
        if walk.rng.random() < 0.5:
            return equal_work(there)
        return along_order(there, carried(problem.graph, chips, there))

    _walked(walk, step)


def along_order(problem: Problem, chips: IntArray) -> IntArray:
    result = np.empty_like(chips)
    result[problem.order] = np.maximum.accumulate(chips[problem.order])
    return closed_up(result)


def cut_moved(problem: Problem, chips: IntArray, rng: np.random.Generator) -> IntArray:
    """A cut between two segments moved by some ops, or another one drawn anew."""
    row = chips[problem.order]
    cuts = np.flatnonzero(np.diff(row)) + 1
    if len(cuts) == 0:
        return chips
    i = int(rng.integers(len(cuts)))
    step = int(rng.choice([-1, 1])) * int(rng.integers(1, 6))
    cuts = (
        np.delete(cuts, i)
        if rng.random() < 0.1
        else np.where(np.arange(len(cuts)) == i, cuts[i] + step, cuts)
    )
    if len(cuts) < problem.target.num_chips - 1 and rng.random() < 0.2:
        cuts = np.append(cuts, rng.integers(1, len(row)))
    result = np.empty_like(chips)
    result[problem.order] = np.searchsorted(np.sort(cuts), np.arange(len(row)), side="right")
    return closed_up(np.minimum(result, problem.target.num_chips - 1))


RIVALS: Final[dict[str, Callable[[Walk], None]]] = {"flexflow": flexflow, "gemini": gemini}
