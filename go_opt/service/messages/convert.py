"""Converts requests, results, metrics and targets to and from their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import numpy as np
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message
from numpy.typing import DTypeLike

from go_opt.api.chips import ChipCount, FewestChips
from go_opt.common.arrays import frozen
from go_opt.env import Metrics, Target, load_target, parse_target, shipped_target, target_names
from go_opt.env.model.metrics import STALL_CAUSES, Fidelity, Simulation
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InvalidInputError, ServiceError, TargetError
from go_opt.frontends.onnx_model import OnnxModel
from go_opt.model.codecs.wire import bindings_to_proto, plan_from_proto, plan_to_proto
from go_opt.model.graph import Scope, UnknownOp
from go_opt.model.start import NO_KERNEL, OpStart, Start
from go_opt.model.states import SizedState
from go_opt.proto import graph_pb2, optimizer_pb2, plan_pb2
from go_opt.result import Decide, Objective, OptimizeResult, Request, Status, Step
from go_opt.service.messages.graphs import SentGraph
from go_opt.service.messages.requests import request_part
from go_opt.solver.problem.user_constraints import KINDS, UserConstraint

# An enum's number is the index of its name here; 0, "unspecified", means the default.
_OBJECTIVES: Final[tuple[Objective, ...]] = ("throughput", "throughput", "latency")
_ASKED: Final = (*_OBJECTIVES, "step")
_DECIDES: Final[tuple[Decide, ...]] = ("all", "all", "placement")
_FIDELITIES: Final[tuple[Fidelity, ...]] = ("analytical", "analytical", "simulated")
_Name = TypeVar("_Name", bound=str)
_LEAST: Final = {"chip": 0, "replication": 1, "kernel": 0}  # smallest values of an op's fields
_STATUSES: Final[tuple[Status, ...]] = get_args(Status)
_SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
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


def start_to_proto(start: Start) -> optimizer_pb2.Start:
    """The message for a start; :func:`start_from_proto` is the inverse."""
    if start.plan is not None:
        plan = plan_to_proto(start.plan)
        plan.op_names.extend(start.ops)
        return optimizer_pb2.Start(plan=plan)
    return optimizer_pb2.Start(
        ops=[
            optimizer_pb2.OpStart(
                op=name,
                chip=op.chip,
                replication=op.replication,
                kernel=None if op.kernel == NO_KERNEL else op.kernel,
                rank=op.rank,
            )
            for name, op in start.ops.items()
        ]
    )


def start_from_proto(message: optimizer_pb2.Start) -> Start:
    """The start in field `start` of a request.

    Raises:
      InvalidInputError: the start is malformed; one sentence names the field at fault.
    """
    if not message.HasField("plan"):
        return Start({op.op: _op_start(i, op) for i, op in enumerate(message.ops)})
    if message.ops:
        raise InvalidInputError("start has ops or a plan, not both.", field="start.ops")
    with request_part("start.plan", plan_pb2.Plan):
        plan, names = plan_from_proto(message.plan), message.plan.op_names
        if len(names) != len(plan.placement):
            raise InvalidInputError(
                f"the plan of start must name its {len(plan.placement)} ops, op_names has {len(names)}.",
                field="op_names",
            )
        return Start.of_plan(plan, names)


def _op_start(i: int, message: optimizer_pb2.OpStart) -> OpStart:
    for name, least in _LEAST.items():
        value = getattr(message, name)
        if value < least and (name == "chip" or message.HasField(name)):
            raise InvalidInputError(
                f"start: {name} of op {message.op[:100]!r} must be {least} or more, not {value}.",
                field=f"start.ops[{i}].{name}",
            )
    return OpStart(
        message.chip,
        message.replication if message.HasField("replication") else 1,
        message.kernel if message.HasField("kernel") else NO_KERNEL,
        message.rank,
    )


def constraints_to_proto(constraints: Iterable[UserConstraint]) -> list[optimizer_pb2.Constraint]:
    """The messages for constraints; :func:`constraints_from_proto` is the inverse."""
    return [_constraint_to_proto(constraint) for constraint in constraints]


def constraints_from_proto(messages: Iterable[optimizer_pb2.Constraint]) -> tuple[UserConstraint, ...]:
    """The constraints in messages.

    Raises:
      InvalidInputError: a constraint is empty or invalid.
    """
    return tuple(_constraint_from_proto(i, message) for i, message in enumerate(messages))


def _constraint_to_proto(constraint: UserConstraint) -> optimizer_pb2.Constraint:
    (name,) = (name for name, kind in KINDS.items() if isinstance(constraint, kind))
    message = getattr(optimizer_pb2, type(constraint).__name__)(**vars(constraint))
    return optimizer_pb2.Constraint(**{name: message})


def _constraint_from_proto(i: int, message: optimizer_pb2.Constraint) -> UserConstraint:
    name = message.WhichOneof("kind")
    if name is None:
        raise InvalidInputError(f"constraints[{i}] is of no kind.", field="constraints")
    requested = getattr(message, name)
    given = {
        field.name: getattr(requested, field.name)
        for field in requested.DESCRIPTOR.fields
        if not field.has_presence or requested.HasField(field.name)
    }
    lists = {key: tuple(value) for key, value in given.items() if not isinstance(value, int | float)}
    try:
        return KINDS[name](**given | lists)
    except InvalidInputError as error:
        raise InvalidInputError(f"constraints[{i}]: {error}", field="constraints") from None


def objective_from_proto(number: int) -> Objective:
    """The objective for an enum number."""
    return named("objective", _OBJECTIVES, number)


def fidelity_from_proto(number: int) -> Fidelity:
    """The fidelity for an enum number; raises for HARDWARE, which only environments serve."""
    if number == plan_pb2.FIDELITY_HARDWARE:
        raise InvalidInputError("fidelity: this service has no hardware to measure on.", field="fidelity")
    return named("fidelity", _FIDELITIES, number)


def named(field: str, names: tuple[_Name, ...], number: int) -> _Name:
    """The name for an enum number."""
    if not 0 <= number < len(names):
        raise InvalidInputError(f"{field}: {number} is no number of its enum.", field=field)
    return names[number]


def optional(message: Message, field: str) -> Any:
    """The field of a message, or None if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


