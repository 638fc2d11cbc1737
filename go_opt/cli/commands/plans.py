"""The commands that make and judge plans: ``optimize``, ``evaluate``, ``verify``, ``diff``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from go_opt.cli.commands import print_json, show
from go_opt.cli.commands.options import (
    Connection,
    ConstraintsOption,
    CostsOption,
    JsonOption,
    ModelArgument,
    ModelsArgument,
    Output,
    OverwriteOption,
    PlanArgument,
    PlanTargetOption,
    StepOptions,
    TargetOption,
    models_named,
    read_constraints,
    refuse_for_step,
    with_options,
)
from go_opt.cli.commands.searching import (
    SizedSearch,
    ask_server,
    fewest_chips_here,
    fewest_chips_there,
    rate_here,
    refuse_beside_rate,
    search_here,
    search_there,
    sharing_here,
)
from go_opt.cli.inputs.loading import (
    PlanOptions,
    StartOptions,
    load_with_plan,
    with_costs,
)
from go_opt.common.files import read_json
from go_opt.common.outputs import PLAN
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InfeasibleError, InvalidInputError, PlanError
from go_opt.result import Objective

if TYPE_CHECKING:
    from go_opt.env import Target
    from go_opt.model.graph import Graph
    from go_opt.parallel.plans import StepAnswer
    from go_opt.result import OptimizeResult
    from go_opt.serving.mixed.answers import RangeAnswer
    from go_opt.serving.rate.planning import RatePlan
    from go_opt.serving.together.sharing import Sharing
    from go_opt.solver import Violation

INVALID_PLAN: Final = 3


@dataclass(frozen=True)
class PlanOut:
    """The file to which the plan is written."""

    out: Annotated[Path | None, Output({"": PLAN}), typer.Option(help="Write the plan to this file.")] = None
    overwrite: OverwriteOption = False


@dataclass(frozen=True)
class CostedStep(StepOptions, PlanOut):
    """A training step in a given configuration, and the file to which its plan is written."""


@with_options
def optimize(
    models: ModelsArgument,
    search: SizedSearch,
    beginning: StartOptions,
    connection: Connection,
    written: PlanOut,
    target: TargetOption = "mcm-6x6",
    cost_model: Annotated[
        Literal["full", "paper"],
        typer.Option("--model", help="paper: the plain model of Xie et al., without the target's effects."),
    ] = "full",
    costs: CostsOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what each method added.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find a plan for MODEL, or for several at once, and bound its distance from the optimum."""
    from go_opt import api
    from go_opt.env.copies.splits import planned_graph
    from go_opt.env.target import PAPER
    from go_opt.report.parts.chip_tables import fewest_line

    connection.refuse_without_server()
    model = search.named(models)
    answer = _of_blocks(search, connection, model, target, as_json=as_json)
    if answer is not None:
        if written.out is not None:
            answer.save(written.out)
        _show_blocks(answer, as_json=as_json)
        return
    if cost_model == "paper" and not target.endswith(PAPER):
        target += PAPER
    request, on, serving = search.request(), api.target(target), None
    rate_per_s, asked = search.rate_per_s(), search.asked_rate()
    if beginning.remember is not None and (search.fewest_chips or asked or connection.server is not None):
        problem = "a service keeps its own plans" if connection.server else "--fewest-chips is many searches"
        raise InvalidInputError(f"--remember: {problem}.", field="remember")
    if asked is None:
        graph = with_costs(beginning.load(model), on, costs)
        request = replace(request, start=beginning.start_of(graph))
    else:
        refuse_beside_rate(beginning)
    with _infeasible_printed(as_json=as_json):
        if asked is not None:
            costed = partial(with_costs, target=on, costs=costs)
            there = search_there(connection)
            serving = rate_here(model, beginning, costed, on, request, asked, search.batch_dim, there)
            graph, result = serving.graph, serving.result
        elif search.fewest_chips:
            if connection.server is None:
                fewest = fewest_chips_here(graph, on, rate_per_s, request)
            else:
                fewest = fewest_chips_there(connection, graph, target, rate_per_s, request)
            typer.echo(fewest_line(fewest, on.num_chips), err=True)
            result = fewest.result
        elif connection.server is not None:
            result = ask_server(connection, graph, target, request)
        else:
            result = search_here(graph, on, request, beginning.remember)
    whole, graph = graph, planned_graph(graph, result.plan)
    if written.out is not None:
        from go_opt.costs.remembered import costs_fact
        from go_opt.model.codecs.plan_json import save_plan
        from go_opt.result_json import plan_facts

        facts = plan_facts(graph, result) | costs_fact(whole, costs)
        save_plan(replace(result.plan, model=model), written.out, facts)
    sharing = None
    if len(models) > 1 and asked is None:
        sharing = sharing_here(model, result, beginning, on, request, search_there(connection))
    _show_result(graph, on, result, serving or sharing, as_json=as_json, verbose=verbose)


