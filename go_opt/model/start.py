"""Where somebody's plan has ops, by their names: what a search may begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan

NO_KERNEL: Final = -1


class OpStart(NamedTuple):
    """Of one op."""

    chip: int  # the first of its stage
    replication: int = 1  # chips of its stage
    kernel: int = NO_KERNEL
    rank: int = 0  # place in the order of execution; among equals the graph's own order holds


class StartArrays(NamedTuple):
    """The same for all ops of a graph, [N] each."""

    chip: IntArray
    replication: IntArray
    kernel: IntArray
    rank: IntArray


@dataclass(frozen=True, eq=False)
class Start:
    """Ops by name; those of a graph that are not among them follow their neighbours."""

    ops: Mapping[str, OpStart]
    plan: Plan | None = None  # taken as it is, where it is for the same graph and target
    method: str = "start"  # named by plans that are made of it

    @staticmethod
    def of_plan(plan: Plan, op_names: Sequence[str]) -> Start:
        """The decisions of ``plan`` for ops of these names."""
        rank = np.empty_like(plan.order)
        rank[plan.order] = np.arange(len(plan.order), dtype=np.int32)
        rows = (plan.placement, plan.replication, plan.fusion_group, rank)
        choices = map(OpStart._make, zip(*(row.tolist() for row in rows), strict=True))
        return Start(dict(zip(op_names, choices, strict=True)), plan)

    def num_matched(self, graph: Graph) -> int:
        """Ops of ``graph`` that it names."""
        return sum(name in self.ops for name in graph.op_names)

    def on(self, graph: Graph) -> StartArrays:
        """For every op; one that is not named follows what it reads from, else its first reader."""
        found = [self.ops.get(name) for name in graph.op_names]
        for reads, along in ((graph.predecessors, 1), (graph.successors, -1)):
            ptr, neighbour = reads
            for op in range(graph.num_ops)[::along]:
                near = [found[other] for other in neighbour[ptr[op] : ptr[op + 1]]]
                known = [choice for choice in near if choice is not None]
                if found[op] is None and known:
                    nearest = max(known, key=lambda choice: along * choice.rank)
                    found[op] = nearest._replace(kernel=NO_KERNEL)
        rows = [choice or OpStart(0) for choice in found]
        return StartArrays(*np.array(rows, dtype=np.int32).reshape(-1, len(OpStart._fields)).T.copy())
