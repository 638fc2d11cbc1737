"""The commands for target files of one's own: ``targets schema``."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print a JSON schema of target files, for editors that check TOML."""
    from go_opt.env.target import target_schema

    typer.echo(json.dumps(target_schema(), indent=2))
