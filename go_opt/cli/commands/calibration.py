"""Commands about measured seconds: ``calibrate`` learns a machine from them, ``costs`` predicts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt import api
from go_opt.cli.commands import options as opts
from go_opt.cli.commands.options import Answer, with_options
from go_opt.cli.inputs.interrupt import StopOnSignals
from go_opt.cli.inputs.loading import Loading
from go_opt.common.files import write_atomically
from go_opt.common.outputs import DATASET, PLAN, SAMPLES, TARGET
from go_opt.common.units import format_duration
from go_opt.errors import InvalidInputError
from go_opt.extras import check_installed
from go_opt.report.progress import announce_compilation

if TYPE_CHECKING:
    from go_opt.agents.training.problems.environment import Environment
    from go_opt.calibration.calibrating import Calibration
    from go_opt.env import Target


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
    kernels: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Without MODEL: a CSV table of kernels measured on it."),
    ] = None
    processors: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Processors of its GPU, such as SMs, with --kernels."),
    ] = None

    def opened(self, model: str, on: Target) -> tuple[Environment, Target, str]:
        """The environment, the target to pass to it, and its name in the samples file."""

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
def costs(
    kernels: Annotated[
        Path, typer.Option("--kernels", metavar="FILE", help="CSV table of kernels or collectives.")
    ],
    target: opts.TargetOption = "h100-sxm-1",
) -> Answer:
    """Predict the seconds of kernels: products, attention or collectives, a row of the table each.

    The header of the table says which (docs/hardware.md).
    """
    from go_opt.kernels.tables import predicted_rows, read_kernel_table

    rows = predicted_rows(read_kernel_table(kernels), api.target(target))
    lines = [f"row {row['row']}  {format_duration(row['predicted_s'])}" for row in rows]
    return Answer(lambda: rows, lambda: [lines])


@with_options
def calibrate(
    machine: Machine,
    loading: Loading,
    out: Annotated[
        Path,
        opts.Output(
            {"": TARGET, ".samples.json": SAMPLES},
            "--out",
            "-o",
            metavar="TARGET",
            help="Write the target found here.",
        ),
    ],
    plan: Annotated[
        Path | None, opts.Output(PLAN, metavar="FILE", help="Write the fastest plan that was measured.")
    ] = None,
    export: Annotated[
        Path | None, opts.Output(DATASET, metavar="FILE.npz", help="Write all measured plans as a data set.")
    ] = None,
    model: opts.OptionalModelArgument = None,
    target: opts.TargetOption = "mcm-6x6",
    samples: Annotated[
        int, typer.Option(min=1, max=1000, help="Plans to measure, those of earlier runs included.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Draws plans.")] = 0,
    overwrite: opts.OverwriteOption = False,
) -> None:
    """Measure plans of MODEL, and write the target whose figures explain them.

    The samples are kept in TARGET.samples.json: the same command goes on from there. With --kernels,
    nothing is measured: figures are fitted to tables of measured products, attention or collectives.
    """
    check_installed("calibrate", "scipy")
    if (model is None) == (not machine.kernels):
        raise InvalidInputError("give either MODEL or --kernels.", field="model")
    if machine.processors and not machine.kernels:
        raise InvalidInputError("--processors is of tables: give --kernels.", field="processors")
    if model is None:
        if any([machine.simulator, machine.environment, machine.run, plan, export]):
            raise InvalidInputError("--kernels is of tables, and measures no plan.", field="kernels")
        _calibrate_kernels(machine.kernels or [], machine.processors, target, out)
        return
    from go_opt.calibration.calibrating import Calibration
    from go_opt.calibration.samples import write_dataset
    from go_opt.model.codecs.plan_json import save_plan
    from go_opt.report.calibration_lines import fitted_lines

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
    write_atomically(out, calibration.text(learned, error))
    for line in fitted_lines(on, learned.target):
        typer.echo(line)
    typer.echo(f"error     {'unknown' if error is None else f'{error:.1%}'} of chips of plans held out")
    first_s, best_s = calibration.samples[0].interval_s, calibration.best.interval_s
    typer.echo(f"measured  first {_measured(first_s)}, best {_measured(best_s)}")


def _calibrate_kernels(files: list[Path], processors: int | None, target: str, out: Path) -> None:
    from go_opt.kernels.fitting import fitted_target
    from go_opt.kernels.tables import read_kernel_table
    from go_opt.report.calibration_lines import fitted_lines

    tables = [read_kernel_table(file, is_measured=True) for file in files]
    for table in tables:
        if table.ignored:
            typer.echo(f"{table.source}: ignored {', '.join(table.ignored)}", err=True)
    on = api.target(target)
    found, text, fit = fitted_target(on, tables, processors=processors)
    write_atomically(out, text)
    for line in fitted_lines(on, found, fit.errors):
        typer.echo(line)


def _sample_line(calibration: Calibration, samples: int) -> str:
    done = calibration.samples
    best = _measured(calibration.best.interval_s)
    return f"sample {len(done)} of {samples}: {_measured(done[-1].interval_s)}, best {best}"


def _measured(seconds: float) -> str:
    return format_duration(seconds) if math.isfinite(seconds) else "does not run"
