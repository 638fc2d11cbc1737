"""The command ``bench``, which compares methods."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from go_opt import api
from go_opt.cli.commands.options import Answer, Output, TargetOption, with_options
from go_opt.cli.inputs.interrupt import interrupts_raised
from go_opt.common.outputs import RECORDS
from go_opt.errors import InvalidInputError
from go_opt.report.progress import announce_compilation
from go_opt.result import Decide

if TYPE_CHECKING:
    from go_opt.bench.matches import Match, Record

DEFAULT_BUDGET = "10s"


@dataclass(frozen=True)
class Problem:
    """The problem that the compared methods solve."""

    target: TargetOption = "mcm-6x6"
    link_scale: Annotated[float, typer.Option(help="Multiply the rate of links between chips.")] = 1.0
    relays: Annotated[
        bool, typer.Option("--relays/--no-relays", help="Relays, or the strict triangle rule.")
    ] = True
    decide: Annotated[Decide, typer.Option(help="placement: one kernel per op, default order.")] = "all"


@with_options
def bench(
    problem: Problem,
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GRAPHS]...",
            help="Names of the zoo, split:NAME, family:NAME, .onnx or .json files. [default: split:test]",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Methods to compare. [default: all]")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help=f"Time of each run. [default: {DEFAULT_BUDGET}, none with --max-evaluations]"),
    ] = None,
    max_evaluations: Annotated[int | None, typer.Option(help="Plans that each run may evaluate.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each method on each graph, seeds 0, 1 ...")] = 3,
    jobs: Annotated[int, typer.Option(help="Runs at once; with more than one they share the machine.")] = 1,
    out: Annotated[
        Path | None, Output(RECORDS, help="Append every run to this file; what is in it is not run again.")
    ] = None,
) -> Answer:
    """Run methods on GRAPHS with equal time or equal evaluations and compare the results.

    Each run has its own process. Ctrl-C ends it with the standings so far.
    """
    from go_opt.bench.matches import METHODS, Match, methods_named, models_named, with_links_scaled
    from go_opt.bench.standings import standings
    from go_opt.common.units import parse_duration_s
    from go_opt.report.bench_tables import improvements, rows_table, summary_lines, tallies_table

    for name, value in (("seeds", seeds), ("jobs", jobs), ("max-evaluations", max_evaluations)):
        if value is not None and value < 1:
            raise InvalidInputError(f"--{name} must be 1 or more, not {value}.", field=name.replace("-", "_"))
    if budget is None and max_evaluations is None:
        budget = DEFAULT_BUDGET
    budget_s = None if budget is None else parse_duration_s(budget, "--budget")
    names = methods_named(methods or ",".join(METHODS))
    models = models_named(graphs or ["split:test"], problem.target)
    with_links_scaled(api.target(problem.target), problem.link_scale)  # fail here, not in every run
    matches = [
        Match(
            model,
            method=method,
            seed=seed,
            budget_s=budget_s,
            max_evaluations=max_evaluations,
            **vars(problem),
        )
        for model in models
        for method in names
        for seed in range(seeds)
    ]
    records = _play(matches, jobs, out)

    def parts() -> list[Any]:
        stand = standings(records, names)
        return [summary_lines(stand), tallies_table(stand), [""], rows_table(stand)]

    return Answer(lambda: [row for record in records for row in improvements(record)], parts)


def _play(matches: list[Match], jobs: int, out: Path | None) -> list[Record]:
    """The records in the order of the matches; Ctrl-C keeps the records so far."""
    from go_opt.bench.processes import RecordFile, play_all
    from go_opt.report.bench_tables import format_record

    announce_compilation()
    with ExitStack() as stack:
        stack.enter_context(interrupts_raised())
        file = None if out is None else stack.enter_context(RecordFile(out))
        records = dict(file.records) if file is not None else {}
        missing = [match for match in matches if match not in records]
        played = stack.enter_context(closing(play_all(missing, jobs)))
        try:
            for number, record in enumerate(played, start=len(matches) - len(missing) + 1):
                records[record.match] = record
                if file is not None:
                    file.append(record)
                typer.echo(f"{number}/{len(matches)} {format_record(record)}", err=True)
        except KeyboardInterrupt:
            if not any(match in records for match in matches):
                raise
            typer.echo("interrupted; what follows is of the runs that ended.", err=True)
    return [records[match] for match in matches if match in records]
