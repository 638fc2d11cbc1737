"""Converts results, metrics and targets to and from their messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message
from numpy.typing import DTypeLike

from go_opt.api.chips import ChipCount, FewestChips
from go_opt.common.arrays import frozen
from go_opt.env import Metrics, Target, load_target, parse_target, shipped_target, target_names
from go_opt.env.model.metrics import STALL_CAUSES, Simulation
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import ServiceError, TargetError
from go_opt.frontends.onnx_model import OnnxModel
from go_opt.model.codecs.wire import bindings_to_proto, plan_from_proto
from go_opt.proto import graph_pb2, optimizer_pb2, plan_pb2
from go_opt.result import OptimizeResult, Status, Step
from go_opt.service.messages.convert_request import named, objective_from_proto, optional
from go_opt.service.messages.requests import request_part
from go_opt.service.messages.sent_graph import SentGraph

_STATUSES: Final[tuple[Status, ...]] = get_args(Status)
# Fields with the same name in a message and in its value.
_OF_RESULT: Final = (
    "lower_bound_s", "bound_reason", "gap", "method", "evaluations", "wall_s", "reference_s", "seed",
    "version", "simulation_note",
)  # fmt: skip
_OF_METRICS: Final = (
    "interval_s", "throughput_per_s", "latency_s", "makespan_s", "bottleneck", "valid", "reason",
)  # fmt: skip
_ARRAYS_OF_METRICS: Final = {
    **dict.fromkeys(("compute_s", "link_s"), np.float64),
    **dict.fromkeys(("stream_bytes", "peak_bytes", "weight_bytes"), np.int64),
}
_OF_SIMULATION: Final = ("period", "inferences")
_ARRAYS_OF_SIMULATION: Final = dict.fromkeys(("utilisation", "link_utilisation", "link_wait_s"), np.float64)


def target_to_proto(target: str | Path | Target, *, as_text: bool = False) -> plan_pb2.Target:
    """The message for a target's name, the text of its file, or a shipped target.

    Args:
      as_text: send a target that does not ship as text, which changes its fingerprint.
    """
    if isinstance(target, Target):
        if target.name in target_names() and load_target(target.name).fingerprint == target.fingerprint:
            return plan_pb2.Target(name=target.name)
        if as_text:
            return plan_pb2.Target(toml=target_to_toml(target), toml_source=target.source)
        raise TargetError(
            f"target {target.name!r} does not ship with go-opt; give a service the path of its file.",
            field="target",
        )
    path = Path(target)
    if str(target) not in target_names() and (path.suffix == ".toml" or path.is_file()):
        # Parsed here too, so that a file that cannot be read or used is reported at once.
        load_target(path)
        return plan_pb2.Target(toml=path.read_text("utf-8"), toml_source=str(target))
    return plan_pb2.Target(name=str(target))


def onnx_to_proto(model: OnnxModel) -> optimizer_pb2.OnnxModel:
    """The message for an ONNX file."""
    precision = f"PRECISION_{model.precision.upper().replace('-', '_')}"
    return optimizer_pb2.OnnxModel(file=model.file, precision=precision, **bindings_to_proto(model.bindings))


def explanation_from_proto(message: struct_pb2.Struct) -> dict[str, Any]:
    """The object of an explanation; converts whole floats, as which integers arrive, to integers."""
    whole: dict[str, Any] = _plain(json_format.MessageToDict(message))
    return whole


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def target_from_proto(message: plan_pb2.Target) -> Target:
    """The target in field `target` of a request; reads no files except shipped targets."""
    with request_part("target"):
        if message.WhichOneof("selection") == "toml":
            return parse_target(message.toml, message.toml_source or "inline")
        return shipped_target(message.name)


def result_to_proto(result: OptimizeResult, sent: SentGraph) -> optimizer_pb2.OptimizeResponse:
    """The message for a result, in the op order of the graph's sender.

    If that is the graph's own order, :func:`result_from_proto` is the inverse.
    """
    return optimizer_pb2.OptimizeResponse(
        plan=sent.plan_to_proto(result.plan),
        metrics=metrics_to_proto(result.metrics),
        objective=f"OBJECTIVE_{result.objective.upper()}",
        status=f"STATUS_{result.status}",
        history=[optimizer_pb2.Step(**vars(step)) for step in result.history],
        simulated_interval_s=result.simulated_interval_s,
        simulated_makespan_s=result.simulated_makespan_s,
        dropped_methods=result.dropped_methods,
        nodes_without_op=[graph_pb2.NodeWithoutOp(**node._asdict()) for node in sent.graph.nodes_without_op],
        **_same(result, _OF_RESULT),
    )


def result_from_proto(message: optimizer_pb2.OptimizeResponse) -> OptimizeResult:
    """The result in a message."""
    return OptimizeResult(
        plan=plan_from_proto(message.plan),
        metrics=metrics_from_proto(message.metrics),
        objective=objective_from_proto(message.objective),
        status=named("status", _STATUSES, message.status - 1),
        history=tuple(
            Step(**{field.name: getattr(step, field.name) for field in fields(Step)})
            for step in message.history
        ),
        simulated_interval_s=optional(message, "simulated_interval_s"),
        simulated_makespan_s=optional(message, "simulated_makespan_s"),
        dropped_methods=tuple(message.dropped_methods),
        **_same(message, _OF_RESULT),
    )


def metrics_to_proto(metrics: Metrics) -> plan_pb2.Metrics:
    """The message for metrics; :func:`metrics_from_proto` is the inverse."""
    return plan_pb2.Metrics(
        simulation=None if metrics.simulation is None else _simulation_to_proto(metrics.simulation),
        **_same(metrics, (*_OF_METRICS, *_ARRAYS_OF_METRICS)),
    )


def metrics_from_proto(message: plan_pb2.Metrics) -> Metrics:
    """The metrics in a message."""
    return Metrics(
        simulation=_simulation_from_proto(message.simulation) if message.HasField("simulation") else None,
        **_arrays(message, _ARRAYS_OF_METRICS),
        **_same(message, _OF_METRICS),
    )


def _simulation_to_proto(simulation: Simulation) -> plan_pb2.Simulation:
    stalls = zip(STALL_CAUSES, simulation.stall_s.T.tolist(), strict=True)
    return plan_pb2.Simulation(
        **_same(simulation, (*_OF_SIMULATION, *_ARRAYS_OF_SIMULATION)),
        **{f"stall_{cause}_s": stall_s for cause, stall_s in stalls},
    )


def _simulation_from_proto(message: plan_pb2.Simulation) -> Simulation:
    stalls = [getattr(message, f"stall_{cause}_s") for cause in STALL_CAUSES]
    return Simulation(
        stall_s=frozen(np.transpose(stalls), np.float64),
        **_arrays(message, _ARRAYS_OF_SIMULATION),
        **_same(message, _OF_SIMULATION),
    )


def target_summary(target: Target) -> optimizer_pb2.TargetSummary:
    """The entry of a target in the list of targets."""
    same = ("name", "description", "num_chips", "native_dtype", "power_w", "fingerprint")
    return optimizer_pb2.TargetSummary(topology=target.topology.kind, **_same(target, same))


def _same(source: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _arrays(message: Message, dtypes: Mapping[str, DTypeLike]) -> dict[str, Any]:
    return {name: frozen(getattr(message, name), dtype) for name, dtype in dtypes.items()}


def fewest_chips_to_proto(fewest: FewestChips, sent: SentGraph) -> optimizer_pb2.OptimizeResponse:
    """The message for the answer, in the op order of the graph's sender."""
    response = result_to_proto(fewest.result, sent)
    response.chips_needed.chips = fewest.chips
    response.chips_needed.is_proven = fewest.is_proven
    response.chips_needed.tried.extend(_count_to_proto(found, sent) for found in fewest.tried)
    return response


def fewest_chips_from_proto(message: optimizer_pb2.OptimizeResponse) -> FewestChips:
    """The answer in a message; the results in ``tried`` have no history.

    Raises:
      ServiceError: the message has no such answer.
    """
    if not message.HasField("chips_needed"):
        raise ServiceError("the service does not look for the fewest chips: it is of an earlier version.")
    needed = message.chips_needed
    tried = tuple(map(_count_from_proto, needed.tried))
    return FewestChips(result_from_proto(message), needed.chips, needed.is_proven, tried)


def _count_to_proto(found: ChipCount, sent: SentGraph) -> optimizer_pb2.ChipCount:
    result = None if found.result is None else result_to_proto(replace(found.result, history=()), sent)
    return optimizer_pb2.ChipCount(
        chips=found.chips, result=result, is_proven=found.is_proven, reason=found.reason
    )


def _count_from_proto(message: optimizer_pb2.ChipCount) -> ChipCount:
    result = result_from_proto(message.result) if message.HasField("result") else None
    return ChipCount(message.chips, result, message.is_proven, message.reason)
