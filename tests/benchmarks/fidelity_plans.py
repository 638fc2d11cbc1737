"""Plans to simulate: random valid ones, and good ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from go_opt.agents.decoding.decode import walk_case
from go_opt.common.arrays import IntArray
from go_opt.env import (
    CostTables,
    Target,
    cost_tables,
    evaluate_batch,
    greedy_fusion,
    list_schedule,
    loop_roles,
)
from go_opt.env.kernels.numbering import number_kernels
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate
from go_opt.solver import ForwardingMode, placement_problem, sample, slice_order
from go_opt.solver.orders import fixed_orders, random_orders
from go_opt.solver.orders.instance import instance
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.walk.walk import NUM_FEATURES
from tests.solver.brute_force import segments_of

NUM_ORDERS = 16  # structured random orders tried for the best slice
WITHIN = 1.5  # of the best slice, by the model
NOISES = (0.01, 0.03, 0.1, 0.3)  # standard deviations of keys that fall from 1 to 0 along an order
MOST_TRIES = 5  # draws for each plan asked for

Ints = IntArray


class PlanArrays(NamedTuple):
    """One plan, or a batch of plans."""

    placement: Ints  # [N] or [B, N]
    order: Ints
    fusion_group: Ints


@dataclass(frozen=True, eq=False)
class Case:
    """What drawing needs of a graph on a target."""

    graph: Graph
    target: Target
    tables: CostTables
    default: Ints
    fusion_group: Ints

    @property
    def forwarding(self) -> ForwardingMode:
        return "free" if self.target.constraints.triangle == "off" else "adjacent"


def case_of(graph: Graph, target: Target) -> Case:
    default = np.arange(graph.num_ops, dtype=np.int32)
    return Case(graph, target, cost_tables(graph, target), default, greedy_fusion(loop_roles(graph), default))


def random_plans(case: Case, count: int, seed: int) -> PlanArrays:
    """Up to a tenth random orders with cheapest cuts, four tenths with random cuts; the rest SAMPLE, uniform.

    A random order is the list schedule of independent uniform keys, one a kernel; random
    cuts are drawn uniformly from all valid ones (likelihood slicing with uniform rows).
    """
    rng = np.random.default_rng(seed)
    draws = (_sliced_random_orders(case, rng), _random_cuts(case, rng), _samples(case, rng))
    return _drawn(case, draws, (count // 10, count * 4 // 10, count), np.inf)


def good_plans(case: Case, count: int, seed: int) -> PlanArrays:
    """Two kinds up to a third, a third kind the rest: within ``WITHIN`` of the best slice by the model.

    The best of the default, the depth, the height and ``NUM_ORDERS`` structured random orders;
    then its order perturbed and sliced again, some of its kernels split and sliced again, and
    one to three of its cuts moved by up to four kernels.
    """
    rng = np.random.default_rng(seed)
    order, slicing, best_s = _best_slice(case, seed)
    draws = (
        _perturbed_orders(case, order, rng),
        _moved_cuts(case, order, slicing, rng),
        _split_kernels(case, order, rng),
    )
    return _drawn(case, draws, (count // 3, count // 3, count), WITHIN * best_s)


def _samples(case: Case, rng: np.random.Generator) -> Iterator[PlanArrays]:
    problem = placement_problem(case.graph, case.target, case.fusion_group)
    rows = np.zeros((problem.num_units, case.target.num_chips))
    while True:
        drawn = sample(problem, rows, seed=int(rng.integers(2**31)), num_samples=16)
        for placement in drawn.placement[:, problem.unit_of_op]:
            yield PlanArrays(placement, case.default, case.fusion_group)


def _random_order(case: Case, rng: np.random.Generator) -> Ints:
    kernel_of = number_kernels(case.default, case.fusion_group)
    return list_schedule(case.graph, kernel_of, rng.random(int(kernel_of.max()) + 1))


def _random_cuts(case: Case, rng: np.random.Generator) -> Iterator[PlanArrays]:
    on, untrained = instance(case.graph, case.target), (np.zeros(NUM_FEATURES), np.zeros(case.graph.num_ops))
    while True:
        order = _random_order(case, rng)
        walks = walk_case(on, order, case.fusion_group)
        placement = walks.draw(*untrained, 1, rng).placement[0, walks.units.unit_of_op]
        yield PlanArrays(placement, order, case.fusion_group)


def _sliced_random_orders(case: Case, rng: np.random.Generator) -> Iterator[PlanArrays]:
    while True:
        yield from _sliced(case, _random_order(case, rng), case.fusion_group)


def _sliced(case: Case, order: Ints, group: Ints) -> Iterator[PlanArrays]:
    slicing = slice_order(case.tables, order, group, forwarding=case.forwarding)
    if slicing is not None:
        yield PlanArrays(slicing.placement, order, group)


def _best_slice(case: Case, seed: int) -> tuple[Ints, Candidate, float]:
    """The order, its slicing, and the interval by the model, streamed weights included."""
    orders = [case.default, *(order for _, order in fixed_orders(case.graph, case.fusion_group))]
    orders += islice(random_orders(case.graph, case.tables, case.fusion_group, seed), NUM_ORDERS)
    found = []
    for number, order in enumerate(orders):
        slicing = slice_order(case.tables, order, case.fusion_group, forwarding=case.forwarding)
        if slicing is not None:
            interval_s, _ = _model(case, PlanArrays(slicing.placement, order, case.fusion_group))
            found.append((interval_s, number, order, slicing))
    best_s, _, order, slicing = min(found, key=lambda row: row[:2])
    return order, slicing, best_s


def _perturbed_orders(case: Case, order: Ints, rng: np.random.Generator) -> Iterator[PlanArrays]:
    kernel_of = number_kernels(case.default, case.fusion_group)
    num_kernels = int(kernel_of.max()) + 1
    place = np.empty(num_kernels)
    place[kernel_of[order]] = np.arange(len(order)) / len(order)
    while True:
        keys = 1.0 - place + rng.choice(NOISES) * rng.standard_normal(num_kernels)
        yield from _sliced(case, list_schedule(case.graph, kernel_of, keys), case.fusion_group)


def _split_kernels(case: Case, order: Ints, rng: np.random.Generator) -> Iterator[PlanArrays]:
    kernel_of = number_kernels(order, case.fusion_group)
    num_kernels = int(kernel_of.max()) + 1
    while True:
        is_split = rng.random(num_kernels) < rng.uniform(0.02, 0.5)
        begins = np.diff(kernel_of[order], prepend=-1) > 0
        group = np.empty_like(case.fusion_group)
        group[order] = np.cumsum(begins | is_split[kernel_of[order]]) - 1
        yield from _sliced(case, order, group)


def _moved_cuts(case: Case, order: Ints, best: Candidate, rng: np.random.Generator) -> Iterator[PlanArrays]:
    sequence = kernel_sequence(case.tables, order, case.fusion_group, adjacent=case.forwarding == "adjacent")
    best_cuts, _ = segments_of(best)
    while len(best_cuts) > 2:
        cuts = best_cuts.copy()
        for cut in rng.integers(1, len(cuts) - 1, size=int(rng.integers(1, 4))):
            cuts[cut] += rng.integers(-4, 5)
        if (np.diff(cuts) > 0).all() and (cuts[1:] >= sequence.reach[cuts[:-1]]).all():
            chip = np.repeat(np.arange(len(cuts) - 1, dtype=np.int32), np.diff(cuts))
            yield PlanArrays(chip[sequence.kernel_of], order, case.fusion_group)
        else:
            yield PlanArrays(best.placement, order, case.fusion_group)


def _model(case: Case, plan: PlanArrays) -> tuple[float, bool]:
    terms = evaluate_batch(case.tables, *(array[None] for array in plan))
    return float(terms.interval_s[0]), bool(terms.fits[0])


def _drawn(
    case: Case, draws: tuple[Iterator[PlanArrays], ...], shares: tuple[int, ...], at_most_s: float
) -> PlanArrays:
    """Different plans that fit and are fast enough; the last kind fills up to the last of ``shares``."""
    seen: dict[bytes, PlanArrays] = {}
    for kind, (draw, share) in enumerate(zip(draws, shares, strict=True)):
        wanted = share if kind == len(draws) - 1 else len(seen) + share
        for plan in islice(draw, MOST_TRIES * (wanted - len(seen))):
            interval_s, fits = _model(case, plan)
            if fits and interval_s <= at_most_s:
                seen[b"".join(array.tobytes() for array in plan)] = plan
            if len(seen) == wanted:
                break
    columns = zip(*seen.values(), strict=True)
    return PlanArrays(*(np.stack(column).astype(np.int32) for column in columns))
