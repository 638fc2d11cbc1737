"""Rivals that propose orders, and kernels, for the exact slicer; a sample is a sliced plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from go_opt.bench.baselines.harness import Samples
from go_opt.env import list_schedule
from go_opt.env.kernels.numbering import number_kernels
from go_opt.solver import greedy_slicing
from go_opt.solver.orders.cheapest import cheapest_slicing
from go_opt.solver.orders.genetic import Keys, genetic_search
from go_opt.solver.orders.instance import Instance
from go_opt.solver.orders.orders import fixed_orders, kernel_features, random_orders, schedule

Orders = Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]  # order, fusion_group

# Fusion keys in [0, 1) become priorities in [-FUSION_RANGE, FUSION_RANGE): a quarter of them
# take an op off its default kernel, a quarter let it join another.
FUSION_RANGE: Final = 2.0
STRUCTURED_GENOMES: Final = 31  # and the default order: half of a generation of 64


def greedy(instance: Instance, samples: Samples, seed: int) -> None:
    """The compiler's heuristic, one plan."""
    order, group = instance.order, instance.fusion_group
    slicing = greedy_slicing(instance.tables, order, group, adjacent=instance.is_adjacent)
    samples.one(slicing.placement, order, group)


def slice_default(instance: Instance, samples: Samples, seed: int) -> None:
    """The cheapest slicing of the default order and kernels, one plan."""
    _slice_all(instance, samples, iter([(instance.order, instance.fusion_group)]))


def slice_fixed(instance: Instance, samples: Samples, seed: int) -> None:
    """The default, depth and height orders, with the default kernels and with one for each op."""
    _slice_all(instance, samples, _fixed(instance))


def slice_uniform(instance: Instance, samples: Samples, seed: int) -> None:
    """List schedules by keys drawn for each kernel alone."""
    rng = np.random.default_rng(seed)
    num_kernels = int(instance.fusion_group.max()) + 1
    orders = (_order(instance, rng.random(num_kernels)) for _ in itertools.count())
    _slice_all(instance, samples, ((order, instance.fusion_group) for order in orders))


def slice_structured(instance: Instance, samples: Samples, seed: int) -> None:
    """List schedules by random mixes of kernel features: a policy that was never trained."""
    group = instance.fusion_group
    orders = random_orders(instance.graph, instance.tables, group, seed)
    _slice_all(instance, samples, ((order, group) for order in orders))


def genetic_order(instance: Instance, samples: Samples, seed: int) -> None:
    """Genetic search for the order of the default kernels, the default order among the first."""
    _genetic_order(instance, samples, seed, _keys_of(instance, instance.order))


def genetic_structured_order(instance: Instance, samples: Samples, seed: int) -> None:
    """The same with structured random orders as half of the first generation."""
    drawn = random_orders(instance.graph, instance.tables, instance.fusion_group, seed)
    orders = [instance.order, *itertools.islice(drawn, STRUCTURED_GENOMES)]
    _genetic_order(instance, samples, seed, np.stack([_keys_of(instance, order) for order in orders]))


def _genetic_order(instance: Instance, samples: Samples, seed: int, first: Keys) -> None:
    def interval_s(keys: Keys) -> float:
        return _sample(instance, samples, _order(instance, keys), instance.fusion_group)

    num_kernels = int(instance.fusion_group.max()) + 1
    genetic_search(interval_s, num_kernels, evaluations=samples.left, seed=seed, first=first)


def genetic_mix(instance: Instance, samples: Samples, seed: int) -> None:
    """Genetic search for the mix of kernel features that orders best, position alone among the first."""
    kernel_of = number_kernels(instance.order, instance.fusion_group)
    features = kernel_features(instance.graph, instance.tables, kernel_of)

    def interval_s(keys: Keys) -> float:
        order = _order(instance, features @ (2.0 * keys - 1.0))
        return _sample(instance, samples, order, instance.fusion_group)

    # Position is the first feature: a falling priority is the default order.
    first = np.where(np.arange(features.shape[1]) == 0, 0.0, 0.5)
    genetic_search(interval_s, len(first), evaluations=samples.left, seed=seed, first=first)


def genetic_order_and_fusion(instance: Instance, samples: Samples, seed: int) -> None:
    """Genetic search for priorities of order and fusion at once, the defaults among the first."""
    num_ops = instance.graph.num_ops

    def interval_s(keys: Keys) -> float:
        fusion_priority = (2.0 * keys[num_ops:] - 1.0) * FUSION_RANGE
        group, order = schedule(instance, keys[:num_ops], fusion_priority)
        return _sample(instance, samples, order, group)

    falling = 1.0 - np.arange(1, num_ops + 1) / (num_ops + 1.0)
    first = np.concatenate([falling, np.full(num_ops, 0.5)])
    genetic_search(interval_s, 2 * num_ops, evaluations=samples.left, seed=seed, first=first)


def _fixed(instance: Instance) -> Orders:
    for group in (instance.fusion_group, instance.order):
        yield instance.order, group
        for _, order in fixed_orders(instance.graph, group):
            yield order, group


def _slice_all(instance: Instance, samples: Samples, orders: Orders) -> None:
    """Spend a sample on each order until either runs out."""
    for order, group in itertools.islice(orders, samples.left):
        _sample(instance, samples, order, group)


def _sample(
    instance: Instance, samples: Samples, order: NDArray[np.int32], group: NDArray[np.int32]
) -> float:
    return samples.one(cheapest_slicing(instance, order, group).placement, order, group)


def _order(instance: Instance, keys: Keys) -> NDArray[np.int32]:
    return list_schedule(instance.graph, instance.fusion_group, keys)


def _keys_of(instance: Instance, order: NDArray[np.int32]) -> Keys:
    """[M] keys in (0, 1) of the default kernels that give ``order``."""
    place = number_kernels(order, instance.fusion_group)
    keys = np.empty(int(place.max()) + 1)
    keys[instance.fusion_group] = 1.0 - (place + 1.0) / (len(keys) + 1.0)
    return keys
