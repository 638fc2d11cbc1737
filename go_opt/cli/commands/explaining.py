"""The command that says why: ``explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt.cli.commands.options import (
    ConstraintsOption,
    CostsOption,
    JsonOption,
    PlanArgument,
    PlanObjectiveOption,
    PlanTargetOption,
    read_constraints,
)
from go_opt.cli.commands.plans import INVALID_PLAN, objective_of
from go_opt.cli.inputs.loading import with_costs
from go_opt.errors import GraphError, ModelError, PlanError

if TYPE_CHECKING:
    from go_opt.explanations import OpExplanation, PlanExplanation
    from go_opt.model.graph import Graph
    from go_opt.model.plan import Plan


def explain(
    plan: PlanArgument,
    op: Annotated[str | None, typer.Argument(metavar="[OP]", help="Explain this op, not all.")] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model, where the plan does not say or it has moved."),
    ] = None,
    target: PlanTargetOption = None,
    constraints: ConstraintsOption = None,
    costs: CostsOption = None,
    objective: PlanObjectiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why PLAN costs what it costs, what binds and what would help; or why OP is where it is."""
    from go_opt import api
    from go_opt.model.codecs.plan_json import load_plan
    from go_opt.report.progress import announce_compilation

    loaded = load_plan(plan)
    asked = read_constraints(constraints)
    on = api.target(target or loaded.target)
    graph = with_costs(_graph(plan, loaded, model), on, costs, plan)
    announce_compilation()
    aim = objective or objective_of(plan)
    told = api.explain(graph, on, loaded, op, objective=aim, constraints=asked)
    _show(told, as_json=as_json)
    if op is None and told.violations:
        raise typer.Exit(INVALID_PLAN)


def _graph(path: Path, plan: Plan, model: str | None) -> Graph:
    """The model that was given, or the one that the plan says it is of."""
    from go_opt import api

    if model is not None:
        return api.load(model, dims=plan.dims, precision=plan.precision)
    if not plan.model:
        raise PlanError(
            f"plan file {str(path)!r} does not say which model it is of; give --model.", field="model"
        )
    try:
        return api.load(plan.model, dims=plan.dims, precision=plan.precision)
    except (ModelError, GraphError) as error:
        why = str(error).rstrip(".")
        raise PlanError(f"{why}; give --model if what plan file {str(path)!r} is of has moved.") from None


def _show(told: PlanExplanation | OpExplanation, *, as_json: bool) -> None:
    if as_json:
        from go_opt.explanations.as_json import explanation_to_dict

        typer.echo(json.dumps(explanation_to_dict(told), allow_nan=False))
        return
    from go_opt.explanations import OpExplanation
    from go_opt.report.explanation import print_plan_explanation
    from go_opt.report.op_explanation import print_op_explanation
    from go_opt.report.parts.screen import console

    if isinstance(told, OpExplanation):
        print_op_explanation(console(), told)
    else:
        print_plan_explanation(console(), told)
