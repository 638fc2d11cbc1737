"""The command that writes a plan for other tools to run: ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt.cli.commands.interrupt import interrupts_raised
from go_opt.cli.commands.options import CostsOption, ModelArgument, PlanArgument, PlanTargetOption
from go_opt.run.export import FORMATS

if TYPE_CHECKING:
    from go_opt.run.export import Manifest


def export(
    model: ModelArgument,
    plan: PlanArgument,
    directory: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Write to this folder.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"{', '.join(FORMATS)}; may be given more than once.  [default: stages]",
        ),
    ] = None,
    target: PlanTargetOption = None,
    costs: CostsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write each stage of PLAN as an ONNX model of its own, or the plan for other tools."""
    from go_opt.report.progress import announce_compilation
    from go_opt.run.export import export as export_plan

    announce_compilation()
    chosen = formats or ["stages"]
    with interrupts_raised():  # so that nothing half written is left
        manifest = export_plan(
            model, plan, directory, formats=chosen, target=target, costs=costs, force=force
        )
    typer.echo(f"{directory}: {_text(manifest)}; {', '.join(dict.fromkeys(chosen))}")


def _text(manifest: Manifest) -> str:
    stages, chips = len(manifest.stages), {chip for stage in manifest.stages for chip in stage.chips}
    several = sum(stage.part == 1 for stage in manifest.stages)
    note = f", {several} of which run several" if several else ""
    return f"{stages} stages of {manifest.model} on {len(chips)} chips{note}"
