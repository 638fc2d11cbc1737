"""The command ``chips``, which plans a model for several numbers of chips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from go_opt.cli.commands import print_json, show
from go_opt.cli.commands.options import CostsOption, JsonOption, ModelArgument, TargetOption, with_options
from go_opt.cli.commands.searching import Search
from go_opt.cli.inputs.interrupt import InterruptAsks
from go_opt.cli.inputs.loading import Loading, with_costs
from go_opt.errors import InvalidInputError

if TYPE_CHECKING:
    from go_opt.api.chips import ChipCount


@with_options
def chips(
    model: ModelArgument,
    search: Search,
    loading: Loading,
    target: TargetOption = "mcm-6x6",
    counts: Annotated[
        str | None, typer.Option(metavar="N,N", help="Numbers of chips.  [default: 1,2,4,... and all]")
    ] = None,
    costs: CostsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan MODEL for several numbers of chips; the budget is for each of them."""
    from go_opt import api
    from go_opt.api.chips import chip_counts
    from go_opt.report.parts.chip_tables import count_line, counts_table
    from go_opt.report.progress import announce_compilation

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
    if as_json:
        print_json([count_to_dict(one) for one in found])
    else:
        show(counts_table(found))


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
