"""Converts requests, results, metrics and targets to and from their messages.

A message and its value have fields of the same names, which :func:`message_of` and :func:`value_of` walk by
the message's descriptor; only what is written differently has functions of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
from google.protobuf import json_format, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from go_opt.api.chips import ChipCount, FewestChips
from go_opt.common.arrays import frozen
from go_opt.env import Metrics, Target, load_target, parse_target, shipped_target, target_names
from go_opt.env.model.metrics import STALL_CAUSES, Fidelity, Simulation
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InvalidInputError, ServiceError, TargetError
from go_opt.frontends.onnx_frontend import OnnxModel
from go_opt.model.codecs.wire import bindings_to_proto, plan_from_proto, plan_to_proto
from go_opt.model.graph import UnknownOp
from go_opt.model.start import NO_KERNEL, OpStart, Start
from go_opt.model.states import SizedState
from go_opt.proto import graph_pb2, optimizer_pb2, plan_pb2
from go_opt.result import OptimizeResult, Request, Step
from go_opt.service.messages.graphs import SentGraph
from go_opt.service.messages.requests import request_part
from go_opt.solver.problem.user_constraints import KINDS, UserConstraint

_M = TypeVar("_M", bound=Message)
_V = TypeVar("_V")
_UPPER: Final = ("Status", "JobState")  # enums whose names are upper case in values, too
_ARRAYS: Final = {FieldDescriptor.TYPE_DOUBLE: np.float64, FieldDescriptor.TYPE_INT64: np.int64}
_LEAST: Final = {"chip": 0, "replication": 1, "kernel": 0}  # smallest values of an op's fields


def message_of(value: Any, kind: type[_M], **given: Any) -> _M:
    """The message with the fields of ``value`` of the same names; those that are None stay unset.

    Args:
      given: fields that are written differently, or that the value has not.
    """
    for field in kind.DESCRIPTOR.fields:
        part = getattr(value, field.name, None)
        if part is not None and field.name not in given:
            given[field.name] = _written(part, field)
    message: _M = kind(**given)
    return message


def value_of(message: Message, kind: Callable[..., _V], **given: Any) -> _V:
    """The value of a class with the fields of a message; fields that are not set are None.

    Raises:
      InvalidInputError: a field has no number of its enum.
    """
    for name in getattr(kind, "_fields", None) or [field.name for field in fields(cast(Any, kind))]:
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is not None and name not in given:
            given[name] = _read(message, field)
    return kind(**given)


def chosen(message: Message, name: str) -> Any:
    """The name of an enum's number in a field; 0, "unspecified", is read as the first."""
    kind, number = message.DESCRIPTOR.fields_by_name[name].enum_type, getattr(message, name)
    if number not in kind.values_by_number:
        raise InvalidInputError(f"{name}: {number} is no number of its enum.", field=name)
    prefix = kind.values[0].name.removesuffix("UNSPECIFIED")
    text = kind.values_by_number[max(number, 1)].name.removeprefix(prefix)
    return text if kind.name in _UPPER else text.lower()


def fidelity_of(message: Message) -> Fidelity:
    """The fidelity of a request; raises for HARDWARE, which only environments serve."""
    fidelity = chosen(message, "fidelity")
    if fidelity == "hardware":
        raise InvalidInputError("fidelity: this service has no hardware to measure on.", field="fidelity")
    return cast(Fidelity, fidelity)


