"""Genetic search for orders and kernels at once, by priorities of both.

A genome has two keys an op: one for its place (list scheduling), one for its wish to share a
kernel with what it reads (:mod:`go_opt.env.priority_fusion`). Kernels joined across branches keep
tensors out of memory; where that binds, nothing else finds such plans. Only genomes that can beat the
worst elite are sliced for good, the best of a generation through its kernels
(:mod:`go_opt.agents.loose_slicing`). Along long orders charging slices for what they stream takes most
of the time: there only those that can beat the best are, and bounds rank the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

import numpy as np

from go_opt.agents.cheapest import CheapestSlicing, IntArray, Slicer
from go_opt.agents.decoding import schedule
from go_opt.agents.genetic import POPULATION, Keys, generations
from go_opt.agents.instance import Instance
from go_opt.agents.loose_slicing import loose_slicings
from go_opt.agents.order_search import BETTER, HOPELESS, OrderPlan
from go_opt.agents.orders import fixed_orders, random_orders

# Fusion keys in [0, 1) become priorities in [-FUSION_RANGE, FUSION_RANGE): a quarter of them
# take an op off its default kernel, a quarter let it join another.
FUSION_RANGE: Final = 2.0
APART, AS_BY_DEFAULT, JOINED = 0.0, 0.5, 1.0  # keys
LONG: Final = 2_000  # kernels


def joint_orders(
    slicer: Slicer, *, seed: int, known: Callable[[], OrderPlan | None] = lambda: None
) -> Iterator[OrderPlan | None]:
    """Endless, one for each slicing tried: its plan, or ``None`` where it is of no use to the search.

    Args:
      known: the best plan of others; the search goes on from it where it has none as good.
    """
    case = slicer.instance
    num_ops, rng = case.graph.num_ops, np.random.default_rng((seed, 3))
    evolution = generations(2 * num_ops, seed=seed, first=_first(case, seed))
    genomes, worst_elite_s = next(evolution)
    is_long = int(case.fusion_group.max()) >= LONG
    best_s, streams = math.inf, False
    while True:
        of_others = known()
        if of_others is not None and of_others.interval_s < best_s:
            genomes[0], best_s = _keys_of(case, of_others), of_others.interval_s
        costs_s = np.full(len(genomes), math.inf)
        best: tuple[int, OrderPlan] | None = None  # of the generation, where it is better than all before
        for i, keys in enumerate(genomes):
            kernels, order = _decoded(case, keys)
            is_ranked = is_long and streams
            at_most_s = best_s * BETTER if is_ranked else min(worst_elite_s * BETTER, best_s * HOPELESS)
            sliced = slicer(order, kernels, at_most_s)
            if sliced is None or sliced.interval_s >= at_most_s:
                costs_s[i] = max(best_s, slicer.least_s(order, kernels)) if is_ranked else math.inf
                yield None
                continue
            costs_s[i], streams = sliced.interval_s, sliced.streams
            plan = OrderPlan(sliced.placement, order, kernels, sliced.interval_s, sliced.replication)
            if sliced.interval_s < best_s:
                best_s, best = sliced.interval_s, (i, plan)
            yield plan
        if best is not None:
            number, plan = best
            start = CheapestSlicing(plan.placement, plan.interval_s, True, plan.replication)
            for better in loose_slicings(slicer, plan.order, plan.fusion_group, start, rng=rng, draws=0):
                best_s = best_s if better is None else better.interval_s
                yield better
            costs_s[number] = best_s
        genomes, worst_elite_s = evolution.send(costs_s)


def _first(case: Instance, seed: int) -> Keys:
    """[F, 2 N] kinds of genomes in turn: what is known of orders, of kernels, of both, of none."""
    rng, num_ops = np.random.default_rng((seed, 5)), case.graph.num_ops
    structured = chain(
        [case.order],
        (order for _, order in fixed_orders(case.graph, case.fusion_group)),
        random_orders(case.graph, case.tables, case.fusion_group, seed),
    )
    default, joined = np.full(num_ops, AS_BY_DEFAULT), np.full(num_ops, JOINED)
    first: list[Keys] = []
    for order in islice(structured, POPULATION // 4):
        keys = _order_keys(order)
        first += [np.append(keys, default), rng.random(2 * num_ops)]
        first += [np.append(keys, joined), np.append(rng.random(num_ops), default)]
    return np.stack(first)


def _decoded(case: Instance, keys: Keys) -> tuple[IntArray, IntArray]:
    """Kernels [N] and order [N] of a genome [2 N]."""
    place, wish = np.split(keys, 2)
    return schedule(case, place, (2.0 * wish - 1.0) * FUSION_RANGE)


def _keys_of(case: Instance, plan: OrderPlan) -> Keys:
    """[2 N] by which ``plan`` comes out, but for kernels it cut through or joined in part."""
    source, reader = case.graph.edge_src, case.graph.edge_dst
    is_default = case.fusion_group[source] == case.fusion_group[reader]
    is_joint = plan.fusion_group[source] == plan.fusion_group[reader]
    wish = np.full(case.graph.num_ops, AS_BY_DEFAULT)
    wish[reader[is_default]] = APART
    wish[reader[is_default & is_joint]] = AS_BY_DEFAULT
    wish[reader[is_joint & ~is_default]] = JOINED
    return np.append(_order_keys(plan.order), wish)


def _order_keys(order: IntArray) -> Keys:
    """[N] falling along ``order``."""
    keys = np.empty(len(order))
    keys[order] = 1.0 - np.arange(1, len(order) + 1) / (len(order) + 1.0)
    return keys
