"""The command that runs a plan on this machine: ``run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from go_opt.cli.commands.interrupt import interrupts_raised
from go_opt.cli.commands.options import CostsOption, JsonOption, ModelArgument, PlanTargetOption


def run(
    model: ModelArgument,
    plan: Annotated[Path, typer.Option("--plan", metavar="PLAN", help="A plan written by optimize --out.")],
    inferences: Annotated[int, typer.Option(help="Inferences to run as a pipeline.")] = 100,
    seed: Annotated[int, typer.Option(help="Draws the inputs.")] = 0,
    links: Annotated[
        bool, typer.Option("--links", help="Tensors arrive as late as the target's links make them.")
    ] = False,
    target: PlanTargetOption = None,
    costs: CostsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the stages of a plan in ONNX Runtime, a process for each chip, and compare with the prediction."""
    from go_opt.report.parts.screen import console, print_lines, print_table
    from go_opt.report.progress import announce_compilation
    from go_opt.report.run_tables import run_lines, run_to_dict, stages_table
    from go_opt.run.pipeline.running import run_plan

    announce_compilation()
    with interrupts_raised():  # so that no process is left
        result = run_plan(
            model, plan, inferences=inferences, seed=seed, links=links, target=target, costs=costs
        )
    if as_json:
        typer.echo(json.dumps(run_to_dict(result), ensure_ascii=False))
        return
    screen = console()
    print_lines(screen, run_lines(result))
    screen.print()
    print_table(screen, stages_table(result))
