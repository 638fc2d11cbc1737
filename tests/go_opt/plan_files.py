"""Plans as they come back from a file."""

from __future__ import annotations

from pathlib import Path

import go_opt
from go_opt.model.codecs.plan_json import load_plan, save_plan
from go_opt.model.codecs.wire import plan_from_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan


def read_back(graph: Graph, plan: Plan, folder: Path) -> Plan:
    """A valid plan, read from the file that it is written to; a message keeps its splits, too."""
    save_plan(plan, file := folder / "plan.json")
    read = load_plan(file)
    assert read.splits == plan.splits == plan_from_proto(plan_to_proto(read)).splits
    assert go_opt.verify(graph, None, file) == []
    return read
