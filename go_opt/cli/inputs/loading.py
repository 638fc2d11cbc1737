"""What commands are given: models, plans for them, and splits to begin with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from go_opt.errors import InvalidInputError

if TYPE_CHECKING:
    from go_opt.env import Target
    from go_opt.model.graph import Graph
    from go_opt.model.plan import Plan
    from go_opt.model.start import Start

PlacementOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A split of the model: CSV of op,chip, or JSON of module: device."),
]
_BINDING: Final = re.compile(r"([^=]+)=(-?[0-9]{1,20})")


@dataclass(frozen=True)
class Loading:
    """How a model is read."""

    precision: Annotated[
        Literal["native", "as-is"], typer.Option(help="Cost floats in the target's type, or as they are.")
    ] = "native"
    dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Bind a symbolic dimension.")
    ] = None

    def load(self, model: str) -> Graph:
        """The graph of MODEL."""
        from go_opt import api

        return api.load(model, dims=_parse_dims(self.dim or []), precision=self.precision)


def load_with_plan(
    model: str, plan: Path, target: str | None, costs: Path | None
) -> tuple[Graph, Target, Plan]:
    """The plan first: it carries the bindings and the target the model was planned with."""
    from go_opt import api
    from go_opt.model.codecs.plan_json import load_plan
    from go_opt.report.progress import announce_compilation

    loaded = load_plan(plan)
    graph = api.load(model, dims=loaded.dims, precision=loaded.precision)
    announce_compilation()
    on = api.target(target or loaded.target)
    return with_costs(graph, on, costs), on, loaded


def with_costs(graph: Graph, target: Target, costs: Path | None) -> Graph:
    """The graph with the measured costs of a file, where one is given."""
    from go_opt.measured_costs import with_measured_costs

    return graph if costs is None else with_measured_costs(graph, costs, target)


def placed_plan(graph: Graph, target: Target, placement: Path) -> Plan:
    """The plan that a placement file asks for, as it stands."""
    from go_opt.search.methods.given import plan_as_it_stands

    start = start_of(graph, None, placement)
    assert start is not None
    return plan_as_it_stands(graph, target, start)


def start_of(graph: Graph, plan: Path | None, placement: Path | None) -> Start | None:
    """What the search begins with; says how much of it is of this graph."""
    from go_opt.model.codecs.start_files import load_placement, load_start

    if plan is not None and placement is not None:
        raise InvalidInputError("--start and --placement: give one of them.", field="start")
    if placement is not None:
        start = load_placement(placement, graph)
    elif plan is not None:
        start = load_start(plan)
    else:
        return None
    matched = start.num_matched(graph)
    if matched == 0:
        problem = f"{str(placement or plan)!r} names no op of {graph.name!r}"
        raise InvalidInputError(f"{problem}, the first of which is {graph.op_names[0]!r}.", field="start")
    others = "" if matched == graph.num_ops else "; the others follow their neighbours"
    typer.echo(f"start: {matched} of {graph.num_ops} ops{others}", err=True)
    return start


def _parse_dims(bindings: list[str]) -> dict[str, int]:
    """Values of symbolic dimensions from ``NAME=VALUE``."""
    dims = {}
    for binding in bindings:
        match = _BINDING.fullmatch(binding)
        if match is None:
            raise InvalidInputError(
                f"--dim must be NAME=VALUE with a whole number, not {binding[:100]!r}.", field="dim"
            )
        dims[match[1]] = int(match[2])
    return dims
