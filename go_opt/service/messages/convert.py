"""Requests, results, metrics and targets to and from their messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import numpy as np
from google.protobuf import json_format, struct_pb2
from numpy.typing import DTypeLike, NDArray

from go_opt.env import Metrics, Target, load_target, parse_target, shipped_target, target_names
from go_opt.env.model.metrics import STALL_CAUSES, Fidelity, Simulation
from go_opt.errors import InvalidInputError, TargetError
from go_opt.frontends.onnx_model import OnnxModel
from go_opt.model.codecs.wire import plan_from_proto
from go_opt.proto import graph_pb2, optimizer_pb2, plan_pb2
from go_opt.result import Decide, Objective, OptimizeResult, Request, Status, Step
from go_opt.service.messages.convert_constraints import constraints_from_proto, constraints_to_proto
from go_opt.service.messages.convert_start import start_from_proto, start_to_proto
from go_opt.service.messages.requests import request_part
from go_opt.service.messages.sent_graph import SentGraph

# An enum's number is the place of its name here; 0, "unspecified", reads as the default.
_OBJECTIVES: Final[tuple[Objective, ...]] = ("throughput", "throughput", "latency")
_DECIDES: Final[tuple[Decide, ...]] = ("all", "all", "placement")
_FIDELITIES: Final[tuple[Fidelity, ...]] = ("analytical", "analytical", "simulated")
_STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_Name = TypeVar("_Name", bound=str)


def target_to_proto(target: str | Path | Target) -> plan_pb2.Target:
    """The message of a target's name, of the text of its file, or of a shipped target."""
    if isinstance(target, Target):
        if target.name in target_names() and load_target(target.name).fingerprint == target.fingerprint:
            return plan_pb2.Target(name=target.name)
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
    """The message of an ONNX file."""
    precision = f"PRECISION_{model.precision.upper().replace('-', '_')}"
    return optimizer_pb2.OnnxModel(file=model.file, dims=dict(model.dims), precision=precision)


def explanation_from_proto(message: struct_pb2.Struct) -> dict[str, Any]:
    """The object of an explanation; numbers arrive as floating ones, those that are whole leave as such."""
    whole: dict[str, Any] = _plain(json_format.MessageToDict(message))
    return whole


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def target_from_proto(message: plan_pb2.Target) -> Target:
    """The target of a message, `target` of a request; no file but the shipped ones is looked at."""
    with request_part("target"):
        if message.WhichOneof("selection") == "toml":
            return parse_target(message.toml, message.toml_source or "inline")
        return shipped_target(message.name)


def request_to_proto(request: Request, *, policy: str | None) -> optimizer_pb2.OptimizeRequest:
    """The message of a request, without its graph and target.

    Args:
      policy: ``"default"``, ``"none"`` or None, or the name of one that the service trained.
    """
    return optimizer_pb2.OptimizeRequest(
        objective=f"OBJECTIVE_{request.objective.upper()}",
        budget_s=request.budget_s,
        max_evaluations=request.max_evaluations,
        seed=request.seed,
        decide=f"DECIDE_{request.decide.upper()}",
        no_relays=not request.relays,
        no_replication=not request.replication,
        policy=policy or "none",
        fidelity=f"FIDELITY_{request.fidelity.upper()}",
        constraints=constraints_to_proto(request.constraints),
        max_latency_s=request.max_latency_s,
        no_simulate=not request.simulate,
        no_splits=not request.splits,
        output_parts=request.output_parts,
        start=None if request.start is None else start_to_proto(request.start),
    )


def objective_from_proto(number: int) -> Objective:
    """The objective of a number of its enum."""
    return _named("objective", _OBJECTIVES, number)


def request_from_proto(message: optimizer_pb2.OptimizeRequest) -> Request:
    """The validated request of a message; its graph and target are read elsewhere."""
    return Request(
        objective=objective_from_proto(message.objective),
        budget_s=message.budget_s if message.HasField("budget_s") else None,
        max_evaluations=message.max_evaluations if message.HasField("max_evaluations") else None,
        seed=message.seed,
        decide=_named("decide", _DECIDES, message.decide),
        relays=not message.no_relays,
        replication=not message.no_replication,
        fidelity=fidelity_from_proto(message.fidelity),
        constraints=constraints_from_proto(message.constraints),
        max_latency_s=message.max_latency_s if message.HasField("max_latency_s") else None,
        simulate=not message.no_simulate,
        splits=not message.no_splits,
        output_parts=message.output_parts,
        start=start_from_proto(message.start) if message.HasField("start") else None,
    )


def fidelity_from_proto(number: int) -> Fidelity:
    """The fidelity of an enum's number; HARDWARE is another environment's to serve."""
    if number == plan_pb2.FIDELITY_HARDWARE:
        raise InvalidInputError("fidelity: this service has no hardware to measure on.", field="fidelity")
    return _named("fidelity", _FIDELITIES, number)


