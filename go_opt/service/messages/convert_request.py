"""Converts search requests, with constraints and starting plans, to and from their messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

from google.protobuf.message import Message

from go_opt.constraint_file import as_constraints
from go_opt.env.model.metrics import Fidelity
from go_opt.errors import InvalidInputError
from go_opt.given_start import as_start
from go_opt.model.codecs.wire import plan_from_proto, plan_to_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.model.start import NO_KERNEL, OpStart, Start
from go_opt.proto import optimizer_pb2, plan_pb2
from go_opt.result import Decide, Objective, Request
from go_opt.service.messages.requests import request_part
from go_opt.solver.problem.user_constraints import KINDS, UserConstraint

# An enum's number is the index of its name here; 0, "unspecified", means the default.
_OBJECTIVES: Final[tuple[Objective, ...]] = ("throughput", "throughput", "latency")
_DECIDES: Final[tuple[Decide, ...]] = ("all", "all", "placement")
_FIDELITIES: Final[tuple[Fidelity, ...]] = ("analytical", "analytical", "simulated")
# Fields of a request: those that its message shares, those it may lack, and flags that it negates.
_SAME: Final = ("seed", "output_parts")
_OPTIONAL: Final = ("budget_s", "max_evaluations", "max_latency_s")
_ON_BY_DEFAULT: Final = ("relays", "replication", "simulate", "splits", "early_end")
_Name = TypeVar("_Name", bound=str)
_LEAST: Final = {"chip": 0, "replication": 1, "kernel": 0}  # smallest values of an op's fields


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


def request_to_proto(request: Request, *, policy: str | None) -> optimizer_pb2.OptimizeRequest:
    """The message for a request, without its graph and target.

    Args:
      policy: ``"default"``, ``"none"`` or None, or the name of a policy that the service trained.
    """
    same: dict[str, Any] = {name: getattr(request, name) for name in (*_SAME, *_OPTIONAL)}
    off: dict[str, Any] = {f"no_{name}": not getattr(request, name) for name in _ON_BY_DEFAULT}
    return optimizer_pb2.OptimizeRequest(
        objective=f"OBJECTIVE_{request.objective.upper()}",
        decide=f"DECIDE_{request.decide.upper()}",
        policy=policy or "none",
        fidelity=f"FIDELITY_{request.fidelity.upper()}",
        constraints=constraints_to_proto(request.constraints),
        start=None if request.start is None else start_to_proto(request.start),
        **same,
        **off,
    )


def objective_from_proto(number: int) -> Objective:
    """The objective for an enum number."""
    return named("objective", _OBJECTIVES, number)


def request_from_proto(message: optimizer_pb2.OptimizeRequest) -> Request:
    """The validated request in a message, without its graph and target."""
    return Request(
        objective=objective_from_proto(message.objective),
        decide=named("decide", _DECIDES, message.decide),
        fidelity=fidelity_from_proto(message.fidelity),
        constraints=constraints_from_proto(message.constraints),
        start=start_from_proto(message.start) if message.HasField("start") else None,
        **{name: getattr(message, name) for name in _SAME},
        **{name: optional(message, name) for name in _OPTIONAL},
        **{name: not getattr(message, f"no_{name}") for name in _ON_BY_DEFAULT},
    )


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


class SearchOptions(TypedDict, total=False):
    """The options of :func:`go_opt.optimize` that a service supports, with the same defaults."""

    objective: Objective
    budget_s: float | None
    max_evaluations: int | None
    seed: int
    decide: Decide
    relays: bool
    replication: bool
    splits: bool
    output_parts: bool
    fidelity: Fidelity
    constraints: Sequence[UserConstraint] | str | Path  # a path is a file on the client
    max_latency_s: float | None
    simulate: bool
    early_end: bool
    start: Start | Plan | str | Path | None  # a path is a file on the client
    policy: str | None  # "default", "none" or None, or the name of a policy that the service trained


def read_options(options: SearchOptions, graph: Graph | None) -> tuple[Request, str | None]:
    """The request and the policy in the options.

    Args:
      graph: None if this process does not know the graph.

    Raises:
      InvalidInputError: a value is out of range.
      TypeError: there is no such option.
    """
    requested: dict[str, Any] = {"constraints": (), "policy": None, **options}
    policy = requested.pop("policy")
    if not isinstance(policy, str | None):
        raise InvalidInputError(
            f"policy must be the name of one that the service has, not {policy!r}.", field="policy"
        )
    requested["constraints"] = as_constraints(requested["constraints"])
    requested["start"] = as_start(requested.get("start"), graph)
    return Request(**requested), policy
