"""The command that runs a plan on this machine: ``run``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from go_opt.cli.commands.interrupt import interrupts_raised
from go_opt.cli.commands.options import (
    CostsOption,
    JsonOption,
    ModelArgument,
    PlanTargetOption,
    with_options,
)
from go_opt.cli.commands.plans import check_writable
from go_opt.errors import InvalidInputError


@dataclass(frozen=True)
class Values:
    """What goes in and what comes out."""

    seed: Annotated[int, typer.Option(help="Draws the inputs.")] = 0
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Inputs of your own, an array for each by name.")
    ] = None
    outputs: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write the outputs of the first inference.")
    ] = None


@with_options
def run(
    model: ModelArgument,
    values: Values,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="A plan written by optimize --out.")
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="HOST:PORT", help="Instead of one plan, run those of clients there."),
    ] = None,
    inferences: Annotated[int, typer.Option(help="Inferences of a plan to run as a pipeline.")] = 100,
    links: Annotated[
        bool, typer.Option("--links", help="Tensors arrive as late as the target's links make them.")
    ] = False,
    target: PlanTargetOption = None,
    costs: CostsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the stages of a plan in ONNX Runtime, a process for each chip, and compare with the prediction."""
    from go_opt.hardware import serve_environment
    from go_opt.report.parts.screen import console, print_lines, print_table
    from go_opt.report.progress import announce_compilation
    from go_opt.report.run_tables import run_lines, run_to_dict, stages_table
    from go_opt.run.pipeline.inputs import save_arrays
    from go_opt.run.pipeline.running import run_plan
    from go_opt.run.profiling.measured_machine import MeasuredMachine

    announce_compilation()
    if (plan is None) == (serve is None):
        raise InvalidInputError("give --plan or --serve, one of them.", field="plan")
    if plan is None:
        if as_json or any(option is not None for option in (values.inputs, values.outputs, target, costs)):
            raise InvalidInputError(
                "--inputs, --outputs, --target, --costs and --json are for --plan.", field="serve"
            )
        serve_environment(MeasuredMachine(model, inferences, values.seed, links), str(serve))
        return
    check_writable(values.outputs, "--outputs")
    with interrupts_raised():  # so that no process is left
        result = run_plan(
            model,
            plan,
            inferences=inferences,
            seed=values.seed,
            links=links,
            inputs=values.inputs,
            target=target,
            costs=costs,
        )
    if values.outputs is not None:
        save_arrays(values.outputs, result.outputs)
    if as_json:
        typer.echo(json.dumps(run_to_dict(result), ensure_ascii=False))
        return
    screen = console()
    print_lines(screen, run_lines(result))
    screen.print()
    print_table(screen, stages_table(result))
