"""A search with progress output, here or at a service; Ctrl-C keeps the best plan so far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from go_opt import api
from go_opt.cli.commands.options import (
    AnyObjective,
    BatchOption,
    ConstraintsOption,
    StepOptions,
    read_constraints,
)
from go_opt.cli.inputs.interrupt import InterruptAsks, interrupts_raised
from go_opt.cli.inputs.loading import with_costs
from go_opt.common.units import parse_duration_s, parse_rate_per_s
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.frontends.union.graphs import UNION_PREFIX, shares_of, union_name
from go_opt.parallel.configuration import TRANSFORMER_PREFIX
from go_opt.report.progress import SearchProgress, announce_compilation
from go_opt.result import DEFAULT_BUDGET_S, Request, Step

if TYPE_CHECKING:
    from go_opt.api.chips import ChipCount
    from go_opt.cli.commands.options import Connection
    from go_opt.cli.inputs.loading import Loading, StartOptions
    from go_opt.env import Target
    from go_opt.model.graph import Graph
    from go_opt.result import OptimizeResult
    from go_opt.serving.rate.planning import RatePlan, RateRequest, SearchOf
    from go_opt.serving.together.sharing import Sharing


class SavedAnswer(Protocol):
    """What a search of its own kind found."""

    def to_dict(self) -> dict[str, Any]: ...

    def lines(self) -> Iterator[str]: ...

    def save(self, path: Path) -> None: ...


_T = TypeVar("_T")

_HINTS: Final = get_type_hints(Request, include_extras=True)
# By name; one that begins with "no_" switches off what is on by default.
_OPTIONS: Final = {
    f"no_{field.name}" if field.default is True else field.name.removesuffix("_s"): field
    for field in fields(Request)
    if get_origin(_HINTS[field.name]) is Annotated
}
_TYPED: Final[dict[Any, Any]] = {
    float | None: str | None,  # durations have a unit
    str | Path | None: str,
}


def _with_request_options(group: type[_T]) -> type[_T]:
    """Adds a field to ``group`` for each option that :class:`Request` describes."""
    annotations: dict[str, Any] = {}
    for name, field in _OPTIONS.items():
        kind, described = get_args(_HINTS[field.name])
        flag = (_flag(name),) if kind is bool else ()
        typed = str | None if "auto" in (described.metavar or "") else _TYPED.get(kind, kind)
        annotations[name] = Annotated[typed, typer.Option(*flag, **described._asdict())]
        setattr(group, name, False if flag else field.default)
    group.__annotations__ = annotations | group.__annotations__
    return group


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _number_or_auto(given: str, option: str) -> int | None:
    if given == "auto":
        return None
    if not given.isdecimal():
        problem = f"{option} must be a whole number or auto, not {given[:100]!r}"
        raise InvalidInputError(f"{problem}.", field=option.removeprefix("--"))
    return int(given)


@dataclass(frozen=True)
@_with_request_options
class Search:
    """Options of a search."""

    constraints: ConstraintsOption = None
    stages: Annotated[
        int | None, typer.Option(help="Exactly so many chips, or groups of replicas, run ops.")
    ] = None

    def request(self) -> Request:
        """The request of the options."""
        from go_opt.solver.problem.user_constraints import Stages

        stages = () if self.stages is None else (Stages(self.stages),)
        given: dict[str, Any] = {"constraints": (*read_constraints(self.constraints), *stages)}
        for name, field in _OPTIONS.items():
            value = getattr(self, name)
            if value is not None and field.name.endswith("_s"):
                value = parse_duration_s(value, _flag(name))
            if name == "sequences" and value is not None:
                value = _number_or_auto(value, _flag(name))
            given[field.name] = not value if field.default is True else value
        return Request(**given)


@dataclass(frozen=True)
class SizedSearch(Search):
    """Options of a search, or of a search for the fewest chips that are fast enough."""

    fewest_chips: Annotated[
        bool,
        typer.Option("--fewest-chips", help="As few chips as --rate and --max-latency need."),
    ] = False
    rate: Annotated[
        str | None,
        typer.Option(
            help="Inputs (with states: tokens) a second, such as 40000/s: at the least p99, with --p99 "
            "within it, or with --fewest-chips alone as the reciprocal of the interval."
        ),
    ] = None
    p99: Annotated[
        str | None,
        typer.Option(help="Limit on the 99th percentile from arrival to answer, such as 15ms, for --rate."),
    ] = None
    batch_dim: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The dimension of batches. [default: the first of all inputs of an ONNX file]",
        ),
    ] = None

    tokens: Annotated[
        float | None,
        typer.Option(help="Tokens of a sequence in the mean, of models with states. [default: 128]"),
    ] = None

    prefill: Annotated[
        str | None,
        typer.Option(
            metavar="PROMPT", help="The prompt's model of a step MODEL: beside it or apart, for --rate."
        ),
    ] = None

    rates: Annotated[
        str | None,
        typer.Option(metavar="N:N", help="Inferences of several models, such as 2:1. [default: 1:1]"),
    ] = None

    batch: BatchOption = None

    def named(self, models: list[str]) -> str:
        """The model, or the union of several, at the rates of ``--rates``."""

        if len(models) > 1:
            return union_name(models, self.rates)
        if self.rates is not None:
            raise InvalidInputError("--rates is for several models.", field="rates")
        return models[0]

    def of_blocks(self, model: str, target: str, connection: Connection) -> SavedAnswer | None:
        """The best training step, here or at a service, or the best ranges of layers on mixed nodes.

        None if the search is of another kind; with Ctrl-C the best so far. Raises if options are given that
        are not theirs.
        """
        from go_opt.serving.mixed.cluster import is_cluster

        objective: AnyObjective = getattr(self, "objective", "throughput")
        is_laid_out = (
            model.startswith(TRANSFORMER_PREFIX) and objective == "throughput" and is_cluster(target)
        )
        if not is_laid_out and not StepOptions(objective, self.batch).is_step(model):
            return None
        from go_opt.parallel.plans.answers import StepAnswer, searched_step

        own = ("budget", "seed") if is_laid_out else ("objective", "batch", "budget")
        for field in fields(self):
            if field.name not in own and getattr(self, field.name) != field.default:
                what = "a model gpt:… on a cluster of nodes" if is_laid_out else "--objective step"
                raise InvalidInputError(f"{_flag(field.name)} is not for {what}.", field=field.name)
        budget: str | None = getattr(self, "budget", None)
        budget_s = DEFAULT_BUDGET_S if budget is None else parse_duration_s(budget, "--budget")
        seed: int = getattr(self, "seed", 0)
        sequences = 0 if is_laid_out else StepOptions("step", self.batch).sequences()
        if connection.server is not None:
            with connection.client() as client:
                if is_laid_out:
                    return client.optimize_ranges(model, target, budget_s=budget_s, seed=seed)
                return StepAnswer(client.optimize_step(model, target, sequences, budget_s=budget_s), model)
        with InterruptAsks() as asks:
            if is_laid_out:
                from go_opt.serving.mixed.cluster import Case
                from go_opt.serving.mixed.search import plan_ranges

                announce_compilation()
                return plan_ranges(Case.read(model, target), budget_s, seed, asks.is_requested)
            return searched_step(model, api.target(target), sequences, budget_s, asks.is_requested)

    def rate_per_s(self) -> float | None:
        """The requested rate; None if there is none."""
        if self.rate is None:
            for option in ("p99", "batch_dim", "tokens", "prefill"):
                if getattr(self, option) is not None:
                    raise InvalidInputError(f"{_flag(option)} needs --rate.", field=option)
            return None
        return parse_rate_per_s(self.rate, "--rate")

    def asked_rate(self) -> RateRequest | None:
        """What is asked of batches and copies; None if only of one plan's interval."""
        rate_per_s = self.rate_per_s()
        if rate_per_s is None or (self.fewest_chips and self.p99 is None):
            return None
        from go_opt.serving.rate.planning import RateRequest

        limit_s = math.inf if self.p99 is None else parse_duration_s(self.p99, "--p99")
        return RateRequest(rate_per_s, limit_s, self.fewest_chips, self.tokens)


