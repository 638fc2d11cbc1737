"""The commands that run plans or measure them: ``run``, ``export``, ``profile``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt import api
from go_opt.cli.commands import options as opts
from go_opt.cli.commands.options import Answer, StepOptions, of_each, with_options
from go_opt.cli.inputs.interrupt import interrupts_raised
from go_opt.cli.inputs.loading import DimOption, Sizes, each_with_plan
from go_opt.common.files import make_folder
from go_opt.common.outputs import COSTS, DATASET, TARGET
from go_opt.errors import InvalidInputError
from go_opt.report.progress import announce_compilation
from go_opt.run.manifest import FORMATS, STEP_FORMATS, TORCH_FORMATS

INFERENCES = 100  # of a run, unless another number is given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from go_opt.run.manifest import Manifest
    from go_opt.run.profiling.profiling import Profile


@dataclass(frozen=True)
class Values:
    """Inputs and outputs of a run."""

    seed: Annotated[int, typer.Option(help="Draws the inputs.")] = 0
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Inputs of your own, an array for each by name.")
    ] = None
    outputs: Annotated[
        Path | None,
        opts.Output(DATASET, metavar="FILE.npz", help="Write the outputs of the first inference."),
    ] = None
    overwrite: opts.OverwriteOption = False
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest difference of an output, relative to its largest value. [default: learnt from "
            "what ONNX Runtime's optimisation changes in the whole model]"
        ),
    ] = None


@with_options
def run(
    given: opts.ModelsAndPlanArgument,
    values: Values,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="A plan written by optimize --out.")
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="HOST:PORT", help="Instead of one plan, run those of clients there."),
    ] = None,
    inferences: Annotated[int, typer.Option(help="Inferences of a plan to run as a pipeline.")] = INFERENCES,
    sequences: Annotated[
        int | None, typer.Option(help="Sequences in flight, each with its own states. [default: the plan's]")
    ] = None,
    links: Annotated[
        bool, typer.Option("--links", help="Tensors arrive as late as the target's links make them.")
    ] = False,
    target: opts.PlanTargetOption = None,
    costs: opts.CostsOption = None,
    as_json: opts.JsonOption = False,
) -> Answer | None:
    """Run the stages of a plan in ONNX Runtime, a process for each chip, and compare with the prediction.

    A plan of a training step (gpt:…) runs in JAX, three steps, and is compared with the step on one device.
    """
    from go_opt.hardware import serve_environment
    from go_opt.report.run_tables import run_lines, run_to_dict, stages_table
    from go_opt.run.pipeline.check import save_arrays
    from go_opt.run.pipeline.results import OutputsDifferError
    from go_opt.run.pipeline.running import run_plan
    from go_opt.run.profiling.measured_machine import MeasuredMachine

    announce_compilation()
    is_planned = plan is not None or len(given) > 1
    if is_planned == (serve is not None):
        raise InvalidInputError("give --plan or --serve, one of them.", field="plan")
    planned = each_with_plan(given, plan) if is_planned else []
    if StepOptions().is_step(given[0]):
        opts.refuse_for_step(
            serve=serve,
            inferences=inferences != INFERENCES,
            sequences=sequences,
            links=links,
            costs=costs,
            inputs=values.inputs,
            outputs=values.outputs,
        )
        return _run_step(*planned[0], values, target)
    if not planned:
        if as_json or any(
            option is not None for option in (values.inputs, values.outputs, sequences, target, costs)
        ):
            raise InvalidInputError(
                "--inputs, --outputs, --sequences, --target, --costs and --json are for --plan.",
                field="serve",
            )
        serve_environment(MeasuredMachine(given[0], inferences, values.seed, links), str(serve))
        return None
    if len(planned) > 1 and any(option is not None for option in (values.inputs, values.outputs, sequences)):
        problem = "--inputs, --outputs and --sequences are for one of these models"
        raise InvalidInputError(f"{problem}, whose plan is {str(planned[0][1])!r}.", field="plan")

    def judge(model: str, plan: Path) -> Answer:
        failure = None
        try:
            result = run_plan(
                model,
                plan,
                inferences=inferences,
                seed=values.seed,
                links=links,
                inputs=values.inputs,
                target=target,
                costs=costs,
                tolerance=values.tolerance,
                sequences=sequences,
            )
        except OutputsDifferError as error:
            failure, result = error, error.result
        if values.outputs is not None:
            save_arrays(values.outputs, result.outputs)
        return Answer(
            lambda: run_to_dict(result), lambda: [run_lines(result), [""], stages_table(result)], failure
        )

    with interrupts_raised():  # so that no process stays behind
        return of_each(planned, judge)


def _run_step(model: str, plan: Path, values: Values, target: str | None) -> Answer:
    """Run a plan of a training step."""
    from go_opt.parallel.execution.running import StepDiffersError, run_step

    failure, on = None, None if target is None else api.target(target)
    with interrupts_raised():  # so that no process stays behind
        try:
            result = run_step(model, plan, seed=values.seed, target=on, tolerance=values.tolerance)
        except StepDiffersError as error:
            failure, result = error, error.result
    return Answer(result.to_dict, lambda: [result.lines()], failure)


@with_options
def export(
    given: opts.ModelsAndPlanArgument,
    *,
    directory: Annotated[Path, opts.Output({}, "--out", "-o", metavar="DIR", help="Write to this folder.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"{', '.join(FORMATS)}, of a .pt2 file {', '.join(TORCH_FORMATS)}, of a training step "
            f"{', '.join(STEP_FORMATS)}; may be given more than once.  [default: stages, split-spec and "
            "device-map, or all of a training step]",
        ),
    ] = None,
    target: opts.PlanTargetOption = None,
    costs: opts.CostsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of an earlier export.")] = False,
    simplify: Annotated[
        bool, typer.Option("--simplify", help="Without PLAN: write the model alone, with fewer ops.")
    ] = False,
    dim: DimOption = None,
) -> None:
    """Write each stage of PLAN as an ONNX model of its own, or the plan for other tools."""
    from go_opt.parallel.export.exporting import export_step
    from go_opt.run.export.exporting import export as export_plan
    from go_opt.run.export.torch_export import export_torch

    if simplify:
        refused = {
            "PLAN": given[1:],
            "--format": formats,
            "--target": target,
            "--costs": costs,
            "--force": force,
        }
        _simplify(given[0], directory, dim, [name for name, value in refused.items() if value])
        return
    if len(given) == 1 or dim:
        problem = "give PLAN, or --simplify" if len(given) == 1 else "--dim is that of PLAN"
        raise InvalidInputError(f"{problem}.", field="plan")
    announce_compilation()
    planned = each_with_plan(given)
    notes = list[str]()
    with interrupts_raised(), _made(directory, len(planned) > 1):  # so that no partial output stays behind
        for number, (model, plan) in enumerate(planned, 1):
            folder = directory if len(planned) == 1 else directory / str(number)
            if StepOptions().is_step(model):
                opts.refuse_for_step(costs=costs)
                chosen = formats or list(STEP_FORMATS)
                on = None if target is None else api.target(target)
                step = export_step(model, plan, folder, formats=chosen, target=on, force=force)
                text, notes = f"{len(step.layers)} pipeline ranks of {step.model}", [*notes, *step.notes]
            elif model.endswith(".pt2"):
                chosen = formats or ["split-spec", "device-map"]
                split = export_torch(
                    model, plan, folder, formats=chosen, target=target, costs=costs, force=force
                )
                text, notes = f"{len(split.chips)} stages of {split.model}", [*notes, *split.notes]
            else:
                chosen = formats or ["stages"]
                text = _exported(
                    export_plan(model, plan, folder, formats=chosen, target=target, costs=costs, force=force)
                )
            typer.echo(f"{folder}: {text}; {', '.join(dict.fromkeys(chosen))}")
    for note in notes:
        typer.echo(note)


@contextmanager
def _made(directory: Path, is_parent: bool) -> Iterator[None]:
    """Makes a folder for several exports; it goes again if there is none."""
    if is_parent:
        make_folder(directory)
    try:
        yield
    finally:
        if is_parent:
            with suppress(OSError):  # it is not empty
                directory.rmdir()


def _simplify(model: str, directory: Path, dim: list[str] | None, refused: Sequence[str]) -> None:
    from go_opt.run.simplifying.simplifying import SIMPLIFIED, simplify

    if refused:
        raise InvalidInputError(f"--simplify takes no {refused[0]}.", field="simplify")
    with interrupts_raised():
        found = simplify(model, directory, Sizes(dim).bindings())
    counts = ", ".join(f"{number} {rule}" for rule, number in found.rewrites.items()) or "nothing to rewrite"
    typer.echo(f"{directory / SIMPLIFIED}: {counts}")
    typer.echo(f"outputs differ by {found.difference:.1e}, of ONNX Runtime's levels by {found.noise:.1e}")


def _exported(manifest: Manifest) -> str:
    stages, chips = len(manifest.stages), {chip for stage in manifest.stages for chip in stage.chips}
    several = sum(stage.part == 1 for stage in manifest.stages)
    note = f", {several} of which run several" if several else ""
    return f"{stages} stages of {manifest.model} on {len(chips)} chips{note}"


@with_options
def profile(
    model: opts.ModelArgument,
    sizes: Sizes,
    out: Annotated[Path, opts.Output(TARGET, "--out", "-o", metavar="TARGET", help="Write the target here.")],
    costs: Annotated[
        Path | None,
        opts.Output(COSTS, "--costs", metavar="FILE", help="Write the seconds of each op to this CSV file."),
    ] = None,
    chips: Annotated[int, typer.Option(help="Processes that the target has.")] = 4,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Draws cuts and inputs.")] = 0,
    overwrite: opts.OverwriteOption = False,
) -> None:
    """Run random segments of MODEL on this machine, and write it as a target to plan for."""
    from go_opt.run.profiling.profiling import profile as measure

    bindings = sizes.bindings()
    announce_compilation()
    with interrupts_raised():  # so that no folder of segments stays behind
        found = measure(model, out, costs, chips=chips, seconds=seconds, seed=seed, **vars(bindings))
    for line in _profiled(found):
        typer.echo(line)


def _profiled(found: Profile) -> Iterator[str]:
    graph = found.graph
    yield f"{graph.name}: {graph.num_ops} ops, {found.segments} segments measured in processor time"
    yield (
        f"held out    {found.held_out} segments, mean error on the longest {_share(found.rates_error)} by "
        f"the rates, {_share(found.ops_error)} by the seconds of ops"
    )
    yield f"all ops     {sum(found.op_s.values()) * 1e3:.4g} ms"
    for name, seconds in found.quantity_s.items():
        yield f"  {seconds:.3g} s per {name}"


def _share(error: float) -> str:
    return f"{error:.1%}" if error == error else "unknown"
