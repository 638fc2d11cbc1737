"""Checks training requests and trains: converts requests for :mod:`go_opt.training`, and the result back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from go_opt.agents.training.problems.cases import LEAST_OPS
from go_opt.env import Target, load_target, load_zoo
from go_opt.errors import InfeasibleError, InvalidInputError
from go_opt.model.codecs.wire import graph_from_proto
from go_opt.model.graph import Graph
from go_opt.proto import graph_pb2, training_pb2
from go_opt.result import POLICY_NAMES, check_seed
from go_opt.service.jobs.job import OnProgress, Trained
from go_opt.service.messages.convert import fidelity_of, target_from_proto
from go_opt.service.messages.graphs import SentGraph
from go_opt.service.messages.requests import request_part
from go_opt.service.transport.address import parse_address
from go_opt.training import as_lessons

if TYPE_CHECKING:
    from go_opt.agents.training.run import Progress
    from go_opt.training import TrainingResult

MOST_PRETRAIN_SAMPLES: Final = 100_000_000
MOST_FINETUNE_SAMPLES: Final = 1_000_000
MOST_REQUEST_ID_CHARS: Final = 200
_DEFAULT_TARGET: Final = "mcm-6x6"
_DEFAULT_MOST_OPS: Final = 512
_POLICY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_Request = training_pb2.PretrainRequest | training_pb2.FinetuneRequest


def check_names(message: _Request) -> None:
    """Raise if the policy name or the request id is malformed."""
    name = message.policy
    if not _POLICY_NAME.fullmatch(name) or name in POLICY_NAMES:
        raise InvalidInputError(
            "policy must be 1 to 63 of a-z, 0-9, '-', '_' and '.', the first a letter or digit, and not "
            f"'default', 'none' or 'only', not {name[:100]!r}.",
            field="policy",
        )
    if len(message.request_id) > MOST_REQUEST_ID_CHARS:
        raise InvalidInputError(
            f"request_id has {len(message.request_id)} characters, the limit is {MOST_REQUEST_ID_CHARS}.",
            field="request_id",
        )


def check_environment(message: _Request, allowed: Container[str] | None) -> None:
    """Raise if the environment's address is not in ``allowed``; None allows all."""
    if allowed is None or message.environment.WhichOneof("selection") != "address":
        return
    address = message.environment.address
    if address not in allowed:
        raise InvalidInputError(
            f"the service may not call an environment at {address[:100]!r}.", field="environment.address"
        )


def pretrain_options(message: training_pb2.PretrainRequest) -> dict[str, Any]:
    """The arguments of :func:`go_opt.training.pretrain`.

    Raises:
      InvalidInputError: one sentence that names the field at fault.
    """
    options = _common_options(message, MOST_PRETRAIN_SAMPLES)
    most_ops = _DEFAULT_MOST_OPS
    if message.HasField("most_ops"):
        most_ops = options["most_ops"] = message.most_ops
    _check_range("most_ops", most_ops, LEAST_OPS, 2**31 - 1)
    if message.HasField("generated_share"):
        _check_range("generated_share", message.generated_share, 0, 1)
        options["generated_share"] = message.generated_share
    graphs = [*_zoo_graphs(message.zoo_graphs), *_graphs(message.graphs)]
    for i, graph in enumerate(graphs):
        if not LEAST_OPS <= graph.num_ops <= most_ops:
            of_zoo = i < len(message.zoo_graphs)
            raise InvalidInputError(
                f"graph {graph.name!r} has {graph.num_ops} ops, pretraining takes {LEAST_OPS} to {most_ops} "
                "(most_ops).",
                field="zoo_graphs" if of_zoo else f"graphs[{i - len(message.zoo_graphs)}]",
            )
    return options | {"graphs": graphs}


def finetune_options(message: training_pb2.FinetuneRequest) -> dict[str, Any]:
    """The arguments of :func:`go_opt.training.finetune`, without the policy to start from.

    Raises:
      InvalidInputError: one sentence that names the field at fault.
    """
    options = _common_options(message, MOST_FINETUNE_SAMPLES)
    if not message.HasField("graph"):
        raise InvalidInputError("graph is missing.", field="graph")
    with request_part("graph", graph_pb2.Graph):
        return options | {"graph": graph_from_proto(message.graph)}


def _common_options(message: _Request, most_samples: int) -> dict[str, Any]:
    check_seed(message.seed)
    options: dict[str, Any] = {"seed": message.seed}
    if message.HasField("samples"):
        _check_range("samples", message.samples, 1, most_samples)
        options["samples"] = message.samples
    _check_distinct("lessons", message.lessons)
    as_lessons(message.lessons)
    return options | {
        "lessons": list(message.lessons),
        "target": _target(message),
        "environment": _environment(message.environment),
    }


