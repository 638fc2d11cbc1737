"""Node data for Google's Model Explorer: the stage and colour of each node of the model."""

from __future__ import annotations

import json
from typing import Any

from go_opt.common.outputs import NODE_DATA
from go_opt.report.page.subject import Subject


def node_data_text(subject: Subject) -> str:
    """The text of a node data file, which maps node names to values and colours."""
    return json.dumps(node_data(subject), allow_nan=False)


def node_data(subject: Subject) -> dict[str, Any]:
    """Node name -> stage. A node without an op has the stage of its related op, or no entry."""
    stage_of = subject.stage_of_chip[subject.plan.placement]
    by_name = dict(zip(subject.graph.op_names, stage_of.tolist(), strict=True))
    for node in subject.graph.nodes_without_op:
        if node.op in by_name:  # not of an op whose parts are not joined
            by_name.setdefault(node.name, by_name[node.op])
    return {
        "format": NODE_DATA.json_format,
        "name": f"Stages on {subject.target.name}",
        # Stages are not numbers: a layer shows its number of nodes in each stage.
        "hideInAggregatedStatsTable": True,
        "showExpandedSummaryOnGroupNode": True,
        "results": {
            name: {
                "value": subject.stages[stage].name,
                "bgColor": subject.stages[stage].colour,
                "textColor": "#16181d",
            }
            for name, stage in by_name.items()
        },
    }
