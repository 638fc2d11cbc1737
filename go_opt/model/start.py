"""An existing plan as the starting point of a search, keyed by op name."""

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
    """The starting decisions for one op."""

    chip: int  # first chip of its stage
    replication: int = 1  # number of chips of its stage
    kernel: int = NO_KERNEL
    rank: int = 0  # position in execution order; the graph's own order breaks ties


@dataclass(frozen=True, eq=False)
class Start:
    """Starting decisions by op name; ops of a graph without one follow their neighbours."""

    ops: Mapping[str, OpStart]
    plan: Plan | None = None  # used unchanged if graph and target are the same
    method: str = "start"  # the origin that plans made from this start report
    continues: bool = False  # a search that has tried other ways to split
    has_first: bool = False  # the best of what the first methods found
    names_ops: bool = True  # no rewrite removes an op that it has

    @staticmethod
    def of_plan(plan: Plan, op_names: Sequence[str]) -> Start:
        """The decisions of ``plan``, whose op ``i`` is named ``op_names[i]``."""
        rank = np.empty_like(plan.order)
        rank[plan.order] = np.arange(len(plan.order), dtype=np.int32)
        rows = (plan.placement, plan.replication, plan.fusion_group, rank)
        choices = map(OpStart._make, zip(*(row.tolist() for row in rows), strict=True))
        return Start(dict(zip(op_names, choices, strict=True)), plan)

    def num_matched(self, graph: Graph) -> int:
        """The number of ops of ``graph`` that have a starting decision."""
        return sum(name in self.ops for name in graph.op_names)

    def on(self, graph: Graph) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """The fields of OpStart for all ops, [N] each.

        An op without a decision follows its last producer, else its first reader.
        """
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
        chip, replication, kernel, rank = np.array(rows, dtype=np.int32).reshape(-1, 4).T.copy()
        return chip, replication, kernel, rank
