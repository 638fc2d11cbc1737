"""Commands that make, judge and show plans: ``optimize``, ``evaluate``, ``verify``, ``report`` and others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from go_opt import api
from go_opt.cli.commands import options as opts
from go_opt.cli.commands import searching
from go_opt.cli.commands.options import Answer, StepOptions, of_each, with_options
from go_opt.cli.inputs.loading import (
    PlanOptions,
    StartOptions,
    each_with_plan,
    load_with_plan,
    with_costs,
)
from go_opt.common.files import read_json, write_atomically
from go_opt.common.outputs import NODE_DATA, PAGE, PLAN, TRACE
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import GraphError, InvalidInputError, ModelError, PlanError
from go_opt.report.progress import announce_compilation
from go_opt.result import Objective

if TYPE_CHECKING:
    from rich.console import Console

    from go_opt.model.graph import Graph
    from go_opt.model.plan import Plan
    from go_opt.parallel.plans.answers import StepAnswer
    from go_opt.solver import Violation


@dataclass(frozen=True)
class PlanOut:
    """The file to which the plan is written."""

    out: Annotated[Path | None, opts.Output(PLAN, help="Write the plan to this file.")] = None
    overwrite: opts.OverwriteOption = False


@dataclass(frozen=True)
class CostedStep(StepOptions, PlanOut):
    """A training step in a given configuration, and the file to which its plan is written."""


@with_options
def optimize(
    models: opts.ModelsArgument,
    search: searching.SizedSearch,
    beginning: StartOptions,
    connection: opts.Connection,
    written: PlanOut,
    target: opts.TargetOption = "mcm-6x6",
    cost_model: Annotated[
        Literal["full", "paper"],
        typer.Option("--model", help="paper: the plain model of Xie et al., without the target's effects."),
    ] = "full",
    costs: opts.CostsOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what each method added.")
    ] = False,
) -> Answer:
    """Find a plan for MODEL, or for several at once, and bound its distance from the optimum."""
    from go_opt.costs.measured_costs import costs_fact
    from go_opt.env.copies.splits import planned_graph
    from go_opt.env.target import PAPER
    from go_opt.model.codecs.plan_json import save_plan
    from go_opt.report.tables import print_result
    from go_opt.result_json import plan_facts, result_to_dict
    from go_opt.serving.together.sharing import save_turns, sharing_lines, sharing_to_dict

    connection.refuse_without_server()
    model = search.named(models)
    blocks = search.of_blocks(model, target, connection)
    if blocks is not None:
        if written.out is not None:
            blocks.save(written.out)
        return _of_blocks(blocks)
    if cost_model == "paper" and not target.endswith(PAPER):
        target += PAPER
    request, on = search.request(), api.target(target)
    rate_per_s, asked = search.rate_per_s(), search.asked_rate()
    if beginning.remember is not None and (search.fewest_chips or asked or connection.server is not None):
        problem = "a service keeps its own plans" if connection.server else "--fewest-chips is many searches"
        raise InvalidInputError(f"--remember: {problem}.", field="remember")
    searches = searching.Searches(model, beginning, costs, target, on, request, connection)
    if search.prefill is not None:
        found = searches.with_prompts(search.prefill, asked)
        if written.out is not None:
            found.save(written.out)
        return _of_blocks(found)
    serving = None
    if asked is not None:
        serving = searches.at_rate(asked, search.batch_dim)
        whole, result = serving.graph, serving.result
    else:
        whole = searches.load()
        searches = replace(searches, request=replace(request, start=beginning.start_of(whole)))
        result = searches.on_fewest_chips(whole, rate_per_s) if search.fewest_chips else searches.best(whole)
    graph = planned_graph(whole, result.plan)
    if written.out is not None:
        claims = plan_facts(graph, result) | costs_fact(whole, costs)
        save_plan(replace(result.plan, model=model), written.out, claims)
    facts: dict[str, Any] = {}
    lines: Iterable[str] = ()
    if serving is not None:
        facts, lines = {"serving": serving.to_dict()}, serving.lines(on.num_chips)
    elif len(models) > 1 and not search.fewest_chips:
        sharing = searches.in_turns(result, whole)
        if sharing is not None:
            facts, lines = sharing_to_dict(sharing, graph), sharing_lines(sharing)
            if written.out is not None and sharing.best.units and costs is None:
                save_turns(facts, model, written.out)
    return Answer(
        lambda: result_to_dict(graph, result, on.native_dtype) | facts,
        lambda: (lambda screen: print_result(screen, graph, on, result, verbose=verbose), lines),
    )


@with_options
def evaluate(
    given: opts.ModelsAndPlanArgument,
    judged: PlanOptions,
    connection: opts.Connection,
    step: CostedStep,
    target: opts.PlanTargetOption = None,
    fidelity: Annotated[
        Fidelity, typer.Option(help="A closed form, or a simulation of the package in time.")
    ] = "analytical",
    seed: Annotated[
        int | None, typer.Option(help="Draw the noise of a simulated measurement; none by default.")
    ] = None,
    constraints: opts.ConstraintsOption = None,
    costs: opts.CostsOption = None,
) -> Answer:
    """Cost PLAN for MODEL, every chip and link; or a training step divided as --parallel says."""
    from go_opt.env.copies.splits import planned_graph
    from go_opt.report.tables import print_metrics
    from go_opt.result_json import metrics_to_dict

    connection.refuse_without_server()
    is_step = step.is_step(given[0])
    if not is_step:
        judged.check(is_planned=len(given) > 1)
    planned: list[tuple[str, Path | None]] = [(given[0], None)]
    if len(given) > 1:
        planned = [*each_with_plan(given)]
    if is_step:
        opts.refuse_for_step(
            server=connection.server,
            placement=judged.placement,
            seed=seed,
            constraints=constraints,
            costs=costs,
        )
        answer = step.answer(given[0], target, planned[0][1])
        if step.out is not None:
            answer.save(step.out)
        return _of_blocks(answer)
    if step.out is not None:
        raise InvalidInputError("--out is for a training step with --parallel.", field="out")
    requested = opts.read_constraints(constraints)

    def judge(model: str, plan: Path | None) -> Answer:
        graph, on, loaded = judged.read(model, plan, target, costs)
        if connection.server is not None:
            with connection.client() as client:
                named = target or loaded.target
                metrics = client.evaluate(
                    graph, named, loaded, fidelity=fidelity, seed=seed, constraints=requested
                )
        else:
            metrics = api.evaluate(graph, on, loaded, fidelity=fidelity, seed=seed, constraints=requested)
        objective = step.of_plan() or ("throughput" if plan is None else objective_of(plan))
        whole, broken = planned_graph(graph, loaded), list[str]()
        if judged.placement is not None:
            broken = _broken(api.verify(graph, on, loaded, requested))

        def show(screen: Console) -> None:
            print_metrics(screen, whole, on, loaded, metrics, objective)

        return Answer(lambda: metrics_to_dict(metrics), lambda: (show, broken)).ending(valid=metrics.valid)

    return of_each(planned, judge)


@with_options
def verify(
    given: opts.ModelsAndPlanArgument,
    target: opts.PlanTargetOption = None,
    constraints: opts.ConstraintsOption = None,
    costs: opts.CostsOption = None,
) -> Answer:
    """Check PLAN for MODEL against every constraint; exit code 3 if it breaks one."""
    from go_opt.result_json import violations_to_dict

    requested = opts.read_constraints(constraints)

    def judge(model: str, plan: Path) -> Answer:
        if StepOptions().is_step(model):
            answer = StepOptions().answer(model, target, plan, refuses=False)
            violations, valid = answer.verify(), answer.valid_text
        else:
            graph, on, loaded = load_with_plan(model, plan, target, costs)
            violations = api.verify(graph, on, loaded, requested)
            valid = f"valid: {len(loaded.order)} ops on {loaded.chips_used} chips of {on.name}."
        found = Answer(lambda: violations_to_dict(violations), lambda: [_broken(violations) or [valid]])
        return found.ending(valid=not violations)

    return of_each(each_with_plan(given), judge)


@with_options
def diff(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="A plan written by optimize --out.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Another one.")],
    model: Annotated[
        str | None, typer.Option(help="Cost both plans for this model.", autocompletion=opts.models_named)
    ] = None,
    costs: opts.CostsOption = None,
) -> Answer:
    """Show the differences between two plans of a model, or of two versions of a model."""
    from dataclasses import asdict

    from go_opt.explanations.plan_diff import plan_diff
    from go_opt.model.codecs.plan_json import load_plan
    from go_opt.model.codecs.start_files import load_start
    from go_opt.report.parts.plan_lines import diff_lines
    from go_opt.result_json import metrics_to_dict

    found = plan_diff(load_start(first), load_start(second))
    plans = () if model is None else (load_plan(first), load_plan(second))
    costed = [(plan, api.evaluate(str(model), None, plan, costs=costs)) for plan in plans]
    metrics = [metrics for _, metrics in costed]
    return Answer(
        lambda: asdict(found) | {"metrics": list(map(metrics_to_dict, metrics))},
        lambda: [diff_lines(found, costed)],
    )


def _broken(violations: list[Violation]) -> list[str]:
    return [f"{violation.constraint}: {violation.message}" for violation in violations]


def objective_of(plan: Path) -> Objective:
    """The objective that a plan file states; ``throughput`` by default."""
    data = read_json(plan, "plan file", PlanError)
    return "latency" if isinstance(data, dict) and data.get("objective") == "latency" else "throughput"


def _step(plan: Path, target: str | None, model: str | None) -> StepAnswer:
    """The training step of a plan, on ``target`` in place of its own."""
    from go_opt.parallel.plans.answers import loaded_step

    return loaded_step(plan, None if target is None else api.target(target), model)


def _of_blocks(answer: searching.SavedAnswer) -> Answer:
    return Answer(answer.to_dict, lambda: [answer.lines()])


@with_options
def trace(
    given: opts.ModelsAndPlanArgument,
    out: Annotated[Path, opts.Output(TRACE, "--out", "-o", help="Write the trace to this file.")],
    target: opts.PlanTargetOption = None,
    fidelity: Annotated[Fidelity, typer.Option(help="What schedules kernels and transfers.")] = "simulated",
    inferences: Annotated[int, typer.Option(help="Inferences to trace, from rest.")] = 16,
    costs: opts.CostsOption = None,
    objective: opts.PlanObjectiveOption = None,
    overwrite: opts.OverwriteOption = False,
) -> None:
    """Write when each kernel and transfer of PLAN runs, for ui.perfetto.dev or chrome://tracing."""
    from go_opt.env.copies.splits import planned_graph
    from go_opt.env.critical_path import critical_path
    from go_opt.report.trace import trace_text

    ((model, plan),) = each_with_plan(given, alone=True)
    if StepOptions().is_step(model):
        passes = _step(plan, target, model).save_trace(out)
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
        Path, opts.Output(PAGE, "--out", "-o", metavar="FILE", help="Write the page to this file.")
    ],
    target: opts.PlanTargetOption = None,
    inferences: Annotated[
        int | None,
        typer.Option(help="Inferences over time. [default: those that fill the pipeline, and 8 more]"),
    ] = None,
    model_explorer: Annotated[
        Path | None,
        opts.Output(
            NODE_DATA,
            metavar="FILE",
            help="Also write node data for Google's Model Explorer: stages, as JSON.",
        ),
    ] = None,
    constraints: opts.ConstraintsOption = None,
    costs: opts.CostsOption = None,
    objective: opts.PlanObjectiveOption = None,
    overwrite: opts.OverwriteOption = False,
) -> None:
    """Write PLAN as one HTML page: its pipeline, its graph, timeline and memory, what limits it."""
    from go_opt.report.page import claims_of, node_data_text, page_of, step_page, subject_of

    ((model, plan),) = each_with_plan(given, alone=True)
    if StepOptions().is_step(model):
        opts.refuse_for_step(
            inferences=inferences, model_explorer=model_explorer, costs=costs, constraints=constraints
        )
        answer = _step(plan, target, model)
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
    from go_opt.explanations import OpExplanation
    from go_opt.model.codecs.plan_json import load_plan
    from go_opt.parallel.plans.answers import is_step_plan
    from go_opt.report.explanation import print_op_explanation, print_plan_explanation
    from go_opt.result_json import explanation_to_dict

    planned = each_with_plan(models or (), plan)
    if op is None and is_step_plan(plan):
        name = planned[0][0] if models else None
        answer = _step(plan, target, name)
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