# Fields of a request that are written differently in its message, with the functions there and back.
_CONVERTED: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "objective": (lambda name: f"OBJECTIVE_{name.upper()}", partial(named, "objective", _ASKED)),
    "decide": (lambda name: f"DECIDE_{name.upper()}", partial(named, "decide", _DECIDES)),
    "fidelity": (lambda name: f"FIDELITY_{name.upper()}", fidelity_from_proto),
    "constraints": (constraints_to_proto, constraints_from_proto),
    "start": (start_to_proto, start_from_proto),
}


def request_to_proto(request: Request) -> optimizer_pb2.OptimizeRequest:
    """The message for a request, without its graph and target; :func:`request_from_proto` is the inverse.

    Raises:
      InvalidInputError: the policy is a file.
    """
    if not isinstance(request.policy, str | None):
        raise InvalidInputError(
            f"policy must be the name of one that the service has, not {request.policy!r}.", field="policy"
        )
    message: dict[str, Any] = {}
    for field in fields(Request):
        name, value = field.name, getattr(request, field.name)
        if field.default is True:
            message[f"no_{name}"] = not value
        elif value is not None:
            message[name] = _CONVERTED[name][0](value) if name in _CONVERTED else value
    return optimizer_pb2.OptimizeRequest(**message)


def request_from_proto(message: optimizer_pb2.OptimizeRequest) -> Request:
    """The validated request in a message, without its graph and target."""
    request: dict[str, Any] = {}
    for field in fields(Request):
        name = field.name
        if field.default is True:
            request[name] = not getattr(message, f"no_{name}")
        elif message.DESCRIPTOR.fields_by_name[name].has_presence and not message.HasField(name):
            request[name] = None
        else:
            value = getattr(message, name)
            request[name] = _CONVERTED[name][1](value) if name in _CONVERTED else value
    return Request(**request)


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
        states=[_state_to_proto(state) for state in result.states],
        unpaired_states=result.unpaired_states,
        unknown_ops=[graph_pb2.UnknownOp(**op._asdict()) for op in result.unknown_ops],
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
        states=tuple(
            SizedState(
                state.read,
                state.next,
                named("scope", _SCOPES, state.scope - 1),
                state.bytes,
                "host" if state.on_host else "chip",
            )
            for state in message.states
        ),
        unpaired_states=tuple(message.unpaired_states),
        unknown_ops=tuple(UnknownOp(op.name, op.op_type, op.flops) for op in message.unknown_ops),
        **_same(message, _OF_RESULT),
    )


def _state_to_proto(state: SizedState) -> optimizer_pb2.SizedState:
    return optimizer_pb2.SizedState(
        read=state.read,
        next=state.next,
        scope=f"STATE_SCOPE_{state.scope.upper()}",
        bytes=state.bytes,
        on_host=state.where == "host",
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