@dataclass(frozen=True)
class Searches:
    """What the searches for one model have in common. They report on stderr; Ctrl-C keeps the best so far."""

    model: str
    loading: StartOptions
    costs: Path | None
    target: str
    on: Target
    request: Request
    connection: Connection

    def load(self, loading: Loading | None = None) -> Graph:
        """The graph with measured costs."""
        return with_costs((loading or self.loading).load(self.model), self.on, self.costs)

    def at_rate(self, asked: RateRequest, batch_dim: str | None) -> RatePlan:
        """Batch, window, copies and plan for a rate; reports what batches are, too."""
        from go_opt.report.parts.chip_tables import count_line
        from go_opt.serving.rate.planning import plan_for_rate

        self._refuse_beside_rate()
        name = batch_dim or batch_dimension(self.model, self.loading)

        def load(batch: int) -> Graph:
            dims = [] if name is None else [f"{name}={batch}"]
            graph = self.load(replace(self.loading, dim=[*(self.loading.dim or ()), *dims] or None))
            if batch == 1:
                alone = "no dimension of batches, so one input at a time"
                batches = f"batches along dimension {name}" if name else alone
                what = "batch: " + ("a token of each sequence in flight" if graph.states else batches)
                typer.echo(what, err=True)
            return graph

        def tell(batch: int, found: ChipCount) -> None:
            typer.echo(f"batch {batch}, {count_line(found)}", err=True)
            asks.has_plan = asks.has_plan or found.result is not None

        announce_compilation()
        with InterruptAsks() as asks:
            watch: dict[str, Any] = {"on_count": tell, "should_stop": asks.is_requested}
            watch |= {"has_batch": name is not None, "search": self._there()}
            try:
                return plan_for_rate(load, self.on, self.request, asked, **watch)
            except InfeasibleError:
                if asks.is_requested():  # what was looked at does not serve the rate
                    raise KeyboardInterrupt from None
                raise

    def with_prompts(self, prompt: str, asked: RateRequest | None) -> SavedAnswer:
        """Prompts beside steps or apart, for a rate."""
        from go_opt.costs.measured_costs import costs_fact
        from go_opt.serving.rate.prefill import plan_prefill
        from go_opt.serving.together.sharing import costed_alone

        if asked is None or asked.is_fewest:
            raise InvalidInputError("--prefill needs --rate, and takes no --fewest-chips.", field="prefill")
        if self.request.constraints:
            problem = "--constraints and --stages are of one model, not of --prefill and a step"
            raise InvalidInputError(f"{problem}.", field="constraints")
        self._refuse_beside_rate()
        both = replace(self, model=union_name([prompt, self.model], is_shared=True)).load()
        first = costed_alone(self.loading.load(prompt), both, 1)
        second = costed_alone(self.loading.load(self.model), both, 2)
        announce_compilation()
        with InterruptAsks() as asks:
            watch: dict[str, Any] = {"should_stop": asks.is_requested, "search": self._there()}
            watch["claims"] = costs_fact(both, self.costs)
            return plan_prefill(first, second, both, self.on, self.request, asked, **watch)

    def in_turns(self, at_once: OptimizeResult, whole: Graph) -> Sharing | None:
        """Plans each model of a union alone; None if Ctrl-C or constraints keep it from that."""
        from go_opt.serving.together.sharing import share_package

        why = "constraints are of all models at once"
        if not any(getattr(one, "ops", None) for one in self.request.constraints):
            why, alone, compared = "interrupted", replace(self.request, start=None), None
            shares, load = shares_of(self.model), self.loading.load
            with InterruptAsks() as asks:
                asks.has_plan = True
                try:
                    compared = share_package(
                        shares, at_once, whole, load, self.on, alone, asks.is_requested, self._there()
                    )
                except InfeasibleError:
                    if not asks.is_requested():
                        raise
            if not asks.is_requested():
                return compared
        typer.echo(f"turns are not compared: {why}.", err=True)
        return None

    def on_fewest_chips(self, graph: Graph, rate_per_s: float | None) -> OptimizeResult:
        """The answer here or of the service; reports each searched number of chips."""
        from go_opt.api.chips import fewest_chips
        from go_opt.report.parts.chip_tables import count_line, fewest_line

        def tell(found: ChipCount) -> None:
            typer.echo(count_line(found), err=True)

        if self.connection.server is not None:
            with self.connection.client() as client:
                fewest = client.fewest_chips(graph, self.target, self.request, rate_per_s=rate_per_s)
            for found in fewest.tried:
                tell(found)
        else:
            announce_compilation()
            with InterruptAsks() as asks:
                watch: dict[str, Any] = {"on_step": asks.on_step, "should_stop": asks.is_requested}
                fewest = fewest_chips(
                    graph, self.on, self.request, rate_per_s=rate_per_s, on_count=tell, **watch
                )
        typer.echo(fewest_line(fewest, self.on.num_chips), err=True)
        return fewest.result

    def best(self, graph: Graph) -> OptimizeResult:
        """The answer of one search, here or at the service."""
        progress = SearchProgress(self.request.minimised)
        if self.connection.server is not None:
            return self._asked(graph, progress)
        announce_compilation(lambda: progress.best)
        with InterruptAsks() as asks:

            def on_step(step: Step) -> None:
                asks.on_step(step)
                progress.on_step(step)

            watch: dict[str, Any] = {"on_step": on_step, "should_stop": asks.is_requested}
            remember = self.loading.remember
            return api.optimize(graph, self.on, request=self.request, remember=remember, **watch)

    def _asked(self, graph: Graph, progress: SearchProgress) -> OptimizeResult:
        """The service's answer; Ctrl-C ends its search and keeps the best plan it has sent."""
        best, steps = None, list[Step]()
        with (
            self.connection.client() as client,
            closing(client.optimize_stream(graph, self.target, request=self.request)) as updates,
        ):
            try:
                with interrupts_raised():
                    for best in updates:
                        reached_s = best.objective_s
                        steps.append(Step(best.method, reached_s, reached_s, best.evaluations, best.wall_s))
                        progress.on_step(steps[-1])
            except KeyboardInterrupt:
                if best is None:
                    raise
                return replace(best, history=tuple(steps))
        assert best is not None, "a stream without an answer raises."
        return best

    def _there(self) -> SearchOf | None:
        """Asks the service for the plans of several searches; None if there is none."""
        if self.connection.server is None:
            return None

        def search(graph: Graph, target: Target, request: Request) -> OptimizeResult:
            from go_opt.env.target.toml import target_to_toml
            from go_opt.search.final_simulation import on_package

            with TemporaryDirectory() as folder, self.connection.client() as client:
                part = Path(folder) / "part.toml"  # a part of a package is no file of its own
                part.write_text(target_to_toml(target), "utf-8")
                return on_package(graph, target, request, client.optimize(graph, part, request=request))

        return search

    def _refuse_beside_rate(self) -> None:
        """Raise if options are given that a search for a rate does not take."""
        for option in ("start", "placement"):
            if getattr(self.loading, option) is not None:
                raise InvalidInputError(f"--{option} is not for --rate with batches.", field=option)


def batch_dimension(model: str, loading: StartOptions) -> str | None:
    """The dimension that all inputs of one or several ONNX files share as their first, if it is not bound."""
    from go_opt.frontends.onnx_frontend import read_header

    files = [file for _, file in shares_of(model)] if model.startswith(UNION_PREFIX) else [model]
    if not all(file.endswith(".onnx") for file in files):
        return None
    headers = [read_header(file, loading.bindings()) for file in files]
    shapes = [tensor.shape for header in headers for tensor in header.inputs]
    first = {shape[0] if shape else None for shape in shapes}
    name = first.pop() if len(first) == 1 else None
    return name if isinstance(name, str) else None
