"""The commands ``inspect``, ``targets`` and ``zoo``, which list and show models and what ships."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from go_opt.cli.commands import options as opts
from go_opt.cli.commands.options import Answer, with_options
from go_opt.cli.inputs.loading import Binding
from go_opt.common.files import write_atomically
from go_opt.common.outputs import TARGET
from go_opt.errors import InvalidInputError

if TYPE_CHECKING:
    from go_opt.cli.inputs.machine import FigureValue

targets_app = typer.Typer(
    help="The targets that ship, and files of your own.", no_args_is_help=True, rich_markup_mode=None
)
zoo_app = typer.Typer(help="The model graphs that ship.", no_args_is_help=True, rich_markup_mode=None)
TargetArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=opts.targets_named)]
GraphArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=opts.zoo_named)]


@with_options
def inspect(model: opts.ModelArgument, bound: Binding) -> Answer:
    """Describe a model before any target: dimensions to bind, inputs, states, op types, layers."""
    from go_opt.model_summary import inspect as summary_of
    from go_opt.report.parts.model_lines import layers_table, op_types_table, summary_lines

    summary = summary_of(model, **vars(bound.bindings()))
    rows = {
        "dims": dict(summary.dims),
        "unknown_ops": [op._asdict() for op in summary.unknown_ops],
        "states": [state._asdict() for state in summary.states],
    }
    layers: list[Any] = [[""], layers_table(summary)] if summary.layers else []
    types = op_types_table(summary.op_types, summary.flops)
    return Answer(
        lambda: asdict(summary) | rows, lambda: [summary_lines(summary, model), [""], types, *layers]
    )


@targets_app.command("list")
@with_options
def list_targets() -> Answer:
    """List the targets with their chips, links and native type."""
    from go_opt.env import load_target, target_names
    from go_opt.report.tables import targets_table

    targets = [load_target(name) for name in target_names()]
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
    return Answer(lambda: rows, lambda: [targets_table(targets)])


@targets_app.command("show")
def show_target(name: TargetArgument) -> None:
    """Print the TOML file of a target: a start for one of your own."""
    from go_opt.env import target_text

    typer.echo(target_text(name), nl=False)


@zoo_app.command("list")
@with_options
def list_zoo() -> Answer:
    """List the graphs with their sizes, and count the splits."""
    from go_opt.env import zoo_entries
    from go_opt.env.zoo import shipped_bytes
    from go_opt.report.parts.screen import print_table
    from go_opt.report.zoo_tables import LEFT_OUT, zoo_counts, zoo_table

    entries = zoo_entries()
    return Answer(
        lambda: [asdict(entry) for entry in entries],
        lambda: [
            lambda screen: print_table(screen, zoo_table(entries), LEFT_OUT),
            zoo_counts(entries, shipped_bytes()),
        ],
    )


@zoo_app.command("show")
@with_options
def show_zoo(name: GraphArgument) -> Answer:
    """Describe one graph: shape, ops by type, tensors."""
    from go_opt.env import load_target
    from go_opt.env.zoo import load_zoo, zoo_entry, zoo_families
    from go_opt.report.zoo_tables import graph_stats, print_zoo_graph

    entry = zoo_entry(name)
    family = zoo_families()[entry.family]
    stats = graph_stats(load_zoo(name), load_target(entry.target))
    return Answer(
        lambda: asdict(entry) | {"family_reason": family.reason} | asdict(stats),
        lambda: [lambda screen: print_zoo_graph(screen, entry, family, stats)],
    )


@targets_app.command("new")
@with_options
def new_target(
    out: Annotated[Path, opts.Output(TARGET, "--out", "-o", metavar="TARGET", help="Write the target here.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A figure, such as chips=2 or memory_bytes=24GB; asks no questions.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", "--force", help="Replace an earlier file.")
    ] = False,
) -> None:
    """Ask for the figures of a machine and write them as a target to plan for.

    Figures: name, topology, chips, columns, native_dtype, matrix_flops_per_s, vector_flops_per_s,
    memory_bytes, memory_bytes_per_s, kernel_overhead_s, processors, dependency_overhead_s,
    link_bytes_per_s, link_latency_s, host_in_bytes_per_s, host_out_bytes_per_s, overlap, op_types,
    not_op_types, flops_per_s_by_op_type, fitted_to, devices, node_bytes_per_s, node_latency_s.
    Missing figures are marked as assumed.
    With processors the chips are GPUs, and get figures of kernels and collectives; with devices
    (chips of a cluster) the target gets levels, for training steps.
    """
    from go_opt.cli.inputs.machine import machine_text

    if out.is_file() and not overwrite:  # the user may have edited it
        raise InvalidInputError(f"--out: {str(out)!r} exists: --overwrite replaces it.", field="out")
    values = _read(given) if given else _ask(out.stem)
    values.setdefault("name", out.stem)
    write_atomically(out, machine_text(values, str(out)))
    typer.echo(f"{out}: go-opt optimize MODEL --target {out}")


@targets_app.command("schema")
def show_schema() -> None:
    """Print a JSON schema of target files, for editors that check TOML."""
    from go_opt.env.target import target_schema

    typer.echo(json.dumps(target_schema(), indent=2))


def _read(given: list[str]) -> dict[str, FigureValue]:
    from go_opt.cli.inputs.machine import figure

    values: dict[str, FigureValue] = {}
    for setting in given:
        key, equals, answer = setting.partition("=")
        if not equals:
            raise InvalidInputError(f"--set must be KEY=VALUE, not {setting[:100]!r}.", field="set")
        if key in values:
            raise InvalidInputError(f"--set {key} is given twice.", field="set")
        values[key] = figure(key).value(answer)
    only_of = [figure(key) for key in values if figure(key).only_of not in ("", values.get("topology"))]
    if only_of:
        raise InvalidInputError(f"{only_of[0].key} is of a {only_of[0].only_of} only.", field="set")
    return values


def _ask(name: str) -> dict[str, FigureValue]:
    """Prompts for all figures and returns those answered; asks again after an invalid answer."""
    from go_opt.cli.inputs.machine import FIGURES, check_together

    answered: dict[str, FigureValue] = {}
    known: dict[str, FigureValue] = {}  # with defaults for the unanswered figures
    for one in FIGURES:
        if one.only_of not in ("", known.get("topology")):
            continue
        default = name if one.key == "name" else one.default
        while one.key not in known:
            answer = typer.prompt(f"{one.question} [{default}]", default="", show_default=False).strip()
            try:
                value = one.value(answer or default)
                check_together(known | {one.key: value})
            except InvalidInputError as error:
                typer.echo(str(error), err=True)
                continue
            known[one.key] = value
            if answer:
                answered[one.key] = value
    return answered
