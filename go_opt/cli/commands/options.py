"""Options that several commands share, support for dataclasses of options, and how commands print."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_type_hints,
)

import typer
from typer.models import OptionInfo

from go_opt import api
from go_opt.common.outputs import FileKind, check_output
from go_opt.common.units import json_line
from go_opt.errors import GoOptError, InfeasibleError, InvalidInputError
from go_opt.parallel.configuration import TRANSFORMER_PREFIX
from go_opt.result import Objective
from go_opt.service.transport.address import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from go_opt.parallel.plans.answers import StepAnswer
    from go_opt.service.client.client import Client
    from go_opt.serving.mixed.plan import RangePlan
    from go_opt.solver.problem.user_constraints import UserConstraint

TOKEN_VARIABLE: Final = "GO_OPT_TOKEN"
_MAX_TOKEN_BYTES: Final = 10_000  # a larger file is not a token file
ZOO_PREFIX: Final = "zoo:"


INVALID_PLAN: Final = 3  # the exit code
_Plan = TypeVar("_Plan")


class Answer(NamedTuple):
    """What a command prints, each made only where it is printed, and the error with which it then ends."""

    data: Callable[[], Any]  # the JSON object of --json
    parts: Callable[[], Iterable[Iterable[str] | Table | Callable[[Console], object]]]
    failure: BaseException | None = None

    def ending(self, *, valid: bool) -> Answer:
        """The answer, with exit code 3 unless the plan is valid."""
        return self if valid else self._replace(failure=typer.Exit(INVALID_PLAN))

    def print(self, *, as_json: bool) -> None:
        """Print the object, or lines and tables in turn; raise the failure."""
        if as_json:
            print(json_line(self.data()))
        else:
            from rich.table import Table

            from go_opt.report.parts.screen import console, print_lines, print_table

            screen = console()
            for part in self.parts():
                if isinstance(part, Table):
                    print_table(screen, part)
                elif callable(part):
                    part(screen)
                else:
                    print_lines(screen, part)
        if self.failure is not None:
            raise self.failure


def of_each(planned: Sequence[tuple[str, _Plan]], judge: Callable[[str, _Plan], Answer]) -> Answer:
    """The answer for a model and its plan; for several that take turns, the answers in turn."""
    found = [judge(*one) for one in planned]
    if len(found) == 1:
        return found[0]
    return Answer(
        lambda: {"turns": [one.data() for one in found]},
        lambda: (
            part
            for (model, _), one in zip(planned, found, strict=True)
            for part in ([f"{model}:"], *one.parts())
        ),
        next((one.failure for one in found if one.failure is not None), None),
    )


class Output(OptionInfo):
    """An option that names a file or folder to write, as :func:`with_options` checks it.

    Args:
      kinds: as of check_output; none: the command checks its folder.
      described: as of :func:`typer.Option`.
    """

    def __init__(self, kinds: FileKind | Mapping[str, FileKind], *flags: str, **described: Any) -> None:
        super().__init__(default=..., param_decls=flags, **described)
        self.kinds = {"": kinds} if isinstance(kinds, FileKind) else kinds


def targets_named(incomplete: str) -> list[str]:
    """Completes shipped targets and target files."""
    from go_opt.env import target_names

    return [*(name for name in target_names() if name.startswith(incomplete)), *_files(incomplete, ".toml")]


def models_named(incomplete: str) -> list[str]:
    """Completes zoo graphs and model files."""
    names = [f"{ZOO_PREFIX}{name}" for name in zoo_named("")]
    return [
        *(name for name in names if name.startswith(incomplete)),
        *_files(incomplete, ".onnx", ".pt2", ".mlir", ".json"),
    ]


def zoo_named(incomplete: str) -> list[str]:
    """Completes names of zoo graphs."""
    from go_opt.env import zoo_entries

    return [entry.name for entry in zoo_entries() if entry.name.startswith(incomplete)]


def _files(incomplete: str, *suffixes: str) -> list[str]:
    """Files with these suffixes, and folders."""
    folder, _, start = incomplete.rpartition("/")
    before = f"{folder}/" if "/" in incomplete else ""
    try:
        found = sorted(Path(before or ".").iterdir())
    except OSError:
        return []
    return [
        f"{before}{path.name}{'/' if path.is_dir() else ''}"
        for path in found
        if path.name.startswith(start) and (path.name.endswith(suffixes) or path.is_dir())
        if start or not path.name.startswith(".")
    ]


_MODEL: Final = typer.Argument(
    metavar="MODEL",
    help="An .onnx, .pt2 or .mlir file, a .json graph, or zoo:NAME.",
    autocompletion=models_named,
)
ModelArgument = Annotated[str, _MODEL]
ModelsArgument = Annotated[list[str], _MODEL]
OptionalModelArgument = Annotated[str | None, _MODEL]
TargetOption = Annotated[
    str, typer.Option("--target", help="Target name or .toml file.", autocompletion=targets_named)
]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan written by optimize --out.")]
ModelsAndPlanArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL... [PLAN]",
        help="A model, or several that were planned as one; then a plan written by optimize --out.",
        autocompletion=models_named,
    ),
]
PlanTargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Target name or .toml file; by default the plan's own.",
        autocompletion=targets_named,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ConstraintsOption = Annotated[
    Path | None,
    typer.Option("--constraints", metavar="FILE", help="TOML file of constraints: pins, limits …"),
]
CostsOption = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="Measured seconds: a CSV file of op,kind,seconds, or a profile of ONNX Runtime.",
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace files that go-opt did not write, too; never inputs.")
]
PlanObjectiveOption = Annotated[
    Objective | None,
    typer.Option("--objective", help="Objective to explain; by default the one of the plan."),
]


@dataclass(frozen=True)
class Connection:
    """The service to use, and the credentials for it."""

    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Ask a go-opt service.")] = None
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt; trust public certificate authorities.")] = False
    tls_ca: Annotated[Path | None, typer.Option(help="Encrypt; trust the authorities of this PEM file.")] = (
        None
    )
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of your certificate.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File of the token that the service asks for. [default: ${TOKEN_VARIABLE}]"),
    ] = None

    def client(self) -> Client:
        """A client of the service; by default the service on this machine."""
        from go_opt.service.client.client import Client
        from go_opt.service.transport.credentials import Credentials

        credentials = Credentials(self.tls, self.tls_ca, self.tls_cert, self.tls_key, self._token())
        return Client(self.server or DEFAULT_ADDRESS, credentials=credentials)

    def refuse_without_server(self) -> None:
        """Raise if options of a service are given without a service."""
        if self.server is not None:
            return
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise InvalidInputError(f"{option} needs --server.", field=field.name)

    def _token(self) -> str | None:
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        try:
            with self.token_file.open("rb") as file:
                return file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        except OSError as error:
            reason = error.strerror or str(error)
        except ValueError:  # not ASCII, or a path with a null byte
            reason = "it is no token"
        raise InvalidInputError(
            f"--token-file: {str(self.token_file)!r} cannot be read: {reason}.", field="token_file"
        )


def with_options(command: Callable[..., Answer | None]) -> Callable[..., None]:
    """Turns each field of a command's dataclass parameters into an option, and prints its answer.

    Before the command runs, each option with an :class:`Output` is checked: it must not replace a
    file that go-opt did not write, nor any file that another option names. A command with an answer has
    an option ``--json``, with which the answer where there is no plan is an object, too.
    """
    own = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in own.items() if is_dataclass(kind)}
    answers = own["return"] is not type(None)

    @wraps(command)
    def run(**given: Any) -> None:
        _check_outputs(run.__annotations__, given)
        as_json = bool(given.get("as_json"))
        if "as_json" not in own:
            given.pop("as_json", None)
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        try:
            answer = command(**given, **made)
        except InfeasibleError as error:
            if as_json:
                from go_opt.result_json import infeasible_to_dict

                print(json_line(infeasible_to_dict(error)))
            raise
        if answer is not None:
            answer.print(as_json=as_json)

    parameters: list[inspect.Parameter] = []  # typer reads options from the signature
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            parameters.append(_by_keyword(parameter.name, own[parameter.name], parameter.default))
            continue
        group = groups[parameter.name]
        hints = get_type_hints(group, include_extras=True)
        parameters += [_by_keyword(field.name, hints[field.name], field.default) for field in fields(group)]
    if answers and "as_json" not in own:
        parameters.append(_by_keyword("as_json", JsonOption, False))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _check_outputs(annotations: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        output = next((one for one in get_args(annotations[name]) if isinstance(one, Output)), None)
        if output is not None and value is not None:
            others = [file for other in given if other != name for file in _named(given[other])]
            if given.get("overwrite") and os.path.exists(value):
                others += [str(weights) for file in others for weights in _weights_of(file)]
            option = f"--{name.replace('_', '-')}"
            check_output(option, value, output.kinds, others, overwrite=given.get("overwrite"))


def _named(value: Any) -> Iterator[str]:
    """The files that the value of an option names; one to write may not exist yet."""
    if isinstance(value, list):
        for one in value:
            yield from _named(one)
    elif isinstance(value, Path) or (isinstance(value, str) and os.path.exists(value)):
        yield str(value)
    elif isinstance(value, str) and os.path.exists(file := value.partition("#/")[0]):
        yield file  # of which a part is read
    elif isinstance(value, str) and value.endswith(":paper"):  # of a target
        yield value.removesuffix(":paper")


def _weights_of(model: str) -> Iterator[Path]:
    """The files that a model keeps its weights in."""
    if model.endswith(".onnx") and os.path.isfile(model):
        from go_opt.frontends.onnx.inference.file import read_model

        with suppress(GoOptError):  # which loading the model reports
            yield from read_model(model).external_files()


def read_constraints(path: Path | None) -> tuple[UserConstraint, ...]:
    """The constraints of the file, if one is given."""
    from go_opt.given_request import load_constraints

    return () if path is None else load_constraints(path)


def _by_keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def refuse_for_step(**given: Any) -> None:
    """Refuse the first option that is given, since training steps have none of them."""
    for name, value in given.items():
        if value not in (None, False):
            raise InvalidInputError(f"--{name.replace('_', '-')} is not for a training step.", field=name)


AnyObjective = Literal[Objective, "step"]

BatchOption = Annotated[
    int | None, typer.Option(help="Sequences of a training step, of all devices together.")
]


@dataclass(frozen=True)
class StepOptions:
    """An objective, and what belongs to ``step``: a training step."""

    objective: Annotated[
        AnyObjective | None, typer.Option(help="By default the one of the plan; step: a training step.")
    ] = None
    batch: BatchOption = None
    parallel: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE,…", help="Degrees tensor, pipeline, data … of a training step."),
    ] = None

    def is_step(self, model: str) -> bool:
        """Whether they ask for a training step.

        Raises:
          InvalidInputError: the objective is of other models, or needs options that are not given.
        """
        is_repeated = model.startswith(TRANSFORMER_PREFIX)
        if self.objective in ("throughput", "latency") and is_repeated:
            raise InvalidInputError(
                f"a model {TRANSFORMER_PREFIX}… needs --objective step.", field="objective"
            )
        for name in ("batch", "parallel"):
            if not is_repeated and getattr(self, name) is not None:
                raise InvalidInputError(f"--{name} is for --objective step.", field=name)
        return is_repeated

    def of_plan(self) -> Objective | None:
        """The objective, if it is not ``step``."""
        return None if self.objective == "step" else self.objective

    def sequences(self) -> int:
        """Those of ``--batch``, which is needed."""
        if self.batch is None:
            raise InvalidInputError("--batch is missing: the sequences of a step.", field="batch")
        return self.batch

    def answer(
        self, model: str, target: str | None, plan: Path | None, *, refuses: bool = True
    ) -> StepAnswer | RangePlan:
        """The step or the ranges of a plan, or the step in the configuration of ``--parallel``."""
        from go_opt.parallel.plans.answers import costed_step, loaded_step
        from go_opt.serving.mixed.plan import is_range_plan, loaded_ranges

        if plan is not None and is_range_plan(plan):
            return loaded_ranges(plan, model, target)

        on = None if target is None else api.target(target)
        if plan is not None:
            return loaded_step(plan, on, model, refuses=refuses)
        if self.parallel is None:
            raise InvalidInputError("--parallel is missing, such as tensor=8,data=8.", field="parallel")
        if on is None:
            raise InvalidInputError("--target is missing, such as dgx-a100-512.", field="target")
        return costed_step(model, on, self.sequences(), self.parallel)
