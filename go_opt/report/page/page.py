"""A plan or training step as one page, or as data for Model Explorer."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from go_opt import api
from go_opt.common.outputs import NODE_DATA
from go_opt.common.units import format_bytes, format_duration, format_ratio
from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.env.model.timeline import Timeline
from go_opt.errors import InfeasibleError
from go_opt.explanations import PlanExplanation
from go_opt.given_request import as_constraints
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.report.page.drawing import Boxes, boxes_of, drawing_rows, kernel_rows, op_rows
from go_opt.report.page.facts import (
    Claims,
    Subject,
    claims_of,
    colour,
    fact_rows,
    host_rows,
    limit_rows,
    move_rows,
    passing_rows,
    pipeline_rows,
)
from go_opt.report.page.over_time import (
    MOST_CHIPS,
    MOST_SPANS,
    memory_rows,
    steps_of,
    timeline_of,
    timeline_rows,
)
from go_opt.report.parts.wording import counted
from go_opt.report.tables import plan_text
from go_opt.result import OPTIMAL_GAP, Objective
from go_opt.solver.problem.user_constraints import UserConstraint

if TYPE_CHECKING:
    import networkx as nx

    from go_opt.parallel.plans.answers import StepAnswer


class Kind(NamedTuple):
    """A kind of page."""

    main: str  # what stands between head and scripts
    scripts: tuple[str, ...]  # concatenated in this order: each may use definitions of those before it


PLAN: Final = Kind(
    "plan",
    (
        "units", "dom", "head", "pipeline", "view", "graph", "details", "search", "timeline", "memory",
        "limits", "main",
    ),
)  # fmt: skip
STEP: Final = Kind(
    "step", ("units", "dom", "head", "pipeline", "view", "timeline", "memory", "limits", "step")
)
# In a script element, text ends at "</script" and "<!--" opens a comment, so data must not contain "<".
_ESCAPED: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page_text(data: dict[str, Any], kind: Kind = PLAN) -> str:
    """The page. Its data cannot end their script element, and only the page's own script may run."""
    assets = files(f"{__package__}.assets")
    style = _text(assets / "page.css")
    script = "\n".join(_text(assets / f"{name}.js") for name in kind.scripts)
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    main = _text(assets / f"{kind.main}.html")
    parts = {"main": main, "policy": policy, "style": style, "script": script, "data": escaped_json(data)}
    page = _text(assets / "page.html")
    pieces = page.split("@@")  # text, name of a part, text, …
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def escaped_json(data: dict[str, Any]) -> str:
    """JSON in ASCII that is safe in a script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(asset: Traversable) -> str:
    return asset.read_text("utf-8")


_SAME: Final = 1e-9  # relative difference below which seconds are equal


def step_page(answer: StepAnswer, claims: Claims) -> str:
    """The text of the page.

    Args:
      claims: what the plan file says of the search that made it.
    """
    return page_text(step_data(answer, claims), STEP)


def step_data(answer: StepAnswer, claims: Claims) -> dict[str, Any]:
    """The content of the page, as JSON types."""
    drawn, step = answer.drawing(MOST_CHIPS, MOST_SPANS), answer.step
    ranks, rows = len(drawn.ranks), len(drawn.timeline["rows"])
    notes = [f"Of {ranks} ranks {rows} are drawn."] if rows < ranks else []
    if drawn.timeline["passes_left_out"]:
        notes.append(f"Only the first {MOST_SPANS:,} passes of a rank are drawn.")
    memory = []
    for held in drawn.memory:
        begins_s, most = steps_of(held.begin_s, held.held_bytes.astype(np.int64), drawn.simulated_s)
        memory.append(
            {
                "begin_ns": [round(begin_s * 1e9) for begin_s in begins_s],
                "bytes": most,
                "most_bytes": held.peak_bytes,
                "weight_bytes": held.state_bytes,
                "weights": "weights, gradients and moments",
                "limit_bytes": step.case.memory_bytes,
            }
        )
    facts = [
        {"label": label, "value": value, "note": note}
        for label, value, note in _facts(answer, drawn.simulated_s, claims)
    ]
    return {
        "title": f"{answer.model} on {step.case.machine.target.name}",
        "summary": f"{counted(step.case.batch, 'sequence')}, {answer.parallel}",
        "facts": facts,
        "stages": [row | {"colour": colour(i)} for i, row in enumerate(drawn.ranks)],
        "parts": drawn.parts,
        "helps": drawn.helps,
        "timeline": drawn.timeline,
        "memory": memory,
        "notes": {"timeline": notes},
    }


def _facts(answer: StepAnswer, simulated_s: float, claims: Claims) -> Iterator[tuple[str, str, str]]:
    step = answer.step
    tokens_per_s = step.case.batch * step.case.model.sequence / step.step_s
    yield "step", format_duration(step.step_s), f"{tokens_per_s:.4g} tokens/s"
    yield "simulated", format_duration(simulated_s), f"{simulated_s / step.step_s:.3f}x the predicted step"
    most = max(step.memory_bytes)
    rank, fits = step.memory_bytes.index(most), "" if not step.lacks else "does not fit: "
    yield "memory", format_bytes(most), f"{fits}rank {rank}, of {format_bytes(step.case.memory_bytes)}"
    number = step.chosen.micro_batches(step.case.batch)
    yield "micro-batches", str(number), f"of {counted(step.chosen.micro_batch, 'sequence')} on each replica"
    bound_s = claims.lower_bound_s
    if bound_s is not None and bound_s <= step.step_s * (1.0 + _SAME):
        gap = step.step_s / bound_s - 1.0
        yield "bound", format_duration(bound_s), "no schedule in any configuration is below, the search found"
        yield "status", "OPTIMAL" if gap <= OPTIMAL_GAP else "FEASIBLE", f"gap {format_ratio(gap)}"


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
