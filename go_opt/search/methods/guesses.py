"""Guesses: random orders, sliced, and a policy's plans in turn with them; orders and kernels that evolve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

import numpy as np

from go_opt.agents.decoding.proposals import Advice, own_plans, policy_plans
from go_opt.common.arrays import IntArray
from go_opt.env import list_schedule
from go_opt.model.plan import Candidate
from go_opt.search.methods.events import Event, Miss, NoPlan, Proposal, SearchView, Waiting, waiting_until
from go_opt.search.methods.slices import least_s, widest_slices
from go_opt.solver import earliest_finish_placement
from go_opt.solver.orders import random_orders
from go_opt.solver.orders.genetic import Evolution, decoded, first_genomes
from go_opt.solver.orders.instance import instance

EVOLVED: Final = "slice: orders and kernels"
HOPELESS: Final = 2.0  # times the best interval: such cuts are no parents
# Random orders stop after this many in a row without a better plan, budget or not; a policy
# that takes turns with them gets as many turns.
PATIENCE: Final = 32


def guesses(search: SearchView, fused: IntArray, advice: Future[Advice | None] | None) -> Iterator[Event]:
    """Random orders, and the policy's plans in turn with them as soon as it has answered.

    Random orders go first, while they have patience.
    """
    graph, request = search.graph, search.request
    patience, plans, misses, best_s = PATIENCE, None, 0, search.best_s
    for order in _random_orders(search, fused):
        misses, best_s = (misses, best_s) if search.best_s == best_s else (0, search.best_s)
        if advice is not None and (advice.done() or misses >= patience):
            yield from until_advised(search, advice)
            advised = advice.result() if advice.done() else None
            if advised is not None:
                plans = policy_plans(advised, instance(graph, search.target), request.seed)
                patience, misses = 2 * PATIENCE, 0
            advice = None
        if request.max_evaluations is None and misses >= patience:
            return
        if plans is not None:
            yield from _policy_plan(search, next(plans))
            misses += 1
        yield from widest_slices(search, "slice: random order", order, fused)
        misses += 1


def _random_orders(search: SearchView, fused: IntArray) -> Iterator[IntArray]:
    """Structured ones and uniform keys in turn: in stacks of layers structured ones are much alike."""
    graph, request = search.graph, search.request
    rng = np.random.default_rng((request.seed, 4))
    for structured in random_orders(graph, search.tables, fused, request.seed):
        yield structured
        if request.is_interval_alone:  # they take long for one sample
            yield list_schedule(graph, fused, rng.random(int(fused.max()) + 1))


def evolved(search: SearchView) -> Iterator[Event]:
    """Slicings of orders and kernels by genetic search (:mod:`go_opt.solver.orders.genetic`), without end.

    Kernels joined across branches keep tensors out of memory; no other method finds such plans.
    """
    case, seed = instance(search.graph, search.target), search.request.seed
    evolution = Evolution(2 * search.graph.num_ops, seed=seed, first=first_genomes(case, seed))
    while True:
        costs_s = np.full(len(evolution.genomes), math.inf)
        for i, keys in enumerate(evolution.genomes):
            kernels, order = decoded(case, keys)
            costs_s[i] = least_s(search, order, kernels, at_most_s=HOPELESS * search.best_s)
            if costs_s[i] >= search.best_s:
                yield Miss(EVOLVED)
                continue
            for event in widest_slices(search, EVOLVED, order, kernels):
                yield event
                costs_s[i] = search.last_interval_s
        evolution.advance(costs_s)


def policy_alone(search: SearchView, advice: Future[Advice | None]) -> Iterator[Event]:
    """The policy's plans and nothing else: it decides placement, order and kernels at once."""
    yield from until_advised(search, advice)
    advised = advice.result() if advice.done() else None
    if advised is None:
        yield NoPlan("the policy had no answer.")
        return
    for plan in own_plans(advised, instance(search.graph, search.target), search.request.seed):
        yield from _policy_plan(search, plan)


def until_advised(search: SearchView, advice: Future[Advice | None]) -> Iterator[Waiting]:
    """Wait for the policy while there is time."""
    return waiting_until(lambda: advice.done() or search.is_late)


def _policy_plan(search: SearchView, plan: Candidate) -> Iterator[Event]:
    """A policy's plan as it is; where only order and kernels are given, placed for the objective."""
    if len(plan.placement):
        yield Proposal(plan.method, plan.placement, plan.order, plan.fusion_group)
    elif search.request.objective == "latency":
        tables = search.tables
        placement = earliest_finish_placement(tables, plan.order, plan.fusion_group)
        yield Proposal(plan.method, placement, plan.order, plan.fusion_group)
    else:
        yield from widest_slices(search, plan.method, plan.order, plan.fusion_group)
