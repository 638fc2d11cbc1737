"""The command that writes a plan for other tools to run: ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from go_opt.cli.commands.options import ModelArgument, PlanArgument, PlanTargetOption


def export(
    model: ModelArgument,
    plan: PlanArgument,
    directory: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Write to this folder.")],
    target: PlanTargetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that is not empty.")] = False,
) -> None:
    """Write each stage of PLAN as an ONNX model of its own, with a manifest."""
    from go_opt.run.export import export as export_plan

    manifest = export_plan(model, plan, directory, target=target, force=force)
    typer.echo(f"{directory}: {len(manifest.stages)} stages of {manifest.model}.")
