"""The commands that list what ships: ``targets`` and ``zoo``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from go_opt.cli.commands.completion import targets_named, zoo_named

targets_app = typer.Typer(
    help="The targets that ship, and files of your own.", no_args_is_help=True, rich_markup_mode=None
)
zoo_app = typer.Typer(help="The model graphs that ship.", no_args_is_help=True, rich_markup_mode=None)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TargetArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=targets_named)]
GraphArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=zoo_named)]


@targets_app.command("list")
def list_targets(as_json: JsonOption = False) -> None:
    """Name the targets with their chips, links and native type."""
    from go_opt.env import load_target, target_names

    targets = [load_target(name) for name in target_names()]
    if as_json:
        rows = [
            {
                "name": target.name,
                "chips": target.num_chips,
                "links": target.topology.num_links,
                "topology": target.topology.kind,
                "native_dtype": target.native_dtype,
                "description": target.description,
            }
            for target in targets
        ]
        typer.echo(json.dumps(rows))
        return
    from go_opt.report.parts.screen import console, print_table
    from go_opt.report.tables import targets_table

    print_table(console(), targets_table(targets))


@targets_app.command("show")
def show_target(name: TargetArgument) -> None:
    """Print the TOML file of a target: a start for one of your own."""
    from go_opt.env import target_text

    typer.echo(target_text(name), nl=False)


@zoo_app.command("list")
def list_zoo(as_json: JsonOption = False) -> None:
    """Name the graphs with their sizes, and count the splits."""
    from go_opt.env import zoo_entries

    entries = zoo_entries()
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries]))
        return
    from go_opt.env.zoo import shipped_bytes
    from go_opt.report.parts.screen import console, print_lines, print_table
    from go_opt.report.zoo_tables import LEFT_OUT, zoo_counts, zoo_table

    screen = console()
    print_table(screen, zoo_table(entries), drop=LEFT_OUT)
    print_lines(screen, zoo_counts(entries, shipped_bytes()))


@zoo_app.command("show")
def show_zoo(name: GraphArgument, as_json: JsonOption = False) -> None:
    """Describe one graph: shape, ops by type, tensors."""
    from go_opt.env.zoo import load_zoo, zoo_entry, zoo_families

    entry = zoo_entry(name)
    family = zoo_families()[entry.family]
    from go_opt.env import load_target
    from go_opt.report.graph_stats import graph_stats

    stats = graph_stats(load_zoo(name), load_target(entry.target))
    if as_json:
        typer.echo(json.dumps(asdict(entry) | {"family_reason": family.reason} | asdict(stats)))
        return
    from go_opt.report.parts.screen import console
    from go_opt.report.zoo_tables import print_zoo_graph

    print_zoo_graph(console(), entry, family, stats)
