"""What rivals search: cuts of an order, and placements that are seen only through evaluations.

*Cuts*: greedy, one slicing, and slicing + random-key genetic order search, the strongest published rival:
Archer et al., "Pipeline parallelism for neural networks", ICML 2024.

*Placements* of the default kernels, as in Xie et al. (MLSys 2022), "Constrained reinforcement learning for
multi-chip modules", sections 4 and 5: random sampling, and annealing with FIX. If no tensor may pass a chip,
the adjacent core of the solver makes them valid. Otherwise acyclic dataflow is the only rule, and empty
chips are removed.

*Walks*: the learned policy with zero weights, with the shipped ones, and finetuned. A walk reads the cost
tables, as its features describe loads, traffic and memory.

Axes: ``S`` placements, ``U`` units, ``D`` chips.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from go_opt.agents.decoding.decode import WalkCase
from go_opt.agents.training.problems.rollout import PLACEMENT, labels
from go_opt.agents.training.updates.walk_learner import FINETUNING_RATE, HEAD_RATE, WalkLearner
from go_opt.bench.rivals.trial import Problem, Trial, unit_problem
from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env import list_schedule
from go_opt.explanations.moves import with_closure
from go_opt.search.shared.policies import shipped_policy
from go_opt.solver import (
    ForwardingMode,
    PlacementProblem,
    greedy_slicing,
    place_adjacent,
    sample,
    slice_order,
    slice_order_streamed,
)
from go_opt.solver.orders.cheapest import charged_slicing, streams_weights
from go_opt.solver.orders.genetic import AS_BY_DEFAULT, Keys, decoded, genetic_search, order_keys
from go_opt.solver.propagation.modes import Rule
from go_opt.solver.walk.walk import walk_problem

GENOMES: Final = 10_000  # of a genetic search, unless time or evaluations end it earlier


def greedy(trial: Trial, seed: int) -> None:
    """Equal shares of the work along the default order; the adjacent rule may move cuts later.

    With relays any cut is allowed, so both variants are tried.
    """
    problem = trial.problem
    for adjacent in (True, False) if problem.forwarding == "relayed" else (problem.is_adjacent,):
        cuts = greedy_slicing(problem.instance.tables, problem.order, problem.kernels, adjacent=adjacent)
        trial.one(cuts.placement, problem.order, problem.kernels)


def slice_default(trial: Trial, seed: int) -> None:
    """The cheapest slicing of the default order and kernels."""
    slice_along(trial, trial.problem.order)


def genetic(trial: Trial, seed: int) -> None:
    """Genetic search for the order of the default kernels; starts with the default order."""
    problem = trial.problem

    def interval_s(keys: Keys) -> float:
        return slice_along(trial, list_schedule(problem.graph, problem.kernels, keys))

    first = order_keys(problem.order, problem.kernels)
    genetic_search(interval_s, len(first), evaluations=GENOMES, seed=seed, first=first)


def genetic_with_fusion(trial: Trial, seed: int) -> None:
    """Genetic search for order and fusion together; the first generation has the defaults."""
    problem = trial.problem
    if problem.decide == "placement":
        trial.notes.append("kernels are fixed")
        return

    def interval_s(keys: Keys) -> float:
        kernels, order = decoded(problem.instance, keys)
        return slice_along(trial, order, kernels)

    place = order_keys(problem.order, problem.instance.order)
    first = np.append(place, np.full(len(place), AS_BY_DEFAULT))
    genetic_search(interval_s, len(first), evaluations=GENOMES, seed=seed, first=first)


def slice_along(trial: Trial, order: IntArray, kernels: IntArray | None = None) -> float:
    """Interval [s] of the cheapest slicing of ``order``; each plan counts as one evaluation.

    If weights are streamed, it also tries the cheapest slicing with the cost of streaming. With
    relays it repeats both without relays: on fewer chips, but without copies in memory.

    Args:
      kernels: [N] contiguous in ``order``; None means the default kernels.
    """
    problem = trial.problem
    kernels = problem.kernels if kernels is None else kernels
    given = (problem.instance.tables, order, kernels)
    min_chips = problem.instance.min_chips
    best_s = math.inf
    for forwarding in _forwarding_modes(problem):
        slicing = slice_order(*given, forwarding=forwarding, min_chips=min_chips)
        if slicing is None:
            trial.count_miss()
            continue
        reached_s = _evaluate(trial, slicing.placement, order, kernels)
        best_s = min(best_s, reached_s)
        if not streams_weights(slicing, reached_s):
            break
        cut = partial(slice_order_streamed, *given, forwarding=forwarding, min_chips=min_chips)
        charged = charged_slicing(slicing, reached_s, best_s, cut)
        if charged is not None:
            best_s = min(best_s, _evaluate(trial, charged.placement, order, kernels))
    return best_s


def _forwarding_modes(problem: Problem) -> Iterator[ForwardingMode]:
    """How slicings treat tensors that pass a chip, in the order to try."""
    if problem.forwarding == "relayed":
        yield "relayed"
    yield "free" if problem.forwarding == "free" else "adjacent"


def _evaluate(trial: Trial, placement: IntArray, order: IntArray, kernels: IntArray) -> float:
    """Evaluates a slicing; keeps the default order if only the placement may change."""
    problem = trial.problem
    return trial.one(placement, problem.order if problem.decide == "placement" else order, kernels)


BATCH: Final = 64
# The temperature of annealing at the start and at the end, in log seconds. Tuned on eight training graphs
# (MobileNetV2, ResNet-50, Swin-T, T5-small, ConvLSTM, SqueezeNet, EfficientNet-B0, BART) by the mean of
# log(T / slice) over medians of three to five seeds; seeds alone move it by 0.03. At 256 evaluations random
# sampling reaches 0.02, these -0.10. Steps of up to two chips reach -0.10, of four -0.07, of 36 -0.02;
# windows of units that move together -0.12 and, at 1,024, the same. A start at 0.02 or 0.2 changes less
# than seeds do at the end.
HOT: Final = 0.05
COLD: Final = 0.002
# Spent on the start of annealing, as from a single random placement it is far slower: on nine training graphs
# (geometric mean of greedy / best) 1.93 against 1.27 after 100 evaluations, 2.25 against 2.04 after 600.
FIRST_SHARE: Final = 0.1
MOST_REPEATS: Final = 20  # moves undone by FIX before the current plan is evaluated again


def random_sampling(trial: Trial, seed: int) -> None:
    """Draws with SAMPLE from uniform probabilities until the limits are spent."""
    units = unit_problem(trial.problem)
    rng = np.random.default_rng(seed)
    batch = 1  # small at first, so that slow samples rarely exceed the budget
    while True:
        size = int(min(batch, trial.left))
        batch = min(2 * batch, BATCH)
        evaluate_units(trial, units, random_placements(trial, units, rng, size))


def annealing(trial: Trial, seed: int) -> None:
    """Anneals from a random placement, the best of the first tenth of its evaluations or time."""
    units = unit_problem(trial.problem)
    rng = np.random.default_rng(seed)
    start, start_s = np.zeros(0, dtype=np.int32), math.inf
    while not len(start) or _spent_share(trial) < FIRST_SHARE:
        drawn = random_placements(trial, units, rng, 1)
        drawn_s = float(evaluate_units(trial, units, drawn)[0])
        if not len(start) or drawn_s < start_s:
            start, start_s = drawn[0], drawn_s
    anneal(trial, units, start, start_s, rng)


def annealing_greedy(trial: Trial, seed: int) -> None:
    """Anneals from the greedy plan."""
    problem = trial.problem
    units = unit_problem(problem)
    start = greedy_slicing(
        problem.instance.tables, problem.order, problem.kernels, adjacent=problem.is_adjacent
    )
    current = np.zeros(units.num_units, dtype=np.int32)
    current[units.unit_of_op] = start.placement
    current_s = float(evaluate_units(trial, units, current[None])[0])
    anneal(trial, units, current, current_s, np.random.default_rng(seed))


def anneal(
    trial: Trial,
    units: PlacementProblem,
    current: IntArray,
    current_s: float,
    rng: np.random.Generator,
) -> None:
    """From ``current`` [U], moves one unit by one chip, repairs, and accepts by Metropolis on log interval.

    The temperature falls with the spent share of evaluations or time.
    """
    while True:
        temperature = HOT * (COLD / HOT) ** _spent_share(trial)
        moved = _neighbour(trial, units, rng, current)
        moved_s = float(evaluate_units(trial, units, moved[None])[0])
        # Two invalid plans count as equal, so that the walk can leave them. So do two plans if one takes
        # no time.
        are_compared = 0.0 < current_s < math.inf and moved_s > 0.0
        worse = math.log(moved_s / current_s) if are_compared else 0.0
        if worse <= 0 or rng.random() < math.exp(-worse / temperature):
            current, current_s = moved, moved_s


def random_placements(
    trial: Trial, units: PlacementProblem, rng: np.random.Generator, number: int
) -> IntArray:
    """[S, U] drawn with SAMPLE from uniform probabilities."""
    rows = np.zeros((units.num_units, units.num_chips))
    rule: Rule = "adjacent" if trial.problem.is_adjacent else "full"
    return sample(units, rows, seed=int(rng.integers(2**31)), num_samples=number, rule=rule).placement


def evaluate_units(trial: Trial, units: PlacementProblem, placement: IntArray) -> FloatArray:
    """[S] intervals [s] of placements [S, U]; every chip runs its ops in the default order."""
    problem = trial.problem
    if problem.target.constraints.no_skip == "prefix":
        placement = np.stack([_without_gaps(row) for row in placement])
    of_ops = np.ascontiguousarray(placement[:, units.unit_of_op])
    order, kernels = (
        np.ascontiguousarray(np.broadcast_to(row, of_ops.shape)) for row in (problem.order, problem.kernels)
    )
    return trial(of_ops, order, kernels)


def _without_gaps(placement: IntArray) -> IntArray:
    """[U] the same parts on chips 0 … k - 1; no worse if all chips are of one kind."""
    return np.unique(placement, return_inverse=True)[1].astype(np.int32)


def _spent_share(trial: Trial) -> float:
    """The spent share of evaluations or of time, whichever is larger."""
    limits = trial.limits
    of_evaluations = trial.evaluations / limits.evaluations if limits.evaluations else 0.0
    return min(1.0, max(trial.elapsed_s / limits.budget_s, of_evaluations))


def _neighbour(
    trial: Trial, units: PlacementProblem, rng: np.random.Generator, current: IntArray
) -> IntArray:
    """[U] a valid placement near ``current``: one unit moves by one chip, others follow by the rules."""
    for _ in range(MOST_REPEATS):
        unit = int(rng.integers(units.num_units))
        proposal = current.copy()
        proposal[unit] = np.clip(proposal[unit] + rng.choice([-1, 1]), 0, units.num_chips - 1)
        if trial.problem.is_adjacent:
            # FIX keeps the units that it visits first, so it visits the moved unit first.
            rest = rng.permutation(np.delete(np.arange(units.num_units), unit))
            order = np.append(unit, rest)[None].astype(np.int32)
            moved: IntArray = place_adjacent(units, proposals=proposal[None], orders=order).placement[0]
        else:
            moved = with_closure(units, proposal, unit)
        if (moved != current).any():
            return moved
    return current


RANDOM_SHARE: Final = 0.75  # of the samples, until a walk is valid


def policy_untrained(trial: Trial, seed: int) -> None:
    """Draws walks with weights of zero: the control of what is learned."""
    _walk(trial, seed, WalkLearner.start())


def policy(trial: Trial, seed: int) -> None:
    """Draws walks with the shipped weights: nothing is learned here."""
    _walk(trial, seed, WalkLearner.start(shipped_policy().walk_weights))


def policy_finetuned(trial: Trial, seed: int) -> None:
    """Starts as ``policy``, and learns from each batch of its own samples."""
    _walk(trial, seed, WalkLearner.start(shipped_policy().walk_weights), learns=True)


def walk_case_of(problem: Problem) -> WalkCase:
    """The default order and kernels of ``problem`` for a walk."""
    tables = problem.instance.tables
    along = walk_problem(tables, problem.order, problem.kernels)
    return WalkCase(unit_problem(problem), along, tables, problem.order, problem.is_adjacent)


def _walk(trial: Trial, seed: int, learner: WalkLearner, *, learns: bool = False) -> None:
    """Where memory leaves few plans, all walks may be invalid.

    Then every second one is untrained, and after the first batch most samples are drawn at random.
    """
    case, rng = walk_case_of(trial.problem), np.random.default_rng(seed)
    misses: int | None = 0
    random_share = 0.0
    while True:
        size = int(min(PLACEMENT.samples, trial.left))
        at_random = int(random_share * size)
        if at_random:
            evaluate_units(trial, case.units, random_placements(trial, case.units, rng, at_random))
        parameters = learner.parameters(trial.problem.graph.num_ops)
        drawn = case.draw(*parameters, size - at_random, rng, misses)
        interval_s = evaluate_units(trial, case.units, drawn.placement)
        if misses is not None:
            misses = None if np.isfinite(interval_s).any() else misses + len(interval_s)
        random_share = 0.0 if misses is None else RANDOM_SHARE
        best = labels(-np.log(interval_s), PLACEMENT.elites)
        if learns and len(best):
            gradient = case.gradient(*parameters, drawn.is_cut[best])
            learner = learner.stepped(gradient.weights, FINETUNING_RATE)
            learner = learner.with_head(HEAD_RATE * gradient.head / len(best))