@with_options
def evaluate(
    model: ModelArgument,
    judged: PlanOptions,
    connection: Connection,
    step: CostedStep,
    target: PlanTargetOption = None,
    fidelity: Annotated[
        Fidelity, typer.Option(help="A closed form, or a simulation of the package in time.")
    ] = "analytical",
    seed: Annotated[
        int | None, typer.Option(help="Draw the noise of a simulated measurement; none by default.")
    ] = None,
    constraints: ConstraintsOption = None,
    costs: CostsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cost PLAN for MODEL, every chip and link; or a training step divided as --parallel says."""
    from go_opt import api
    from go_opt.env.copies.splits import planned_graph

    connection.refuse_without_server()
    if step.is_step(model):
        refuse_for_step(
            server=connection.server,
            placement=judged.placement,
            seed=seed,
            constraints=constraints,
            costs=costs,
        )
        answer = step.answer(model, target, judged.plan)
        if step.out is not None:
            answer.save(step.out)
        _show_blocks(answer, as_json=as_json)
        return
    if step.out is not None:
        raise InvalidInputError("--out is for a training step with --parallel.", field="out")
    objective = step.of_plan()
    requested = read_constraints(constraints)
    graph, on, loaded = judged.read(model, target, costs)
    if judged.plan is not None:
        objective = objective or objective_of(judged.plan)
    if connection.server is not None:
        with connection.client() as client:
            named = target or loaded.target
            metrics = client.evaluate(
                graph, named, loaded, fidelity=fidelity, seed=seed, constraints=requested
            )
    else:
        metrics = api.evaluate(graph, on, loaded, fidelity=fidelity, seed=seed, constraints=requested)
    if as_json:
        from go_opt.result_json import metrics_to_dict

        print_json(metrics_to_dict(metrics))
    else:
        from go_opt.report.parts.screen import console
        from go_opt.report.tables import print_metrics

        planned = planned_graph(graph, loaded)
        print_metrics(console(), planned, on, loaded, metrics, objective or "throughput")
        if judged.placement is not None:
            show(_broken(api.verify(graph, on, loaded, requested)))
    if not metrics.valid:
        raise typer.Exit(INVALID_PLAN)


def verify(
    model: ModelArgument,
    plan: PlanArgument,
    target: PlanTargetOption = None,
    constraints: ConstraintsOption = None,
    costs: CostsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check PLAN for MODEL against every constraint; exit code 3 if it breaks one."""
    from go_opt import api
    from go_opt.result_json import violations_to_dict

    if StepOptions().is_step(model):
        answer = StepOptions().answer(model, target, plan, refuses=False)
        violations, valid = answer.verify(), answer.valid_text
    else:
        requested = read_constraints(constraints)
        graph, on, loaded = load_with_plan(model, plan, target, costs)
        violations = api.verify(graph, on, loaded, requested)
        valid = f"valid: {len(loaded.order)} ops on {loaded.chips_used} chips of {on.name}."
    if as_json:
        print_json(violations_to_dict(violations))
    else:
        show(_broken(violations) or [valid])
    if violations:
        raise typer.Exit(INVALID_PLAN)


def diff(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="A plan written by optimize --out.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Another one.")],
    model: Annotated[
        str | None, typer.Option(help="Cost both plans for this model.", autocompletion=models_named)
    ] = None,
    costs: CostsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the differences between two plans of a model, or of two versions of a model."""
    from dataclasses import asdict

    from go_opt import api
    from go_opt.explanations.plan_diff import plan_diff
    from go_opt.model.codecs.plan_json import load_plan
    from go_opt.model.codecs.start_files import load_start

    found = plan_diff(load_start(first), load_start(second))
    plans = () if model is None else (load_plan(first), load_plan(second))
    costed = [(plan, api.evaluate(str(model), None, plan, costs=costs)) for plan in plans]
    if as_json:
        from go_opt.result_json import metrics_to_dict

        print_json(asdict(found) | {"metrics": [metrics_to_dict(metrics) for _, metrics in costed]})
    else:
        from go_opt.report.parts.plan_lines import diff_lines

        show(diff_lines(found, costed))


def _broken(violations: list[Violation]) -> list[str]:
    return [f"{violation.constraint}: {violation.message}" for violation in violations]


def objective_of(plan: Path) -> Objective:
    """The objective that a plan file states; ``throughput`` by default."""
    data = read_json(plan, "plan file", PlanError)
    return "latency" if isinstance(data, dict) and data.get("objective") == "latency" else "throughput"


def _show_result(
    graph: Graph,
    target: Target,
    result: OptimizeResult,
    beside: RatePlan | Sharing | None,
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    from go_opt.serving.rate.answers import rate_lines, rate_to_dict
    from go_opt.serving.rate.planning import RatePlan
    from go_opt.serving.together.sharing import sharing_lines, sharing_to_dict

    if as_json:
        from go_opt.result_json import result_to_dict

        if isinstance(beside, RatePlan):
            facts = {"serving": rate_to_dict(beside)}
        else:
            facts = {} if beside is None else sharing_to_dict(beside, graph)
        print_json(result_to_dict(graph, result, target.native_dtype) | facts)
    else:
        from go_opt.report.parts.screen import console
        from go_opt.report.tables import print_result

        print_result(console(), graph, target, result, verbose=verbose)
        if isinstance(beside, RatePlan):
            show(rate_lines(beside, target.num_chips))
        elif beside is not None:
            show(sharing_lines(beside))


@contextmanager
def _infeasible_printed(*, as_json: bool) -> Iterator[None]:
    """With ``--json``, the answer where there is no plan is a JSON object, too."""
    try:
        yield
    except InfeasibleError as error:
        if as_json:
            from go_opt.result_json import infeasible_to_dict

            print_json(infeasible_to_dict(error))
        raise


def _of_blocks(
    search: SizedSearch, connection: Connection, model: str, target: str, *, as_json: bool
) -> StepAnswer | RangeAnswer | None:
    with _infeasible_printed(as_json=as_json):
        return search.of_blocks(model, target, connection)


def _show_blocks(answer: StepAnswer | RangeAnswer, *, as_json: bool) -> None:
    if as_json:
        print_json(answer.to_dict())
    else:
        show(answer.lines())
