"""The commands that show a plan: ``trace``, ``report`` (an HTML page) and ``explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt.cli.commands import options as opts
from go_opt.cli.commands.options import Answer, StepOptions, of_each, with_options
from go_opt.cli.commands.plans import objective_of
from go_opt.cli.inputs.loading import each_with_plan, load_with_plan, with_costs
from go_opt.common.outputs import NODE_DATA, PAGE, TRACE
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import GraphError, ModelError, PlanError

if TYPE_CHECKING:
    from rich.console import Console

    from go_opt.model.graph import Graph
    from go_opt.model.plan import Plan


@with_options
def trace(
    given: opts.ModelsAndPlanArgument,
    out: Annotated[
        Path, opts.Output({"": TRACE}), typer.Option("--out", "-o", help="Write the trace to this file.")
    ],
    target: opts.PlanTargetOption = None,
    fidelity: Annotated[Fidelity, typer.Option(help="What schedules kernels and transfers.")] = "simulated",
    inferences: Annotated[int, typer.Option(help="Inferences to trace, from rest.")] = 16,
    costs: opts.CostsOption = None,
    objective: opts.PlanObjectiveOption = None,
    overwrite: opts.OverwriteOption = False,
) -> None:
    """Write when each kernel and transfer of PLAN runs, for ui.perfetto.dev or chrome://tracing."""
    from go_opt import api
    from go_opt.common.files import write_atomically
    from go_opt.env.copies.splits import planned_graph
    from go_opt.env.critical_path import critical_path
    from go_opt.parallel.plans import loaded_step
    from go_opt.report.trace import trace_text

    ((model, plan),) = each_with_plan(given, alone=True)
    if StepOptions().is_step(model):
        on = None if target is None else api.target(target)
        passes = loaded_step(plan, on, model).save_trace(out)
        typer.echo(f"{out}: {passes} passes; open it at ui.perfetto.dev or chrome://tracing.")
        return
    graph, on, loaded = load_with_plan(model, plan, target, costs)
    timeline = api.timeline(graph, on, loaded, fidelity=fidelity, inferences=inferences)
    graph = planned_graph(graph, loaded)
    path = critical_path(graph, on, loaded) if (objective or objective_of(plan)) == "latency" else None
    write_atomically(out, trace_text(graph, on, timeline, path) + "\n")
    typer.echo(
        f"{out}: {inferences} inferences, {len(timeline.kernels)} kernels, "
        f"{len(timeline.transfers)} transfers; open it at ui.perfetto.dev or chrome://tracing."
    )
    if timeline.is_deadlocked:
        typer.echo(f"go-opt: the trace ends in a {timeline.metrics.reason}", err=True)
        raise typer.Exit(opts.INVALID_PLAN)


@with_options
def report(
    given: opts.ModelsAndPlanArgument,
    out: Annotated[
        Path,
        opts.Output({"": PAGE}),
        typer.Option("--out", "-o", metavar="FILE", help="Write the page to this file."),
    ],
    target: opts.PlanTargetOption = None,
    inferences: Annotated[
        int | None,
        typer.Option(help="Inferences over time. [default: those that fill the pipeline, and 8 more]"),
    ] = None,
    model_explorer: Annotated[
        Path | None,
        opts.Output({"": NODE_DATA}),
        typer.Option(
            metavar="FILE", help="Also write node data for Google's Model Explorer: stages, as JSON."
        ),
    ] = None,
    constraints: opts.ConstraintsOption = None,
    costs: opts.CostsOption = None,
    objective: opts.PlanObjectiveOption = None,
    overwrite: opts.OverwriteOption = False,
) -> None:
    """Write PLAN as one HTML page: its pipeline, its graph, timeline and memory, what limits it."""
    from go_opt import api
    from go_opt.common.files import write_atomically
    from go_opt.parallel.plans import loaded_step
    from go_opt.report.page import claims_of, node_data_text, page_of, step_page, subject_of

    ((model, plan),) = each_with_plan(given, alone=True)
    if StepOptions().is_step(model):
        opts.refuse_for_step(
            inferences=inferences, model_explorer=model_explorer, costs=costs, constraints=constraints
        )
        answer = loaded_step(plan, None if target is None else api.target(target), model)
        write_atomically(out, step_page(answer, claims_of(plan)))
        typer.echo(
            f"{out}: a training step on {answer.step.case.machine.devices} devices; open it in a browser."
        )
        return
    requested = opts.read_constraints(constraints)
    graph, on, loaded = load_with_plan(model, plan, target, costs)
    claims = claims_of(plan)
    subject = subject_of(graph, on, loaded, objective or claims.objective or "throughput", requested)
    write_atomically(out, page_of(subject, claims, inferences))
    typer.echo(f"{out}: {graph.name} on {on.name}, {len(loaded.order)} ops; open it in a browser.")
    if model_explorer is not None:
        write_atomically(model_explorer, node_data_text(subject) + "\n")
        typer.echo(f"{model_explorer}: the stage of each node; load it in Model Explorer as node data.")


@with_options
def explain(
    plan: opts.PlanArgument,
    op: Annotated[str | None, typer.Argument(metavar="[OP]", help="Explain this op, not all.")] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="The model, where the plan does not say or it has moved; of several models each.",
        ),
    ] = None,
    target: opts.PlanTargetOption = None,
    constraints: opts.ConstraintsOption = None,
    costs: opts.CostsOption = None,
    objective: opts.PlanObjectiveOption = None,
) -> Answer:
    """Explain the cost of PLAN, what limits it and what would help; or why OP is on its chip."""
    from go_opt import api
    from go_opt.explanations import OpExplanation
    from go_opt.model.codecs.plan_json import load_plan
    from go_opt.parallel.plans import is_step_plan, loaded_step
    from go_opt.report.explanation import print_op_explanation, print_plan_explanation
    from go_opt.report.progress import announce_compilation
    from go_opt.result_json import explanation_to_dict

    planned = each_with_plan(models or (), plan)
    if op is None and is_step_plan(plan):
        name = planned[0][0] if models else None
        answer = loaded_step(plan, None if target is None else api.target(target), name)
        return Answer(answer.explanation, lambda: [answer.explanation_lines()])
    requested = opts.read_constraints(constraints)

    def judge(model: str, plan: Path) -> Answer:
        loaded = load_plan(plan)
        on = api.target(target or loaded.target)
        graph = with_costs(_graph(plan, loaded, model if models else None), on, costs, plan)
        announce_compilation()
        aim = objective or objective_of(plan)
        found = api.explain(graph, on, loaded, op, objective=aim, constraints=requested)
        is_valid = isinstance(found, OpExplanation) or not found.violations

        def show(screen: Console) -> None:
            if isinstance(found, OpExplanation):
                print_op_explanation(screen, found)
            else:
                print_plan_explanation(screen, found)

        return Answer(lambda: explanation_to_dict(found), lambda: [show]).ending(valid=is_valid)

    return of_each(planned, judge)


def _graph(path: Path, plan: Plan, model: str | None) -> Graph:
    """Loads the given model, or the model that the plan names."""
    from go_opt import api

    if model is not None:
        return api.load(model, **vars(plan.bindings), precision=plan.precision)
    if not plan.model:
        raise PlanError(
            f"plan file {str(path)!r} does not say which model it is of; give --model.", field="model"
        )
    try:
        return api.load(plan.model, **vars(plan.bindings), precision=plan.precision)
    except (ModelError, GraphError) as error:
        why = str(error).rstrip(".")
        raise PlanError(f"{why}; give --model if what plan file {str(path)!r} is of has moved.") from None
