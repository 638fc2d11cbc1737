"""Converts the starting plan that a user gives into one type."""

from __future__ import annotations

from pathlib import Path

from go_opt.env.copies.splits import planned_graph
from go_opt.errors import PlanError
from go_opt.model.codecs.start_files import load_start
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import Start


def as_start(start: Start | Plan | str | Path | None, graph: Graph | None) -> Start | None:
    """Converts a plan file, or a plan for ``graph``, to decisions keyed by op name.

    Args:
      graph: None if this process does not know the graph.

    Raises:
      PlanError: the file is not a plan, or the plan belongs to another graph.
    """
    if isinstance(start, str | Path):
        return load_start(start)
    if not isinstance(start, Plan):
        return start
    placed = None if graph is None else planned_graph(graph, start)
    if placed is None or start.graph_fingerprint != placed.fingerprint:
        raise PlanError("a plan of another graph is matched by names: give its file.", field="start")
    return Start.of_plan(start, placed.op_names)