def _target(message: _Request) -> Target:
    return target_from_proto(message.target) if message.HasField("target") else load_target(_DEFAULT_TARGET)


def _environment(message: training_pb2.TrainingEnvironment) -> str:
    if message.WhichOneof("selection") == "address":
        with request_part("environment.address"):
            return str(parse_address(message.address))
    with request_part("environment.fidelity"):
        return fidelity_of(message)


def _zoo_graphs(names: Sequence[str]) -> list[Graph]:
    _check_distinct("zoo_graphs", names)
    with request_part("zoo_graphs"):
        return [load_zoo(name) for name in names]


def _graphs(messages: Sequence[graph_pb2.Graph]) -> list[Graph]:
    graphs = []
    for i, message in enumerate(messages):
        try:
            graphs.append(graph_from_proto(message))
        except InvalidInputError as error:
            raise type(error)(f"graphs[{i}]: {error}", field=f"graphs[{i}]") from None
    return graphs


def _check_range(field: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidInputError(f"{field} must be {least} to {most}, not {value}.", field=field)


def _check_distinct(field: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidInputError(f"{field} must differ from each other.", field=field)


def train_job(
    kind: int,
    request: bytes,
    *,
    start_file: Path | None,
    folder: Path,
    on_progress: OnProgress,
    should_stop: Callable[[], bool],
) -> Trained:
    """Train, or resume the job's run in ``folder``.

    Args:
      start_file: the policy from which finetuning starts; None: an untrained policy.

    Raises:
      InfeasibleError: finetuning found no valid plan.
      EnvironmentFailedError, PolicyError, InvalidInputError: as by ``go_opt.training``.
    """
    watched = _Watched(folder, on_progress, should_stop)
    try:
        result = _train(kind, request, start_file, folder, watched)
    except _StoppedBeforeStartError:
        return Trained(training_pb2.TrainingProgress())
    progress = training_pb2.TrainingProgress(
        step=result.step,
        steps=result.steps,
        samples=result.samples,
        checkpoint_step=result.step,
        best_score=result.best_score,
    )
    if not result.is_complete:
        return Trained(progress)
    if kind == training_pb2.JOB_KIND_PRETRAIN:
        return Trained(progress, training_pb2.TrainingResult())
    sent = SentGraph.from_proto(training_pb2.FinetuneRequest.FromString(request).graph)
    return Trained(progress, _finetuned(result, sent))


def _train(
    kind: int, request: bytes, start_file: Path | None, folder: Path, watched: _Watched
) -> TrainingResult:
    watch: dict[str, Any] = {"on_progress": watched.on_progress, "should_stop": watched.should_stop}
    watched.should_stop()  # before JAX loads
    from go_opt import training

    if kind == training_pb2.JOB_KIND_PRETRAIN:
        options = pretrain_options(training_pb2.PretrainRequest.FromString(request))
        return training.pretrain(folder, **options, **watch)
    options = finetune_options(training_pb2.FinetuneRequest.FromString(request))
    return training.finetune(options.pop("graph"), folder, policy=start_file, **options, **watch)


def _finetuned(result: TrainingResult, sent: SentGraph) -> training_pb2.TrainingResult:
    if result.plan is None:
        raise InfeasibleError(f"none of the {result.samples} plans met is valid.")
    reference_s = result.reference_interval_s
    return training_pb2.TrainingResult(
        best_plan=sent.plan_to_proto(result.plan),
        best_interval_s=result.best_interval_s,
        reference_interval_s=math.inf if reference_s is None else reference_s,
    )


class _StoppedBeforeStartError(Exception):
    """The job was stopped before it had any progress to keep."""


class _Watched:
    """Passes on progress and stop requests."""

    def __init__(self, folder: Path, on_progress: OnProgress, should_stop: Callable[[], bool]) -> None:
        self._on_progress, self._should_stop = on_progress, should_stop
        self._has_step = (folder / "checkpoint.safetensors").exists()

    def should_stop(self) -> bool:
        is_requested = self._should_stop()
        if is_requested and not self._has_step:
            raise _StoppedBeforeStartError
        return is_requested

    def on_progress(self, progress: Progress) -> None:
        self._has_step = True
        fields = {name: value for name, value in vars(progress).items() if name != "score"}
        self._on_progress(training_pb2.TrainingProgress(**fields))
