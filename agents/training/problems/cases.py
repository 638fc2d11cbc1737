"""A graph on a target, with the data that training needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from go_opt.agents.decoding.exploration import KeySpace, key_space
from go_opt.agents.inputs.features import GraphFeatures, graph_features
from go_opt.agents.inputs.padding import Bucket, rows_to_ops, smallest_bucket
from go_opt.env import Target, evaluate_batch
from go_opt.model.graph import Graph
from go_opt.solver import greedy_slicing
from go_opt.solver.orders.cheapest import cheapest_slicing
from go_opt.solver.orders.instance import OrderProblem, instance


@dataclass(frozen=True, eq=False)
class Case:
    """One graph on one target."""

    instance: OrderProblem
    reference_s: float  # interval of the greedy plan by the model; see :func:`reference_interval_s`

    @property
    def bucket(self) -> Bucket:
        """The smallest that holds the graph."""
        return smallest_bucket(self.instance.graph)

    @cached_property
    def features(self) -> GraphFeatures:
        """For the network."""
        return graph_features(self.instance.graph, self.instance.target)

    @cached_property
    def key_space(self) -> KeySpace:
        """In which keys are drawn."""
        return key_space(rows_to_ops(self.features, self.features.exploration))


def case(graph: Graph, target: Target) -> Case:
    """Cost and measure ``graph`` on ``target``."""
    on_target = instance(graph, target)
    return Case(on_target, reference_interval_s(on_target))


def reference_interval_s(on_target: OrderProblem) -> float:
    """The reference of rewards: the greedy plan's interval, if it fits in memory.

    Otherwise the interval of the default order's slicing, or one second. The constant does not
    affect training, because rewards are compared within a graph only.
    """
    order, group = on_target.order, on_target.fusion_group
    greedy = greedy_slicing(on_target.tables, order, group, adjacent=on_target.is_adjacent)
    terms = evaluate_batch(on_target.tables, greedy.placement[None], order[None], group[None])
    if terms.fits[0]:
        return float(terms.interval_s[0])
    sliced_s = cheapest_slicing(on_target, order, group).expected_s
    return sliced_s if math.isfinite(sliced_s) else 1.0
