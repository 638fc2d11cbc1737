"""The command that measures a model on this machine: ``profile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from go_opt.cli.commands.interrupt import interrupts_raised
from go_opt.cli.commands.options import ModelArgument
from go_opt.cli.commands.plans import check_writable
from go_opt.cli.inputs.loading import parse_dims

if TYPE_CHECKING:
    from collections.abc import Iterator

    from go_opt.run.profiling.profiling import Profile


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
    with interrupts_raised():  # so that no folder of segments is left
        found = measure(
            model, out, costs, chips=chips, seconds=seconds, seed=seed, dims=parse_dims(dim or [])
        )
    for line in _lines(found):
        typer.echo(line)


def _lines(found: Profile) -> Iterator[str]:
    graph = found.graph
    yield f"{graph.name}: {graph.num_ops} ops, {found.segments} segments measured in processor time"
    yield f"held out    {found.held_out} segments, mean error {_share(found.rates_error)} by the rates, " + (
        f"{_share(found.ops_error)} by the seconds of ops"
    )
    yield f"all ops     {sum(found.op_s.values()) * 1e3:.4g} ms"
    for name, seconds in found.quantity_s.items():
        yield f"  {seconds:.3g} s per {name}"


def _share(error: float) -> str:
    return f"{error:.1%}" if error == error else "unknown"
