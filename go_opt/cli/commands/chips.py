"""The commands ``chips`` and ``design``, which plan a model for several packages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from go_opt import api
from go_opt.cli.commands import options as opts
from go_opt.cli.commands.options import Answer, with_options
from go_opt.cli.commands.searching import Search
from go_opt.cli.inputs.interrupt import InterruptAsks
from go_opt.cli.inputs.loading import Loading, with_costs
from go_opt.common.files import write_atomically
from go_opt.common.outputs import PLAN, TARGET
from go_opt.common.units import format_duration, parse_amount, parse_duration_s
from go_opt.errors import InvalidInputError
from go_opt.report.progress import announce_compilation
from go_opt.result import Objective, Request

if TYPE_CHECKING:
    from go_opt.api.chips import ChipCount
    from go_opt.env import Target
    from go_opt.model.graph import Graph
    from go_opt.result import OptimizeResult
    from go_opt.serving.links.design import Design


@with_options
def chips(
    model: opts.ModelArgument,
    search: Search,
    loading: Loading,
    target: opts.TargetOption = "mcm-6x6",
    counts: Annotated[
        str | None, typer.Option(metavar="N,N", help="Numbers of chips.  [default: 1,2,4,... and all]")
    ] = None,
    costs: opts.CostsOption = None,
) -> Answer:
    """Plan MODEL for several numbers of chips; the budget is for each of them."""
    from go_opt.api.chips import chip_counts
    from go_opt.report.parts.chip_tables import count_line, counts_table

    request = search.request()
    requested = None if counts is None else _parse_counts(counts)
    on = api.target(target)
    graph = with_costs(loading.load(model), on, costs)
    announce_compilation()
    found: list[ChipCount] = []
    with InterruptAsks() as interrupt:
        for one in chip_counts(
            graph,
            on,
            request,
            counts=requested,
            on_step=interrupt.on_step,
            should_stop=interrupt.is_requested,
        ):
            found.append(one)
            typer.echo(count_line(one), err=True)
            if interrupt.is_requested():
                break
    return Answer(lambda: [count_to_dict(one) for one in found], lambda: [counts_table(found)])


@dataclass(frozen=True)
class Changes:
    """What may be changed about a package."""

    budget: Annotated[str | None, typer.Option(metavar="LINKS", help="Links to add, such as '+8 links'.")] = (
        None
    )
    ports: Annotated[
        int | None, typer.Option(min=1, help="Links that leave, and that enter, a chip at most.")
    ] = None
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE,SIZE", help="Memory of each chip, such as 24MB,32MB.")
    ] = None
    order: Annotated[
        list[str] | None,
        typer.Option(metavar="N*KIND,…", help="An order of the chips, such as 2*big,4*small,2*big (repeat)."),
    ] = None

    def links(self) -> int:
        """Those to add at most."""
        from go_opt.serving.links.design import parse_links

        if self.budget is None and self.memory is None and not self.order:
            raise InvalidInputError("give --budget '+8 links', --memory or --order.", field="budget")
        return 0 if self.budget is None else parse_links(self.budget)

    def packages(self, target: Target) -> list[tuple[str, Target]]:
        """The packages asked for, with a name: all orders with all sizes of memory."""
        from go_opt.serving.links.packages import with_memory, with_order

        found = [(one, with_order(target, one)) for one in self.order or ()] or [(target.name, target)]
        if self.memory is None:
            return found
        sizes = [(text, int(parse_amount(text, "--memory", "bytes"))) for text in self.memory.split(",")]
        return [
            (f"{name}, {text} a chip", with_memory(package, size))
            for name, package in found
            for text, size in sizes
        ]


@dataclass(frozen=True)
class Effort:
    """Options of each search of a design."""

    objective: Annotated[Objective, typer.Option(help="Interval, or time of one sample.")] = "throughput"
    time: Annotated[
        str | None, typer.Option(help="Time of each search. [default: 5s, none with --max-evaluations]")
    ] = None
    max_evaluations: Annotated[int | None, typer.Option(help="Plans to evaluate in each search.")] = None
    seed: Annotated[int, typer.Option(help="Same seed and evaluations, same answer.")] = 0

    def request(self) -> Request:
        return Request(
            objective=self.objective,
            budget_s=None if self.time is None else parse_duration_s(self.time, "--time"),
            max_evaluations=self.max_evaluations,
            seed=self.seed,
        )


@dataclass(frozen=True)
class DesignOut:
    """The files of a design."""

    out: Annotated[
        Path | None,
        opts.Output(TARGET, "--out", "-o", metavar="TARGET", help="Write the best package as a target."),
    ] = None
    plan: Annotated[
        Path | None, opts.Output(PLAN, metavar="FILE", help="Write its plan, which needs --out.")
    ] = None
    overwrite: opts.OverwriteOption = False

    def save(self, found: Design, graph: Graph, costs: Path | None, model: str) -> None:
        """Write the package, and its plan for that file."""
        from go_opt.costs.measured_costs import costs_fact
        from go_opt.env import parse_target
        from go_opt.env.copies.splits import planned_graph
        from go_opt.env.target.toml import target_to_toml
        from go_opt.model.codecs.plan_json import save_plan
        from go_opt.result_json import plan_facts

        if self.out is None:
            return
        text = target_to_toml(found.target)
        write_atomically(self.out, text)
        if self.plan is not None:
            fingerprint = parse_target(text, str(self.out)).fingerprint
            made = replace(found.result.plan, model=model, target=str(self.out))
            made = replace(made, target_fingerprint=fingerprint)
            facts = plan_facts(planned_graph(graph, made), found.result)
            save_plan(made, self.plan, facts | costs_fact(graph, costs))


@with_options
def design(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Target name or .toml file.", autocompletion=opts.targets_named
        ),
    ],
    model: opts.ModelArgument,
    loading: Loading,
    changes: Changes,
    effort: Effort,
    written: DesignOut,
    costs: opts.CostsOption = None,
) -> Answer:
    """Find the links, memory or order of chips with which TARGET runs MODEL the fastest."""
    from go_opt.env.target import PAPER
    from go_opt.serving.links.design import design_lines, design_links, design_to_dict

    if target.endswith(PAPER):
        problem = f"design is of packages with all their effects, not {target[:100]!r}"
        raise InvalidInputError(f"{problem}.", field="target")
    if written.plan is not None and written.out is None:
        raise InvalidInputError("--plan needs --out, the target that it is for.", field="plan")
    number, on, request = changes.links(), api.target(target), effort.request()
    if number and on.constraints.triangle != "off":
        typer.echo("the triangle rule is of rings: it does not hold where links are added", err=True)
    found: list[tuple[str, Design]] = []
    announce_compilation()
    with InterruptAsks() as interrupt:

        def on_plan(links: int, planned: OptimizeResult) -> None:
            typer.echo(f"{name}, {links} more links: {format_duration(planned.objective_s)}", err=True)

        for name, package in changes.packages(on):
            graph = with_costs(loading.load(model), package, costs)
            made = design_links(
                graph,
                package,
                number,
                request,
                ports=changes.ports,
                on_plan=on_plan,
                should_stop=interrupt.is_requested,
            )
            found.append((name, made))
            if interrupt.is_requested():
                break
    best = min(range(len(found)), key=lambda i: found[i][1].result.objective_s)
    written.save(found[best][1], graph, costs, model)
    facts = {"model": model, "target": target, "objective": request.objective, "best": best}
    return Answer(
        lambda: facts | {"packages": [design_to_dict(*one) for one in found]},
        lambda: [design_lines(found, best)],
    )


def count_to_dict(found: ChipCount) -> dict[str, Any]:
    """The result for a number of chips as ``--json`` prints it; times are null without a plan."""
    from go_opt.result_json import finite

    result = found.result
    facts = {"chips": found.chips, "is_proven": found.is_proven, "reason": found.reason}
    if result is None:
        return facts | dict.fromkeys(("interval_s", "latency_s"))
    simulated_s = result.simulated_interval_s
    return facts | {
        "chips_used": result.plan.chips_used,
        "interval_s": result.metrics.interval_s,
        "latency_s": result.metrics.latency_s,
        "makespan_s": result.metrics.makespan_s,
        "simulated_interval_s": None if simulated_s is None else finite(simulated_s),
        "lower_bound_s": result.lower_bound_s,
        "status": result.status,
    }


def _parse_counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(
            f"--counts must be whole numbers such as 1,2,4, not {text[:100]!r}.", field="counts"
        ) from None
