"""Converts batches of plans, as arrays for an environment, to and from their messages.

Axes: ``B`` plans, ``N`` ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.errors import PlanError
from go_opt.model.codecs.wire import plan_from_proto, plan_to_proto
from go_opt.model.plan import Plan
from go_opt.proto import environment_pb2, plan_pb2
from go_opt.service.messages.graphs import PER_OP, SentGraph

ServedFidelity = Literal["analytical", "simulated", "hardware"]
_DECIDED: Final = ("placement", "order", "fusion_group")
Plans = IntArray


class PlanWriter:
    """Writes the messages of plans that differ from ``example`` only in their decisions."""

    def __init__(self, example: Plan) -> None:
        message = plan_to_proto(example)
        for name in _DECIDED:
            message.ClearField(name)
        self._rest = message.SerializeToString()
        self._example = example

    def write(self, request: environment_pb2.EvaluateBatchRequest, plans: Sequence[Plans]) -> None:
        """Add the plans of these placements, orders and fusion groups ([B, N] each) to a request."""
        for row in zip(*(np.asarray(array).tolist() for array in plans), strict=True):
            message = request.plans.add()
            message.MergeFromString(self._rest)
            for name, values in zip(_DECIDED, row, strict=True):
                getattr(message, name).extend(values)

    def write_whole(self, request: environment_pb2.EvaluateBatchRequest, plans: Sequence[Plan]) -> None:
        """Add whole plans, with the fingerprints of the example."""
        example = self._example
        fingerprints = {name: getattr(example, name) for name in ("graph_fingerprint", "target_fingerprint")}
        request.plans.extend(plan_to_proto(replace(plan, **fingerprints)) for plan in plans)


@dataclass(frozen=True, eq=False)
class PlanBatch:
    """The plans of a message, with checked shapes and ranges."""

    placement: Plans  # [B, N]
    order: Plans  # [B, N]
    fusion_group: Plans  # [B, N]
    is_plain: BoolArray  # [B] without replication and relays
    others: Mapping[int, Plan]  # the plans that are not plain, by index


@dataclass(frozen=True)
class PlanReader:
    """Reads the plans of one graph on one target."""

    sent: SentGraph
    target_fingerprint: str
    num_chips: int

    def read(self, request: environment_pb2.EvaluateBatchRequest) -> PlanBatch:
        """The plans of a request.

        Raises:
          PlanError: a plan is malformed; the message names the batch, the plan and the field.
        """
        batch = request.batch_id
        for i, plan in enumerate(request.plans):
            self._check_fields(batch, i, plan)
        arrays = {name: self._rows(request.plans, name) for name in PER_OP}
        last_chip, last_op = self.num_chips - 1, self.sent.graph.num_ops - 1
        _check_range(batch, "placement", arrays["placement"], 0, last_chip, "chips")
        _check_range(batch, "order", arrays["order"], 0, last_op, "ops")
        _check_range(batch, "fusion_group", arrays["fusion_group"], 0, None, "kernels")
        _check_range(batch, "replication", arrays["replication"], 1, None, "numbers of chips")
        _check_permutations(batch, arrays["order"])
        origins = np.array([len(plan.provenance) for plan in request.plans], dtype=np.int32)[:, None]
        if (
            wrong := _first((arrays["op_provenance"] < 0) | (arrays["op_provenance"] >= origins))
        ) is not None:
            raise _plan_error(batch, wrong[0], "op_provenance", "must index provenance")
        # Plans of graphs with states have sequences in flight, and are checked one by one.
        is_plain = (arrays["replication"] == 1).all(axis=1) & (not self.sent.graph.states)
        # Plans with clones are refused where whole plans are read.
        is_plain &= np.array([not (plan.relays or plan.clones) for plan in request.plans], dtype=np.bool_)
        others = {i: _whole_plan(batch, i, request.plans[i]) for i in np.flatnonzero(~is_plain).tolist()}
        return PlanBatch(
            **{name: self.sent.stored_rows(name, arrays[name]) for name in _DECIDED},
            is_plain=is_plain,
            others={i: self.sent.stored_plan(plan) for i, plan in others.items()},
        )

    def _check_fields(self, batch: int, i: int, plan: plan_pb2.Plan) -> None:
        for name in PER_OP:
            if len(getattr(plan, name)) != self.sent.graph.num_ops:
                size = len(getattr(plan, name))
                problem = f"has {size} entries, the graph {self.sent.graph.num_ops} ops"
                raise _plan_error(batch, i, name, problem)
        fingerprints = {"graph": self.sent.graph.fingerprint, "target": self.target_fingerprint}
        for what, fingerprint in fingerprints.items():
            name = f"{what}_fingerprint"
            if getattr(plan, name) != fingerprint:
                raise _plan_error(batch, i, name, f"is of another {what} than the session")
        if problem := self.sent.names_problem(plan.op_names):
            raise _plan_error(batch, i, "op_names", problem)

    def _rows(self, plans: Sequence[plan_pb2.Plan], name: str) -> Plans:
        rows = np.empty((len(plans), self.sent.graph.num_ops), dtype=np.int32)
        for i, plan in enumerate(plans):
            rows[i] = getattr(plan, name)
        return rows


def _whole_plan(batch: int, i: int, message: plan_pb2.Plan) -> Plan:
    try:
        return plan_from_proto(message)
    except PlanError as error:
        problem = str(error).removeprefix("plan: ")
        raise PlanError(f"batch {batch}: plan {i}: {problem}", field=f"plans[{i}].{error.field}") from None


def _check_range(batch: int, field: str, rows: Plans, low: int, high: int | None, what: str) -> None:
    is_wrong = rows < low if high is None else (rows < low) | (rows > high)
    if (wrong := _first(is_wrong)) is not None:
        limits = f"from {low} on" if high is None else f"{low} to {high}"
        problem = f"must hold {what} {limits}, not {rows[wrong]} at {wrong[1]}"
        raise _plan_error(batch, wrong[0], field, problem)


def _check_permutations(batch: int, order: Plans) -> None:
    is_there = np.zeros(order.shape, dtype=np.bool_)
    np.put_along_axis(is_there, order, True, axis=1)
    if (wrong := _first(~is_there)) is not None:
        problem = f"must hold every op once, op {wrong[1]} is missing"
        raise _plan_error(batch, wrong[0], "order", problem)


def _first(is_wrong: BoolArray) -> tuple[int, int] | None:
    """The index of the first True in [B, N]; None if there is none."""
    if not is_wrong.any():
        return None
    row, column = np.unravel_index(int(np.argmax(is_wrong)), is_wrong.shape)
    return int(row), int(column)


def _plan_error(batch: int, plan: int, field: str, problem: str) -> PlanError:
    return PlanError(f"batch {batch}: plan {plan}: {field} {problem}.", field=f"plans[{plan}].{field}")
