"""A graph on a target, with the data that every method that proposes plans needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, Target, cost_tables, greedy_fusion, loop_roles
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.model.graph import Graph


@dataclass(frozen=True, eq=False)
class OrderProblem:
    """A graph on a target with its default order and kernels. Axis ``N`` ops."""

    graph: Graph
    target: Target
    tables: CostTables
    roles: LoopRoles

    @cached_property
    def order(self) -> IntArray:
        """[N] the order of storage."""
        return np.arange(self.graph.num_ops, dtype=np.int32)

    @cached_property
    def fusion_group(self) -> IntArray:
        """[N] greedy fusion along it."""
        return greedy_fusion(self.roles, self.order)

    @property
    def is_adjacent(self) -> bool:
        """Whether slicing must obey the adjacent rule: true if the target has a triangle rule."""
        return self.target.constraints.triangle != "off"

    @property
    def min_chips(self) -> int:
        """The least number of chips that a placement must use."""
        return self.target.num_chips if self.target.constraints.no_skip == "all" else 1


def instance(graph: Graph, target: Target) -> OrderProblem:
    """Returns ``graph`` on ``target`` with cost tables and default fusion."""
    return OrderProblem(graph, target, cost_tables(graph, target), loop_roles(graph, target.kernel_patterns))
