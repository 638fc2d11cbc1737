"""A graph on a target, with the data that every method that proposes plans needs."""

from __future__ import annotations

from dataclasses import dataclass

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
    order: IntArray  # [N] the order of storage
    fusion_group: IntArray  # [N] greedy fusion along it

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
    roles = loop_roles(graph, target.kernel_patterns)
    order = np.arange(graph.num_ops, dtype=np.int32)
    return OrderProblem(graph, target, cost_tables(graph, target), roles, order, greedy_fusion(roles, order))
