"""Loads the inputs of commands: models, plans for them, and starting placements."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from go_opt import api
from go_opt.common.files import read_json
from go_opt.errors import InvalidInputError, PlanError
from go_opt.frontends.union.graphs import UNION_PREFIX, Share, shares_of, union_name
from go_opt.model.bindings import Bindings
from go_opt.report.progress import announce_compilation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from go_opt.env import Target
    from go_opt.model.graph import Graph
    from go_opt.model.plan import Plan
    from go_opt.model.start import Start

PlacementOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A split of the model: CSV of op,chip, or JSON of module: device."),
]
DimOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Bind a symbolic dimension.")]
ValueOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER,…", help="Bind an ONNX input: all its elements, or one for all."),
]
TripsOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME=TRIPS", help="How often a loop runs, by its op's name.")
]
StateOption = Annotated[
    list[str] | None,
    typer.Option(metavar="INPUT=OUTPUT", help="The output is the input's value in the next step; * in both."),
]
NoStateOption = Annotated[bool, typer.Option("--no-state", help="No input is a state, whatever names say.")]
_MODELS: Final = (".onnx", ".pt2", ".mlir")  # what the names of models end with, and none of a plan
_WHOLE: Final = re.compile(r"(.+)=(-?[0-9]{1,20})", re.DOTALL)
_NUMBER: Final = r"[-+]?(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,3})?"
_NUMBERS: Final = re.compile(rf"(.+)=({_NUMBER}(?:,{_NUMBER})*)", re.DOTALL)
_PAIR: Final = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_WHOLE_FORM: Final = "NAME=VALUE with a whole number"


@dataclass(frozen=True)
class Sizes:
    """Dimensions, inputs and loops that are bound of a model."""

    dim: DimOption = None
    value: ValueOption = None
    trips: TripsOption = None

    def bindings(self) -> Bindings:
        values = _parsed("value", self.value, _NUMBERS, "NAME=NUMBER or NAME=NUMBER,NUMBER")
        states = _parsed("state", getattr(self, "state", None), _PAIR, "INPUT=OUTPUT")
        return Bindings(
            {name: int(size) for name, size in _parsed("dim", self.dim, _WHOLE, _WHOLE_FORM).items()},
            {name: tuple(map(float, numbers.split(","))) for name, numbers in values.items()},
            {name: int(count) for name, count in _parsed("trips", self.trips, _WHOLE, _WHOLE_FORM).items()},
            states | ({"*": ""} if getattr(self, "no_state", False) else {}),
        )


@dataclass(frozen=True)
class Binding(Sizes):
    """What is bound of a model."""

    state: StateOption = None
    no_state: NoStateOption = False


@dataclass(frozen=True)
class Loading(Binding):
    """Options for loading a model."""

    precision: Annotated[
        Literal["native", "as-is"], typer.Option(help="Cost floats in the target's type, or as they are.")
    ] = "native"

    def load(self, model: str) -> Graph:
        """The graph of MODEL."""

        return api.load(model, **vars(self.bindings()), precision=self.precision)


@dataclass(frozen=True)
class StartOptions(Loading):
    """Options for a model and the starting plan of a search."""

    start: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Begin with this plan; ops are matched by name.")
    ] = None
    placement: PlacementOption = None
    remember: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Begin with the nearest plan kept there, and keep this one."),
    ] = None

    def start_of(self, graph: Graph) -> Start | None:
        """The starting decisions for ops of ``graph``; reports the number of matched ops on stderr."""
        from go_opt.env.copies.splits import planned_graph
        from go_opt.model.codecs.start_files import load_placement, load_start

        if self.start is not None and self.placement is not None:
            raise InvalidInputError("--start and --placement: give one of them.", field="start")
        if self.placement is not None:
            start = load_placement(self.placement, graph)
        elif self.start is not None:
            start = load_start(self.start)
        else:
            return None
        placed = graph
        if start.plan is not None:
            with suppress(PlanError):  # of another version of the model
                placed = planned_graph(graph, start.plan)
        matched = start.num_matched(placed)
        if matched == 0:
            problem = f"{str(self.placement or self.start)!r} names no op of {graph.name!r}"
            raise InvalidInputError(f"{problem}, the first of which is {graph.op_names[0]!r}.", field="start")
        others = "" if matched == placed.num_ops else "; the others follow their neighbours"
        typer.echo(f"start: {matched} of {placed.num_ops} ops{others}", err=True)
        return start


@dataclass(frozen=True)
class PlanOptions(Loading):
    """A placement that is evaluated unchanged, in place of a plan file."""

    placement: PlacementOption = None

    def check(self, *, is_planned: bool) -> None:
        """Refuse both of a plan file and a placement, or none, and options beside a plan that says them."""
        if is_planned == (self.placement is not None):
            raise InvalidInputError("give PLAN or --placement, one of them.", field="plan")
        if not is_planned:
            return
        for option in ("dim", "value", "trips", "state", "no_state"):
            if getattr(self, option):
                raise InvalidInputError(f"--{option.replace('_', '-')} is that of PLAN.", field=option)
        if self.precision != "native":
            raise InvalidInputError("--precision is that of PLAN.", field="precision")

    def read(
        self, model: str, plan: Path | None, target: str | None, costs: Path | None
    ) -> tuple[Graph, Target, Plan]:
        """The graph of MODEL, the target and the plan."""
        from go_opt.search.methods.given import plan_as_it_stands

        if plan is not None:
            return load_with_plan(model, plan, target, costs)
        on = api.target(target or "mcm-6x6")
        graph = with_costs(self.load(model), on, costs)
        start = StartOptions(placement=self.placement).start_of(graph)
        assert start is not None
        return graph, on, plan_as_it_stands(graph, on, start)


def each_with_plan(
    given: Sequence[str], plan: Path | None = None, *, alone: bool = False
) -> list[tuple[str, Path]]:
    """The models that are given, with the plan that follows them, unless ``plan`` is it.

    Several are one model at the rates of the plan; of a plan of turns, each has its own. Without models
    they are those that the plan names.

    Args:
      alone: whether turns are refused.

    Raises:
      InvalidInputError: no plan is given.
      PlanError: the plan is of other models, as far as it says.
    """
    models = list(given)
    if plan is None:
        if len(models) == 1 or models[-1].endswith(_MODELS) or models[-1].startswith("zoo:"):
            raise InvalidInputError("PLAN is missing, a plan written by optimize --out.", field="plan")
        plan = Path(models.pop())
    data = read_json(plan, "plan file", PlanError)
    data = data if isinstance(data, dict) else {}
    planned = str(data.get("model", ""))
    shares = _shares(planned)
    own = [name for _, name in shares]
    names = [name for model in models for _, name in _shares(model)] or own
    if len(names) != len(own):
        problem = f"is of {_counted(len(own))}, not of {len(names)}"
        problem += f"; that of one is '{plan}#/models/0/plan'" if "models" in data else ""
    elif names != own and sorted(names) == sorted(own):
        problem = f"is of {', '.join(map(repr, own))} in this order"
    elif alone and "models" in data:
        problem = f"is of turns: give one model and '{plan}#/models/0/plan'"
    else:
        if "models" in data:
            return [(name, Path(f"{plan}#/models/{i}/plan")) for i, name in enumerate(names)]
        if len(models) > 1:
            return [(union_name(names, ":".join(str(copies) for copies, _ in shares)), plan)]
        return [((models or [planned])[0], plan)]
    raise PlanError(f"plan file {str(plan)!r} {problem}.", field="model")


def _shares(model: str) -> list[Share]:
    return shares_of(model) if model.startswith(UNION_PREFIX) else [(1, model)]


def _counted(models: int) -> str:
    return "one model" if models == 1 else f"{models} models"


def load_with_plan(
    model: str, plan: Path, target: str | None, costs: Path | None
) -> tuple[Graph, Target, Plan]:
    """Loads the plan first, because it has the model's dimension bindings and target.

    The graph is the model's; :func:`planned_graph` gives the one with the parts of split ops.
    """
    from go_opt.model.codecs.plan_json import load_plan

    loaded = load_plan(plan)
    graph = api.load(model, **vars(loaded.bindings), precision=loaded.precision)
    announce_compilation()
    on = api.target(target or loaded.target)
    return with_costs(graph, on, costs, plan), on, loaded


def with_costs(graph: Graph, target: Target, costs: Path | None, plan: Path | None = None) -> Graph:
    """The graph with the measured costs of a file, if given; reports their coverage on stderr.

    Raises:
      PlanError: the plan file says that the plan was made with other costs, or with costs at all.
    """
    from go_opt.costs.measured_costs import check_remembered, read_costs

    read = None if costs is None else read_costs(graph, costs, target)
    with_them = graph if read is None else read.graph
    if plan is not None:
        check_remembered(plan, with_them, costs)
    for line in read.coverage.lines() if read else ():
        typer.echo(line, err=True)
    return with_them


def _parsed(option: str, given: list[str] | None, form: re.Pattern[str], wanted: str) -> dict[str, str]:
    """The name and the text of each binding of an option."""
    found = {}
    for binding in given or []:
        match = form.fullmatch(binding)
        if match is None:
            raise InvalidInputError(f"--{option} must be {wanted}, not {binding[:100]!r}.", field=option)
        found[match[1]] = match[2]
    return found