def result_to_proto(result: OptimizeResult, sent: SentGraph) -> optimizer_pb2.OptimizeResponse:
    """The message of a result, for who sent the graph.

    Sent in the graph's own order, :func:`result_from_proto` gives the same result back.
    """
    return optimizer_pb2.OptimizeResponse(
        plan=sent.plan_to_proto(result.plan),
        metrics=metrics_to_proto(result.metrics),
        objective=f"OBJECTIVE_{result.objective.upper()}",
        status=f"STATUS_{result.status}",
        lower_bound_s=result.lower_bound_s,
        bound_reason=result.bound_reason,
        gap=result.gap,
        method=result.method,
        history=[
            optimizer_pb2.Step(
                method=step.method,
                objective_s=step.objective_s,
                best_s=step.best_s,
                evaluations=step.evaluations,
                elapsed_s=step.elapsed_s,
            )
            for step in result.history
        ],
        evaluations=result.evaluations,
        wall_s=result.wall_s,
        reference_s=result.reference_s,
        seed=result.seed,
        version=result.version,
        simulated_interval_s=result.simulated_interval_s,
        simulated_makespan_s=result.simulated_makespan_s,
        simulation_note=result.simulation_note,
        nodes_without_op=[graph_pb2.NodeWithoutOp(**node._asdict()) for node in sent.graph.nodes_without_op],
    )


def result_from_proto(message: optimizer_pb2.OptimizeResponse) -> OptimizeResult:
    """The result of a message."""
    return OptimizeResult(
        plan=plan_from_proto(message.plan),
        metrics=metrics_from_proto(message.metrics),
        objective=objective_from_proto(message.objective),
        status=_named("status", _STATUSES, message.status - 1),
        lower_bound_s=message.lower_bound_s,
        bound_reason=message.bound_reason,
        gap=message.gap,
        method=message.method,
        history=tuple(
            Step(step.method, step.objective_s, step.best_s, step.evaluations, step.elapsed_s)
            for step in message.history
        ),
        evaluations=message.evaluations,
        wall_s=message.wall_s,
        reference_s=message.reference_s,
        seed=message.seed,
        version=message.version,
        simulated_interval_s=_optional(message, "simulated_interval_s"),
        simulated_makespan_s=_optional(message, "simulated_makespan_s"),
        simulation_note=message.simulation_note,
    )


def _optional(message: optimizer_pb2.OptimizeResponse, field: str) -> float | None:
    return getattr(message, field) if message.HasField(field) else None


def metrics_to_proto(metrics: Metrics) -> plan_pb2.Metrics:
    """The message of metrics; :func:`metrics_from_proto` gives the same metrics back."""
    return plan_pb2.Metrics(
        interval_s=metrics.interval_s,
        throughput_per_s=metrics.throughput_per_s,
        latency_s=metrics.latency_s,
        makespan_s=metrics.makespan_s,
        bottleneck=metrics.bottleneck,
        compute_s=metrics.compute_s.tolist(),
        link_s=metrics.link_s.tolist(),
        stream_bytes=metrics.stream_bytes.tolist(),
        peak_bytes=metrics.peak_bytes.tolist(),
        weight_bytes=metrics.weight_bytes.tolist(),
        valid=metrics.valid,
        reason=metrics.reason,
        simulation=None if metrics.simulation is None else _simulation_to_proto(metrics.simulation),
    )


def metrics_from_proto(message: plan_pb2.Metrics) -> Metrics:
    """The metrics of a message."""
    return Metrics(
        interval_s=message.interval_s,
        throughput_per_s=message.throughput_per_s,
        latency_s=message.latency_s,
        makespan_s=message.makespan_s,
        bottleneck=message.bottleneck,
        compute_s=_array(message.compute_s, np.float64),
        link_s=_array(message.link_s, np.float64),
        stream_bytes=_array(message.stream_bytes, np.int64),
        peak_bytes=_array(message.peak_bytes, np.int64),
        weight_bytes=_array(message.weight_bytes, np.int64),
        valid=message.valid,
        reason=message.reason,
        simulation=_simulation_from_proto(message.simulation) if message.HasField("simulation") else None,
    )


def _simulation_to_proto(simulation: Simulation) -> plan_pb2.Simulation:
    stalls = zip(STALL_CAUSES, simulation.stall_s.T.tolist(), strict=True)
    return plan_pb2.Simulation(
        utilisation=simulation.utilisation.tolist(),
        link_utilisation=simulation.link_utilisation.tolist(),
        link_wait_s=simulation.link_wait_s.tolist(),
        period=simulation.period,
        inferences=simulation.inferences,
        **{f"stall_{cause}_s": stall_s for cause, stall_s in stalls},
    )


def _simulation_from_proto(message: plan_pb2.Simulation) -> Simulation:
    stalls = [getattr(message, f"stall_{cause}_s") for cause in STALL_CAUSES]
    return Simulation(
        utilisation=_array(message.utilisation, np.float64),
        stall_s=_array(np.transpose(stalls), np.float64),
        link_utilisation=_array(message.link_utilisation, np.float64),
        link_wait_s=_array(message.link_wait_s, np.float64),
        period=message.period,
        inferences=message.inferences,
    )


def target_summary(target: Target) -> optimizer_pb2.TargetSummary:
    """What a list of targets says of one."""
    return optimizer_pb2.TargetSummary(
        name=target.name,
        description=target.description,
        num_chips=target.num_chips,
        topology=target.topology.kind,
        native_dtype=target.native_dtype,
        power_w=target.power_w,
        fingerprint=target.fingerprint,
    )


def _named(field: str, names: tuple[_Name, ...], number: int) -> _Name:
    if not 0 <= number < len(names):
        raise InvalidInputError(f"{field}: {number} is no number of its enum.", field=field)
    return names[number]


def _array(values: Sequence[float] | NDArray, dtype: DTypeLike) -> NDArray:
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array