def _written(part: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        return f"{prefix}{part.upper().replace('-', '_')}"
    if field.message_type is None:
        return part
    kind = field.message_type
    write = _WRITERS.get(kind.name, partial(message_of, kind=GetMessageClass(kind)))
    return [write(each) for each in part] if type(part) in (tuple, list) else write(part)


def _read(message: Message, field: FieldDescriptor) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.enum_type is not None:
        return chosen(message, field.name)
    value = getattr(message, field.name)
    if field.message_type is not None:
        read = _READERS[field.message_type.name]
        return read(value) if isinstance(value, Message) else tuple(map(read, value))
    if isinstance(value, str | int | float):
        return value
    return frozen(value, _ARRAYS[field.type]) if field.type in _ARRAYS else tuple(value)


def start_to_proto(start: Start) -> optimizer_pb2.Start:
    """The message for a start; :func:`start_from_proto` is the inverse."""
    if start.plan is not None:
        plan = plan_to_proto(start.plan)
        plan.op_names.extend(start.ops)
        return optimizer_pb2.Start(plan=plan)
    absent = {"kernel": None}
    return optimizer_pb2.Start(
        ops=[
            message_of(op, optimizer_pb2.OpStart, op=name, **(absent if op.kernel == NO_KERNEL else {}))
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
    given = {field.name: value for field, value in message.ListFields() if field.name != "op"}
    for name, value in given.items():
        least = _LEAST.get(name, value)
        if value < least:
            raise InvalidInputError(
                f"start: {name} of op {message.op[:100]!r} must be {least} or more, not {value}.",
                field=f"start.ops[{i}].{name}",
            )
    return OpStart(**{"chip": 0, **given})


def constraints_from_proto(messages: Iterable[optimizer_pb2.Constraint]) -> tuple[UserConstraint, ...]:
    """The constraints in messages.

    Raises:
      InvalidInputError: a constraint is empty or invalid.
    """
    return tuple(_constraint(i, message) for i, message in enumerate(messages))


def constraint_to_proto(constraint: UserConstraint) -> optimizer_pb2.Constraint:
    """The message for a constraint; :func:`constraints_from_proto` is the inverse, of several."""
    (name,) = (name for name, kind in KINDS.items() if isinstance(constraint, kind))
    message = getattr(optimizer_pb2, type(constraint).__name__)(**vars(constraint))
    return optimizer_pb2.Constraint(**{name: message})


def _constraint(i: int, message: optimizer_pb2.Constraint) -> UserConstraint:
    name = message.WhichOneof("kind")
    if name is None:
        raise InvalidInputError(f"constraints[{i}] is of no kind.", field="constraints")
    try:
        constraint: UserConstraint = value_of(getattr(message, name), cast(Any, KINDS[name]))
        return constraint
    except InvalidInputError as error:
        raise InvalidInputError(f"constraints[{i}]: {error}", field="constraints") from None


def request_to_proto(request: Request) -> optimizer_pb2.OptimizeRequest:
    """The message for a request, without its graph and target; :func:`request_from_proto` is the inverse.

    Raises:
      InvalidInputError: the policy is a file.
    """
    if not isinstance(request.policy, str | None):
        raise InvalidInputError(
            f"policy must be the name of one that the service has, not {request.policy!r}.", field="policy"
        )
    switched_off = {f"no_{name}": not getattr(request, name) for name in _ON}
    return message_of(request, optimizer_pb2.OptimizeRequest, **switched_off)


def request_from_proto(message: optimizer_pb2.OptimizeRequest) -> Request:
    """The validated request in a message, without its graph and target."""
    return value_of(
        message,
        Request,
        fidelity=fidelity_of(message),
        constraints=constraints_from_proto(message.constraints),
        **{name: not getattr(message, f"no_{name}") for name in _ON},
    )


_ON: Final = [field.name for field in fields(Request) if field.default is True]  # "no_NAME" in the message


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


def target_from_proto(message: plan_pb2.Target) -> Target:
    """The target in field `target` of a request; reads no files except shipped targets."""
    with request_part("target"):
        if message.WhichOneof("selection") == "toml":
            return parse_target(message.toml, message.toml_source or "inline")
        return shipped_target(message.name)


def onnx_to_proto(model: OnnxModel) -> optimizer_pb2.OnnxModel:
    """The message for an ONNX file."""
    return message_of(model, optimizer_pb2.OnnxModel, **bindings_to_proto(model.bindings))


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


def result_to_proto(result: OptimizeResult, sent: SentGraph) -> optimizer_pb2.OptimizeResponse:
    """The message for a result, in the op order of the graph's sender.

    If that is the graph's own order, :func:`result_from_proto` is the inverse.
    """
    nodes = [message_of(node, graph_pb2.NodeWithoutOp) for node in sent.graph.nodes_without_op]
    plan = sent.plan_to_proto(result.plan)
    return message_of(result, optimizer_pb2.OptimizeResponse, plan=plan, nodes_without_op=nodes)


def result_from_proto(message: optimizer_pb2.OptimizeResponse) -> OptimizeResult:
    """The result in a message."""
    return value_of(message, OptimizeResult)


def fewest_chips_to_proto(fewest: FewestChips, sent: SentGraph) -> optimizer_pb2.OptimizeResponse:
    """The message for the answer, in the op order of the graph's sender."""

    def tried(found: ChipCount) -> optimizer_pb2.ChipCount:
        result = found.result and result_to_proto(replace(found.result, history=()), sent)
        return message_of(found, optimizer_pb2.ChipCount, result=result)

    response = result_to_proto(fewest.result, sent)
    needed = message_of(fewest, optimizer_pb2.ChipsNeeded, tried=map(tried, fewest.tried))
    response.chips_needed.CopyFrom(needed)
    return response


def fewest_chips_from_proto(message: optimizer_pb2.OptimizeResponse) -> FewestChips:
    """The answer in a message; the results in ``tried`` have no history.

    Raises:
      ServiceError: the message has no such answer.
    """
    if not message.HasField("chips_needed"):
        raise ServiceError("the service does not look for the fewest chips: it is of an earlier version.")
    return value_of(message.chips_needed, FewestChips, result=result_from_proto(message))


def target_summary(target: Target) -> optimizer_pb2.TargetSummary:
    """The entry of a target in the list of targets."""
    return message_of(target, optimizer_pb2.TargetSummary, topology=target.topology.kind)


def _simulation_to_proto(simulation: Simulation) -> plan_pb2.Simulation:
    stalls = zip(STALL_CAUSES, simulation.stall_s.T.tolist(), strict=True)
    stalls_s = {f"stall_{cause}_s": stall_s for cause, stall_s in stalls}
    return message_of(simulation, plan_pb2.Simulation, **stalls_s)


def _simulation_from_proto(message: plan_pb2.Simulation) -> Simulation:
    stalls = [getattr(message, f"stall_{cause}_s") for cause in STALL_CAUSES]
    return value_of(message, Simulation, stall_s=frozen(np.transpose(stalls), np.float64))


# Of the messages inside others, by name; those that are written by their fields alone need no writer.
_WRITERS: Final[Mapping[str, Callable[[Any], Message]]] = {
    "Constraint": constraint_to_proto,
    "Simulation": _simulation_to_proto,
    "SizedState": lambda state: message_of(state, optimizer_pb2.SizedState, on_host=state.where == "host"),
    "Start": start_to_proto,
}
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ChipCount": partial(value_of, kind=ChipCount),
    "Metrics": partial(value_of, kind=Metrics),
    "OptimizeResponse": result_from_proto,
    "Plan": plan_from_proto,
    "Simulation": _simulation_from_proto,
    "SizedState": lambda state: value_of(state, SizedState, where="host" if state.on_host else "chip"),
    "Start": start_from_proto,
    "Step": partial(value_of, kind=Step),
    "UnknownOp": partial(value_of, kind=UnknownOp),
}
