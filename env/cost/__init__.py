"""Costs of the ops and tensors of a graph on a target."""

from go_opt.env.cost.tables import (
    COPY,
    CostTables,
    cost_tables,
    divided_tables,
    kinds_that_run,
    tables_with_effects,
    why_not_on,
)

__all__ = [
    "COPY",
    "CostTables",
    "cost_tables",
    "divided_tables",
    "kinds_that_run",
    "tables_with_effects",
    "why_not_on",
]
