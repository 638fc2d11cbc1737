"""The cost of a plan with the relays that the triangle rule requires."""

from __future__ import annotations

from go_opt.common.arrays import IntArray
from go_opt.env import BatchMetrics, CostTables, evaluate_batch
from go_opt.env.copies.expanded_tables import expanded_tables
from go_opt.env.copies.relays import Relays
from go_opt.env.target import Triangle
from go_opt.solver.copies.relays import needed_relays


def relayed_terms(
    tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray, triangle: Triangle
) -> BatchMetrics:
    """Returns the terms of one plan ([N] each) with the relays it needs; ``off`` needs none."""
    relays = Relays(*needed_relays(tables, placement, triangle))
    expanded, *plan = expanded_tables(tables, placement, order, fusion_group, relays)
    return evaluate_batch(expanded, *(row[None] for row in plan))
