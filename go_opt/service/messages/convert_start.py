"""What a search begins with, to and from its message."""

from __future__ import annotations

from typing import Final

from go_opt.errors import InvalidInputError
from go_opt.model.codecs.wire import plan_from_proto, plan_to_proto
from go_opt.model.start import NO_KERNEL, OpStart, Start
from go_opt.proto import optimizer_pb2, plan_pb2
from go_opt.service.messages.requests import request_part

_LEAST: Final = {"chip": 0, "replication": 1, "kernel": 0}  # of the fields of an op


def start_to_proto(start: Start) -> optimizer_pb2.Start:
    """The message of a start; :func:`start_from_proto` gives the same start back."""
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
    """The start of a message, `start` of a request.

    Raises:
      InvalidInputError: it is malformed; one sentence that names the field at fault.
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
