"""The commands that draw a plan: ``trace`` over time, ``report`` as a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from go_opt.cli.commands.options import (
    ConstraintsOption,
    CostsOption,
    ModelArgument,
    PlanArgument,
    PlanObjectiveOption,
    PlanTargetOption,
    read_constraints,
)
from go_opt.cli.commands.plans import INVALID_PLAN, check_writable, objective_of
from go_opt.cli.inputs.loading import load_with_plan
from go_opt.env.model.metrics import Fidelity


def trace(
    model: ModelArgument,
    plan: PlanArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the trace to this file.")],
    target: PlanTargetOption = None,
    fidelity: Annotated[Fidelity, typer.Option(help="What schedules kernels and transfers.")] = "simulated",
    inferences: Annotated[int, typer.Option(help="Inferences to trace, from rest.")] = 16,
    costs: CostsOption = None,
    objective: PlanObjectiveOption = None,
) -> None:
    """Write when each kernel and transfer of PLAN runs, for ui.perfetto.dev or chrome://tracing."""
    from go_opt import api
    from go_opt.common.files import write_atomically
    from go_opt.env.critical_path import critical_path
    from go_opt.report.trace import trace_text

    check_writable(out)
    graph, on, loaded = load_with_plan(model, plan, target, costs)
    timeline = api.timeline(graph, on, loaded, fidelity=fidelity, inferences=inferences)
    path = critical_path(graph, on, loaded) if (objective or objective_of(plan)) == "latency" else None
    write_atomically(out, trace_text(graph, on, timeline, path) + "\n")
    typer.echo(
        f"{out}: {inferences} inferences, {len(timeline.kernels)} kernels, "
        f"{len(timeline.transfers)} transfers; open it at ui.perfetto.dev or chrome://tracing."
    )
    if timeline.is_deadlocked:
        typer.echo(f"go-opt: the trace ends in a {timeline.metrics.reason}", err=True)
        raise typer.Exit(INVALID_PLAN)


def report(
    model: ModelArgument,
    plan: PlanArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Write the page to this file.")],
    target: PlanTargetOption = None,
    inferences: Annotated[
        int | None,
        typer.Option(help="Inferences over time. [default: those that fill the pipeline, and 8 more]"),
    ] = None,
    model_explorer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write node data for Google's Model Explorer: stages, as JSON."
        ),
    ] = None,
    constraints: ConstraintsOption = None,
    costs: CostsOption = None,
    objective: PlanObjectiveOption = None,
) -> None:
    """Write PLAN as one HTML page: its pipeline, its graph, timeline and memory, what limits it."""
    from go_opt.common.files import write_atomically
    from go_opt.report.page import claims_of, node_data_text, page_of, subject_of

    check_writable(out)
    check_writable(model_explorer)
    asked = read_constraints(constraints)
    graph, on, loaded = load_with_plan(model, plan, target, costs)
    claims = claims_of(plan)
    subject = subject_of(graph, on, loaded, objective or claims.objective or "throughput", asked)
    write_atomically(out, page_of(subject, claims, inferences))
    typer.echo(f"{out}: {graph.name} on {on.name}, {graph.num_ops} ops; open it in a browser.")
    if model_explorer is not None:
        write_atomically(model_explorer, node_data_text(subject) + "\n")
        typer.echo(f"{model_explorer}: the stage of each node; load it in Model Explorer as node data.")
