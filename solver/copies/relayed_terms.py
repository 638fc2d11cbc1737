"""What a plan costs together with the relays that the triangle rule asks for."""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import IntArray
from go_opt.env import BatchMetrics, CostTables, evaluate_batch
from go_opt.env.copies.expanded_tables import Copies, expanded_tables
from go_opt.env.target import Triangle
from go_opt.solver.copies.relays import needed_relays


def relay_copies(tables: CostTables, placement: IntArray, triangle: Triangle) -> Copies:
    """Relays with which ``placement`` [N] keeps the rule, and no clones; ``off`` needs none."""
    nothing = np.empty(0, np.int32)
    return Copies(*needed_relays(tables, placement, triangle), nothing, nothing)


def terms_with_copies(
    tables: CostTables, placement: IntArray, order: IntArray, fusion_group: IntArray, copies: Copies
) -> BatchMetrics:
    """The terms of one plan ([N] each) that has ``copies``."""
    expanded, *plan = expanded_tables(tables, placement, order, fusion_group, copies)
    return evaluate_batch(expanded, *(row[None] for row in plan))
