"""A plan as one page: its pipeline, graph, timeline, and limits; or as data for Model Explorer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from go_opt import api
from go_opt.common.outputs import NODE_DATA
from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.env.model.timeline import Timeline
from go_opt.errors import InfeasibleError
from go_opt.explanations import PlanExplanation
from go_opt.given_request import as_constraints
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.page.drawing import Boxes, boxes_of, drawing_rows, kernel_rows, op_rows
from go_opt.report.page.facts import Claims, claims_of, fact_rows, limit_rows, move_rows
from go_opt.report.page.html import page_text
from go_opt.report.page.over_time import MOST_SPANS, memory_rows, timeline_of, timeline_rows
from go_opt.report.page.subject import Subject, colour, host_rows, passing_rows, pipeline_rows
from go_opt.report.tables import plan_text
from go_opt.result import Objective
from go_opt.solver.problem.user_constraints import UserConstraint

if TYPE_CHECKING:
    import networkx as nx


def plan_page(
    graph: Graph | nx.DiGraph | str | Path,
    target: Target | str | Path | None,
    plan: Plan | str | Path,
    *,
    objective: Objective | None = None,
    inferences: int | None = None,
    constraints: Sequence[UserConstraint] | str | Path = (),
    costs: str | Path | None = None,
) -> str:
    """``plan`` as an HTML page that needs only a browser (docs/plans.md).

    Graph, target, plan and costs are as for :func:`go_opt.evaluate`.

    Args:
      objective: the plan's objective; None: from its file, else ``throughput``.
      inferences: number of inferences in the timeline; None: enough to fill the pipeline, and a few more.
      constraints: the user's constraints, which moves must satisfy; or the path of a TOML file.

    Raises:
      PlanError: the plan was made for another graph or target, or its arrays do not fit them.
      InfeasibleError: the plan breaks a rule, so it cannot run.
    """
    claims = Claims() if isinstance(plan, Plan) else claims_of(plan)
    case = api.whole_case(graph, target, plan, costs)
    subject = subject_of(*case, objective or claims.objective or "throughput", as_constraints(constraints))
    return page_of(subject, claims, inferences)


def subject_of(
    graph: Graph,
    target: Target,
    plan: Plan,
    objective: Objective,
    constraints: tuple[UserConstraint, ...] = (),
) -> Subject:
    """The data behind the page of a plan of ``graph``, which is of whole ops.

    Raises:
      InfeasibleError: the plan breaks a rule.
    """
    explanation = api.explain(graph, target, plan, objective=objective, constraints=constraints)
    assert isinstance(explanation, PlanExplanation)
    if explanation.violations:
        raise InfeasibleError(
            f"there is nothing to draw: {explanation.violations[0].message}", is_proven=True
        )
    return Subject(planned_graph(graph, plan), target, plan, explanation, constraints)


def page_of(subject: Subject, claims: Claims, inferences: int | None = None) -> str:
    """The text of the page."""
    return page_text(page_data(subject, claims, inferences))


def page_data(subject: Subject, claims: Claims, inferences: int | None = None) -> dict[str, Any]:
    """The content of the page, as JSON types."""
    boxes = boxes_of(subject)
    timeline = timeline_of(subject, inferences)
    over_time = timeline_rows(subject, timeline)
    explanation = subject.explanation
    return {
        "title": f"{explanation.graph} on {explanation.target}",
        "summary": plan_text(subject.graph, subject.target, subject.plan),
        "objective": explanation.objective,
        "overlap": explanation.overlap,
        "interval_s": explanation.metrics.interval_s,
        "whole_s": subject.whole_s,
        "facts": fact_rows(subject, claims),
        "stages": pipeline_rows(subject),
        "passing": passing_rows(subject),
        "host": host_rows(subject),
        "graph": drawing_rows(boxes),
        "ops": op_rows(subject, boxes),
        "kernels": kernel_rows(subject),
        "moves": move_rows(subject),
        "timeline": over_time,
        "memory": memory_rows(subject, timeline),
        "limits": limit_rows(subject),
        "notes": {
            "graph": [*_graph_notes(subject, boxes)],
            "timeline": [*_timeline_notes(timeline, over_time)],
        },
    }


def _graph_notes(subject: Subject, boxes: Boxes) -> Iterator[str]:
    """Notes on the simplified drawing of a large model's graph."""
    ops = f"The model has {subject.graph.num_ops:,} ops, too many to draw each"
    if boxes.level == "kernel":
        yield f"{ops}: a box is a kernel."
    if boxes.level == "kernels":
        yield f"{ops}: a box is up to {boxes.kernels_per_box} successive kernels of a stage."


def _timeline_notes(timeline: Timeline, over_time: dict[str, Any]) -> Iterator[str]:
    """Notes on omissions of the timeline, and on its early end in a deadlock."""
    if over_time["is_merged"]:
        yield "There are too many kernels to draw each: a bar may be several of one inference."
    if over_time["chips_left_out"]:
        yield f"{over_time['chips_left_out']} chips are left out, of which each does as one of its stage."
    if over_time["transfers_left_out"]:
        yield f"Only the first {MOST_SPANS:,} transfers are drawn."
    if timeline.is_deadlocked:
        yield f"It ends in a {timeline.metrics.reason}"


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
                "value": subject.names.named(subject.stages[stage].chip),
                "bgColor": colour(stage),
                "textColor": "#16181d",
            }
            for name, stage in by_name.items()
        },
    }
