"""A graph on a target, with what every method that proposes plans needs of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import CostTables, Target, cost_tables, greedy_fusion, loop_roles
from go_opt.env.kernels.fusion import LoopRoles
from go_opt.model.graph import Graph


@dataclass(frozen=True, eq=False)
class Instance:
    """Axis ``N`` ops. The order of storage and its greedy fusion are the defaults."""

    graph: Graph
    target: Target
    tables: CostTables
    roles: LoopRoles
    order: IntArray  # [N] the order of storage
    fusion_group: IntArray  # [N] greedy fusion along it

    @property
    def is_adjacent(self) -> bool:
        """Whether slicing must obey the adjacent rule: where the target has a triangle rule."""
        return self.target.constraints.triangle != "off"

    @property
    def min_chips(self) -> int:
        """Chips that a placement must use at least."""
        return self.target.num_chips if self.target.constraints.no_skip == "all" else 1


def instance(graph: Graph, target: Target) -> Instance:
    """Cost ``graph`` on ``target`` and fuse it by default."""
    roles = loop_roles(graph)
    order = np.arange(graph.num_ops, dtype=np.int32)
    return Instance(graph, target, cost_tables(graph, target), roles, order, greedy_fusion(roles, order))
