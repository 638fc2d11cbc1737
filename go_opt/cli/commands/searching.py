"""A search with progress output, here or at a service; Ctrl-C keeps the best plan so far."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from go_opt.cli.commands.options import ConstraintsOption, read_constraints
from go_opt.common.units import parse_duration_s, parse_rate_per_s
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from go_opt.result import Decide, Objective, Step

if TYPE_CHECKING:
    from go_opt.api.chips import FewestChips
    from go_opt.cli.commands.options import Connection
    from go_opt.env import Target
    from go_opt.model.graph import Graph
    from go_opt.result import OptimizeResult


@dataclass(frozen=True)
class Search:
    """Options of a search."""

    objective: Annotated[Objective, typer.Option(help="Interval, or time of one sample.")] = "throughput"
    budget: Annotated[
        str | None,
        typer.Option(help="Time to search: 500ms, 2s, 1m. [default: 5s, none with --max-evaluations]"),
    ] = None
    max_evaluations: Annotated[int | None, typer.Option(help="Plans to evaluate at most.")] = None
    seed: Annotated[int, typer.Option(help="Same seed and evaluations, same answer.")] = 0
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|PATH", help="none, default, a policy file, or only: no other method."),
    ] = "none"
    decide: Annotated[Decide, typer.Option(help="placement: one kernel per op, default order.")] = "all"
    fidelity: Annotated[Fidelity, typer.Option(help="What evaluates plans; simulated proves no bound.")] = (
        "analytical"
    )
    no_simulate: Annotated[bool, typer.Option("--no-simulate", help="Do not simulate the answer.")] = False
    no_relays: Annotated[bool, typer.Option("--no-relays", help="The strict triangle rule.")] = False
    no_replication: Annotated[bool, typer.Option("--no-replication", help="One chip per stage.")] = False
    no_splits: Annotated[bool, typer.Option("--no-splits", help="No op in parts.")] = False
    no_early_end: Annotated[
        bool, typer.Option("--no-early-end", help="Search on when no gain is to be expected.")
    ] = False
    output_parts: Annotated[
        bool, typer.Option("--output-parts", help="Outputs of the model may stay in parts.")
    ] = False
    constraints: ConstraintsOption = None
    stages: Annotated[
        int | None, typer.Option(help="Exactly so many chips, or groups of replicas, run ops.")
    ] = None
    max_latency: Annotated[
        str | None, typer.Option(help="Longest latency allowed, such as 2ms (throughput only).")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of :func:`go_opt.optimize`."""
        from go_opt.solver.problem.user_constraints import Stages

        latency = self.max_latency
        stages = () if self.stages is None else (Stages(self.stages),)
        return {
            "objective": self.objective,
            "budget_s": None if self.budget is None else parse_duration_s(self.budget, "--budget"),
            "max_evaluations": self.max_evaluations,
            "seed": self.seed,
            "policy": self.policy,
            "decide": self.decide,
            "fidelity": self.fidelity,
            "simulate": not self.no_simulate,
            "relays": not self.no_relays,
            "replication": not self.no_replication,
            "splits": not self.no_splits,
            "early_end": not self.no_early_end,
            "output_parts": self.output_parts,
            "constraints": (*read_constraints(self.constraints), *stages),
            "max_latency_s": None if latency is None else parse_duration_s(latency, "--max-latency"),
        }


@dataclass(frozen=True)
class SizedSearch(Search):
    """Options of a search, or of a search for the fewest chips that are fast enough."""

    fewest_chips: Annotated[
        bool,
        typer.Option("--fewest-chips", help="As few chips as --rate and --max-latency need."),
    ] = False
    rate: Annotated[
        str | None, typer.Option(help="Inferences a second, such as 40000/s, for --fewest-chips.")
    ] = None

    def rate_per_s(self) -> float | None:
        """The requested rate, which needs ``--fewest-chips``; None if there is none."""
        if self.rate is None:
            return None
        if not self.fewest_chips:
            raise InvalidInputError("--rate is for --fewest-chips.", field="rate")
        return parse_rate_per_s(self.rate, "--rate")


def fewest_chips_here(
    graph: Graph, target: Target, rate_per_s: float | None, options: dict[str, Any]
) -> FewestChips:
    """Searches in this process; reports each searched number of chips on stderr."""
    from go_opt.api.chips import fewest_chips
    from go_opt.cli.inputs.interrupt import InterruptAsks
    from go_opt.report.parts.chip_tables import count_line
    from go_opt.report.progress import announce_compilation
    from go_opt.result import Request

    requested = dict(options)
    policy = requested.pop("policy")
    announce_compilation()
    with InterruptAsks() as interrupt:
        return fewest_chips(
            graph,
            target,
            Request(**requested),
            rate_per_s=rate_per_s,
            policy=policy,
            on_count=lambda found: typer.echo(count_line(found), err=True),
            on_step=interrupt.on_step,
            should_stop=interrupt.is_requested,
        )


def fewest_chips_there(
    connection: Connection, graph: Graph, target: str, rate_per_s: float | None, options: dict[str, Any]
) -> FewestChips:
    """The service's answer; afterwards reports each searched number of chips on stderr."""
    from go_opt.report.parts.chip_tables import count_line

    with connection.client() as client:
        fewest = client.fewest_chips(graph, target, rate_per_s=rate_per_s, **options)
    for found in fewest.tried:
        typer.echo(count_line(found), err=True)
    return fewest


def search_here(graph: Graph, target: Target, options: dict[str, Any]) -> OptimizeResult:
    """Searches in this process."""
    from go_opt import api
    from go_opt.cli.inputs.interrupt import InterruptAsks
    from go_opt.report.progress import SearchProgress, announce_compilation

    progress = SearchProgress(options["objective"])
    announce_compilation(lambda: progress.best)
    with InterruptAsks() as interrupt:

        def on_step(step: Step) -> None:
            interrupt.on_step(step)
            progress.on_step(step)

        return api.optimize(graph, target, on_step=on_step, should_stop=interrupt.is_requested, **options)


def ask_server(connection: Connection, graph: Graph, target: str, options: dict[str, Any]) -> OptimizeResult:
    """The service's answer; Ctrl-C ends its search and keeps the best plan it has sent."""
    from go_opt.cli.inputs.interrupt import interrupts_raised
    from go_opt.report.progress import SearchProgress

    progress, steps = SearchProgress(options["objective"]), list[Step]()
    best: OptimizeResult | None = None
    with connection.client() as client, closing(client.optimize_stream(graph, target, **options)) as updates:
        try:
            with interrupts_raised():
                for best in updates:
                    steps.append(_as_step(best))
                    progress.on_step(steps[-1])
        except KeyboardInterrupt:
            if best is None:
                raise
            return replace(best, history=tuple(steps))
    assert best is not None, "a stream without an answer raises."
    return best


def _as_step(improvement: OptimizeResult) -> Step:
    metrics = improvement.metrics
    best_s = metrics.makespan_s if improvement.objective == "latency" else metrics.interval_s
    return Step(improvement.method, best_s, best_s, improvement.evaluations, improvement.wall_s)
