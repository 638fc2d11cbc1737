"""The command that writes a plan for other tools to run: ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt.cli.commands.interrupt import interrupts_raised
from go_opt.cli.commands.options import CostsOption, ModelArgument, PlanArgument, PlanTargetOption
from go_opt.run.export import FORMATS, TORCH_FORMATS

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
    from go_opt.run.export import export as export_plan
    from go_opt.run.export import export_torch

    announce_compilation()
    with interrupts_raised():  # so that nothing half written is left
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
            text, notes = _text(manifest), ()
    typer.echo(f"{directory}: {text}; {', '.join(dict.fromkeys(chosen))}")
    for note in notes:
        typer.echo(note)


def _text(manifest: Manifest) -> str:
    stages, chips = len(manifest.stages), {chip for stage in manifest.stages for chip in stage.chips}
    several = sum(stage.part == 1 for stage in manifest.stages)
    note = f", {several} of which run several" if several else ""
    return f"{stages} stages of {manifest.model} on {len(chips)} chips{note}"
