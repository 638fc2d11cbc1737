"""The commands that run plans or measure them: ``run``, ``export``, ``profile``, ``calibrate``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt.cli.commands import show
from go_opt.cli.commands.interrupt import StopOnSignals, interrupts_raised
from go_opt.cli.commands.options import (
    CostsOption,
    JsonOption,
    ModelArgument,
    PlanArgument,
    PlanTargetOption,
    TargetOption,
    with_options,
)
from go_opt.cli.commands.plans import check_writable
from go_opt.cli.inputs.loading import Loading, parse_dims
from go_opt.common.units import format_duration
from go_opt.errors import InvalidInputError
from go_opt.run.manifest import FORMATS, TORCH_FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from go_opt.agents.training.problems.environment import Environment
    from go_opt.calibration.calibrating import Calibration
    from go_opt.env import Target
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
    with interrupts_raised():  # so that no process stays behind
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
    show(run_lines(result), [""], stages_table(result))


def export(
    model: ModelArgument,
    plan: PlanArgument,
    directory: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Write to this folder.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"{', '.join(FORMATS)}, or of a .pt2 file {', '.join(TORCH_FORMATS)}; "
            "may be given more than once.  [default: stages, or split-spec and device-map]",
        ),
    ] = None,
    target: PlanTargetOption = None,
    costs: CostsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write each stage of PLAN as an ONNX model of its own, or the plan for other tools."""
    from go_opt.report.progress import announce_compilation
    from go_opt.run.export.exporting import export as export_plan
    from go_opt.run.export.torch_export import export_torch

    announce_compilation()
    with interrupts_raised():  # so that no partial output stays behind
        if model.endswith(".pt2"):
            chosen = formats or ["split-spec", "device-map"]
            split = export_torch(
                model, plan, directory, formats=chosen, target=target, costs=costs, force=force
            )
            text, notes = f"{len(split.chips)} stages of {split.model}", split.notes
        else:
            chosen = formats or ["stages"]
            manifest = export_plan(
                model, plan, directory, formats=chosen, target=target, costs=costs, force=force
            )
            text, notes = _exported(manifest), ()
    typer.echo(f"{directory}: {text}; {', '.join(dict.fromkeys(chosen))}")
    for note in notes:
        typer.echo(note)


def _exported(manifest: Manifest) -> str:
    stages, chips = len(manifest.stages), {chip for stage in manifest.stages for chip in stage.chips}
    several = sum(stage.part == 1 for stage in manifest.stages)
    note = f", {several} of which run several" if several else ""
    return f"{stages} stages of {manifest.model} on {len(chips)} chips{note}"


def profile(
    model: ModelArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="TARGET", help="Write the target here.")],
    costs: Annotated[
        Path | None,
        typer.Option("--costs", metavar="FILE", help="Write the seconds of each op to this CSV file."),
    ] = None,
    chips: Annotated[int, typer.Option(help="Processes that the target has.")] = 4,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Draws cuts and inputs.")] = 0,
    dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Bind a symbolic dimension.")
    ] = None,
) -> None:
    """Run random segments of MODEL on this machine, and write it as a target to plan for."""
    from go_opt.report.progress import announce_compilation
    from go_opt.run.profiling.profiling import profile as measure

    for path in (out, costs):
        check_writable(path)
    announce_compilation()
    with interrupts_raised():  # so that no folder of segments stays behind
        found = measure(
            model, out, costs, chips=chips, seconds=seconds, seed=seed, dims=parse_dims(dim or [])
        )
    show(_profiled(found))


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


@dataclass(frozen=True)
class Machine:
    """The machine that measures plans."""

    simulator: Annotated[
        Path | None, typer.Option(metavar="TARGET", help="The simulator of this target stands for it.")
    ] = None
    environment: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A service that measures, such as your hardware.")
    ] = None
    run: Annotated[bool, typer.Option("--run", help="Processes of ONNX Runtime on this machine.")] = False

    def opened(self, model: str, on: Target) -> tuple[Environment, Target, str]:
        """The environment, the target to pass to it, and its name in the samples file."""
        from go_opt import api

        if (self.simulator is not None) + (self.environment is not None) + self.run != 1:
            raise InvalidInputError("give one of --simulator, --environment and --run.", field="simulator")
        if self.simulator is not None:
            from go_opt.agents.training.problems.environment import LocalEnvironment

            machine = api.target(self.simulator)
            if machine.num_chips != on.num_chips:
                chips = f"{machine.name!r} has {machine.num_chips} chips, {on.name!r} {on.num_chips}."
                raise InvalidInputError(f"--simulator: {chips}", field="simulator")
            return LocalEnvironment("simulated"), machine, f"simulator {machine.fingerprint}"
        if self.environment is not None:
            from go_opt.service.environment.remote_environment import RemoteEnvironment

            # Without the address, because the service may move.
            return RemoteEnvironment(self.environment).connect(), on, "environment"
        from go_opt.hardware import HardwareEnvironment
        from go_opt.run.profiling.measured_machine import MeasuredMachine

        return HardwareEnvironment(MeasuredMachine(model)), on, "this machine"


@with_options
def calibrate(
    model: ModelArgument,
    machine: Machine,
    loading: Loading,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="TARGET", help="Write the target found here.")],
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the fastest plan that was measured.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write all measured plans as a data set.")
    ] = None,
    target: TargetOption = "mcm-6x6",
    samples: Annotated[
        int, typer.Option(min=1, max=1000, help="Plans to measure, those of earlier runs included.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Draws plans.")] = 0,
) -> None:
    """Measure plans of MODEL, and write the target whose figures explain them.

    The samples are kept in TARGET.samples.json: the same command goes on from there.
    """
    from go_opt import api
    from go_opt.calibration.calibrating import Calibration
    from go_opt.calibration.dataset import write_dataset
    from go_opt.common.files import write_atomically
    from go_opt.model.codecs.plan_json import save_plan
    from go_opt.report.progress import announce_compilation

    check_writable(out)
    check_writable(plan, "--plan")
    check_writable(export, "--export")
    on = api.target(target)
    environment, requested, name = machine.opened(model, on)
    store = Path(f"{out}.samples.json")
    graph = loading.load(model)
    calibration = Calibration(graph, on, environment, store, machine=requested, machine_name=name, seed=seed)
    announce_compilation()
    with StopOnSignals() as stop:
        for learned in calibration.run(samples, stop.is_requested):
            write_atomically(out, calibration.text(learned))
            if plan is not None and math.isfinite(calibration.best.interval_s):
                save_plan(calibration.best.plan, plan)
            if export is not None:
                write_dataset(export, graph, on, calibration.samples)
            typer.echo(_sample_line(calibration, samples), err=True)
    if stop.is_requested() and len(calibration.samples) < samples:
        raise KeyboardInterrupt
    error = calibration.error()
    typer.echo(f"error     {'unknown' if error is None else _share(error)} of chips of plans held out")
    first_s, best_s = calibration.samples[0].interval_s, calibration.best.interval_s
    typer.echo(f"measured  first {_measured(first_s)}, best {_measured(best_s)}")


def _sample_line(calibration: Calibration, samples: int) -> str:
    done = calibration.samples
    best = _measured(calibration.best.interval_s)
    return f"sample {len(done)} of {samples}: {_measured(done[-1].interval_s)}, best {best}"


def _measured(seconds: float) -> str:
    return format_duration(seconds) if math.isfinite(seconds) else "does not run"
