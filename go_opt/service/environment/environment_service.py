"""Serves any environment as ``go_opt.v1.Environment``: sessions that evaluate batches of plans."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar, cast, get_args

import numpy as np
from google.protobuf.message import Message

from go_opt.agents.training.problems.environment import (
    Environment,
    Evaluations,
    LocalEnvironment,
    greedy_objective_s,
    open_session,
)
from go_opt.common.arrays import BoolArray, FloatArray, LongArray
from go_opt.env import Target, evaluate_batch, evaluate_plan
from go_opt.env.copies.splits import planned_graph
from go_opt.env.evaluation import Plans, out_of_memory_reason
from go_opt.env.model.metrics import Fidelity, Objective, check_objective
from go_opt.env.reward import reward
from go_opt.errors import (
    CancelledError,
    ExhaustedError,
    GoOptError,
    InvalidInputError,
    NotFoundError,
    PlanError,
    ServiceError,
    UnsupportedError,
)
from go_opt.model.codecs.wire import plan_from_proto
from go_opt.model.graph import Graph
from go_opt.model.plan import Candidate, Plan
from go_opt.proto import environment_pb2, graph_pb2, plan_pb2
from go_opt.service.calls.calls import Call, Method, Service, ServiceMetric
from go_opt.service.environment.remote_environment import DECIDED, ServedFidelity
from go_opt.service.messages.convert import chosen, target_from_proto
from go_opt.service.messages.graphs import PER_OP, SentGraph
from go_opt.service.messages.requests import parsed, request_part
from go_opt.solver.orders.instance import instance
from go_opt.solver.verify.rule_check import plan_rules
from go_opt.solver.verify.verifier import verify

_ID_BYTES: Final = 16
_SWEEPS_PER_TIMEOUT: Final = 4
_RETRY_RANGE_S: Final = (1.0, 10.0)
SERVICE_NAME: Final = environment_pb2.DESCRIPTOR.services_by_name["Environment"].full_name
MAX_BATCH_PLANS: Final = 1024
_MAX_BATCH_OPS: Final = 4_000_000  # of all plans of a batch; takes the cost model some seconds
_MINIMISED: Final = {"throughput": "interval_s", "latency": "makespan_s"}
_NOT_RUN: Final = "the environment could not run the plan."
_NO_STAGES: Final = "the environment evaluates no replicated stages and relays."
_log = logging.getLogger(__name__)


class Closes(Protocol):
    """The resource of a session."""

    def close(self) -> None:
        """Free the resource."""


_S = TypeVar("_S", bound=Closes)


@dataclass(frozen=True)
class SessionLimits:
    """Limits on the number, size and idle time of sessions."""

    sessions: int = 256
    sessions_per_client: int = 128  # pretraining has one session per validation graph
    held_bytes: int = 2**30  # of the requests that opened them, and of the routes of their targets
    idle_timeout_s: float = 900.0  # a session without calls for this long is closed

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise InvalidInputError(f"{name} is {value}, must be above zero.", field=name)


@dataclass(eq=False)
class _Entry(Generic[_S]):
    client: str
    size_bytes: int
    used_s: float
    held: _S | None = None  # None while it is being opened
    users: int = 1
    is_gone: bool = False  # close once nobody uses it


class Sessions(Generic[_S]):
    """Open sessions by id; thread-safe.

    Args:
      clock: monotonic seconds, so that setting the wall clock expires no session.
    """

    def __init__(self, limits: SessionLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._entries: dict[str, _Entry[_S]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sweeper: threading.Thread | None = None

    @property
    def num_sessions(self) -> int:
        with self._lock:
            return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """The total bytes of the open sessions, as given to :meth:`open`."""
        with self._lock:
            return sum(entry.size_bytes for entry in self._entries.values())

    def open(self, client: str, size_bytes: int, make: Callable[[], _S]) -> tuple[str, _S]:
        """Opens a session for the result of ``make``; returns the session's id and that result.

        Raises:
          ExhaustedError: a limit on sessions or bytes is reached.
        """
        self.expire()
        session_id, entry = secrets.token_hex(_ID_BYTES), _Entry[_S](client, size_bytes, self._clock())
        with self._lock:
            self._check_room(client, size_bytes)
            self._entries[session_id] = entry
            if self._sweeper is None:
                self._sweeper = threading.Thread(target=self._sweep, name="go-opt-sessions", daemon=True)
                self._sweeper.start()
        try:
            entry.held = held = make()
        except BaseException:
            with self._lock:
                self._entries.pop(session_id, None)
            raise
        self._leave(entry)
        if entry.is_gone:
            raise ServiceError("the service is draining.")
        return session_id, held

    @contextmanager
    def use(self, session_id: str, client: str) -> Iterator[_S]:
        """The resource of a session, which is not closed during the block.

        Raises:
          NotFoundError: the client has no such open session.
        """
        entry, held = self._found(session_id, client)
        try:
            yield held
        finally:
            self._leave(entry)

    def remove(self, session_id: str, client: str) -> _S:
        """Removes a session and returns its resource, which is closed once nobody uses it.

        Raises:
          NotFoundError: as for :meth:`use`.
        """
        entry, held = self._found(session_id, client, is_removed=True)
        self._leave(entry)
        return held

    def expire(self) -> None:
        """Close the sessions that have been idle for too long."""
        due_s = self._clock() - self.limits.idle_timeout_s
        self._end(lambda entry: not entry.users and entry.used_s <= due_s)

    def close(self) -> None:
        """Close all sessions, and stop the sweeper."""
        self._closed.set()
        self._end(lambda entry: True)

    def _end(self, is_due: Callable[[_Entry[_S]], bool]) -> None:
        with self._lock:
            ended = {session_id: entry for session_id, entry in self._entries.items() if is_due(entry)}
            for session_id, entry in ended.items():
                del self._entries[session_id]
                entry.is_gone = True
                entry.users += 1
        for entry in ended.values():
            self._leave(entry)

    def _leave(self, entry: _Entry[_S]) -> None:
        with self._lock:
            entry.users -= 1
            entry.used_s = self._clock()
            is_last = entry.is_gone and not entry.users
        if is_last and entry.held is not None:
            entry.held.close()

    def _sweep(self) -> None:
        while not self._closed.wait(self.limits.idle_timeout_s / _SWEEPS_PER_TIMEOUT):
            self.expire()

    def _found(self, session_id: str, client: str, *, is_removed: bool = False) -> tuple[_Entry[_S], _S]:
        """The session and its resource, in use until :meth:`_leave`."""
        self.expire()
        with self._lock:
            entry = self._entries.get(session_id)
            # The message must not reveal that another client's session exists.
            if entry is None or entry.held is None or entry.client != client:
                raise NotFoundError(
                    f"session {session_id[:40]!r} is not open: it was closed, had no call for "
                    f"{self.limits.idle_timeout_s:g} s, or never was.",
                    field="session_id",
                )
            if is_removed:
                del self._entries[session_id]
                entry.is_gone = True
            entry.users += 1
            return entry, entry.held

    def _check_room(self, client: str, size_bytes: int) -> None:
        limits, entries = self.limits, self._entries.values()
        held_bytes = sum(entry.size_bytes for entry in entries)
        if len(entries) >= limits.sessions:
            raise self._full(f"{len(entries)} sessions are open already, the limit is {limits.sessions}")
        if sum(entry.client == client for entry in entries) >= limits.sessions_per_client:
            raise self._full(
                f"{limits.sessions_per_client} sessions of this client are open already, which is the limit"
            )
        if held_bytes + size_bytes > limits.held_bytes:
            raise self._full(
                f"sessions hold {held_bytes} bytes already and this one asks for {size_bytes}, "
                f"the limit is {limits.held_bytes}"
            )

    def _full(self, reason: str) -> ExhaustedError:
        oldest_s = min((entry.used_s for entry in self._entries.values()), default=self._clock())
        least_s, most_s = _RETRY_RANGE_S
        left_s = oldest_s + self.limits.idle_timeout_s - self._clock()
        retry_s = min(max(left_s, least_s), most_s)
        return ExhaustedError(f"{reason}; close one, or try again in {retry_s:.0f} s.", retry_s=retry_s)


class EnvironmentService(Service):
    """Serves environments by fidelity and objective; by default the local ones.

    Several threads may call an environment at once. It gets only plans that keep every static
    rule. It may still report such a plan as invalid, for example if memory runs out.
    """

    name = SERVICE_NAME

    def __init__(
        self,
        environments: Mapping[tuple[ServedFidelity, Objective], Environment] | None = None,
        *,
        limits: SessionLimits | None = None,
        max_batch_plans: int = MAX_BATCH_PLANS,
    ) -> None:
        self._environments: Mapping[tuple[ServedFidelity, Objective], Environment] = environments or {
            (fidelity, objective): LocalEnvironment(fidelity, objective=objective)
            for fidelity in get_args(Fidelity)
            for objective in get_args(Objective)
        }
        self._max_batch_plans = max_batch_plans
        self.sessions: Sessions[EvaluationSession] = Sessions(limits or SessionLimits())

    def metrics(self) -> Sequence[ServiceMetric]:
        return [
            ServiceMetric(
                "environment_sessions", "Sessions that are open.", lambda: self.sessions.num_sessions
            )
        ]

    def methods(self) -> Mapping[str, Method]:
        return {
            "CreateSession": Method("search", self._create_session),
            "Evaluate": Method("batches", self._evaluate),
            "CloseSession": Method("quick", self._close_session),
        }

    def close(self) -> None:
        self.sessions.close()

    def _create_session(self, data: bytes, call: Call) -> Message:
        request = parsed(environment_pb2.CreateSessionRequest, data)
        objective: Objective = chosen(request, "objective")
        check_objective(objective)
        environment = self._environment(chosen(request, "fidelity"), objective)
        target = target_from_proto(request.target)
        with request_part("graph", graph_pb2.Graph):
            sent = SentGraph.from_proto(request.graph)
        # A short target file may have large routes.
        held_bytes = len(data) + sum(table.nbytes for table in target.topology.routes)
        session_id, session = self.sessions.open(
            call.client, held_bytes, lambda: EvaluationSession(environment, sent, target, objective)
        )
        if call.stop.is_set():  # nobody will get the session's id
            self.sessions.remove(session_id, call.client)
            raise CancelledError("the caller left before the session was open.")
        return environment_pb2.CreateSessionResponse(
            session_id=session_id,
            max_batch_plans=self._most_plans(sent.graph),
            idle_timeout_s=self.sessions.limits.idle_timeout_s,
            graph_fingerprint=sent.graph.fingerprint,
            target_fingerprint=target.fingerprint,
            op_names=sent.op_names,
            **{f"reference_{_MINIMISED[objective]}": session.reference_s},
        )

    def _evaluate(self, data: bytes, call: Call) -> Message:
        start_s = time.monotonic()
        request = parsed(environment_pb2.EvaluateBatchRequest, data)
        with self.sessions.use(request.session_id, call.client) as session:
            most_plans = self._most_plans(session.graph)
            if len(request.plans) > most_plans:
                raise ExhaustedError(
                    f"batch {request.batch_id}: plans has {len(request.plans)} entries, "
                    f"the limit is {most_plans}.",
                    retry_s=None,
                )
            metrics, rewards = session.answer(request)
        return environment_pb2.EvaluateBatchResponse(
            batch_id=request.batch_id, metrics=metrics, wall_s=time.monotonic() - start_s, rewards=rewards
        )

    def _close_session(self, data: bytes, call: Call) -> Message:
        request = parsed(environment_pb2.CloseSessionRequest, data)
        session = self.sessions.remove(request.session_id, call.client)
        return environment_pb2.CloseSessionResponse(plans_evaluated=session.plans_evaluated)

    def _environment(self, fidelity: ServedFidelity, objective: Objective) -> Environment:
        served = self._environments
        if fidelity not in (fidelities := list(dict.fromkeys(each for each, _ in served))):
            raise UnsupportedError(
                f"fidelity: this environment does not serve {fidelity}, but {' and '.join(fidelities)}."
            )
        if (fidelity, objective) not in served:
            raise UnsupportedError(
                f"objective: this environment does not serve {objective}, "
                f"but {' and '.join(other for each, other in served if each == fidelity)}."
            )
        return served[fidelity, objective]

    def _most_plans(self, graph: Graph) -> int:
        return max(1, min(self._max_batch_plans, _MAX_BATCH_OPS // graph.num_ops))


class EvaluationSession:
    """A graph on a target in an environment, which gets only plans that keep every static rule.

    Raises:
      EnvironmentFailedError: the environment cannot be opened, or fails on the greedy plan.
    """

    def __init__(
        self, environment: Environment, sent: SentGraph, target: Target, objective: Objective
    ) -> None:
        self._objective = objective
        self.graph = graph = sent.graph
        self.plans_evaluated = 0
        self._target = target
        self._reader = PlanReader(sent, target.fingerprint, target.num_chips)
        self._rules = plan_rules(graph, target)
        self._lock = threading.Lock()
        on_target = instance(graph, target)
        self._tables = on_target.tables
        self._session = open_session(environment, graph, target)
        try:
            self.reference_s = greedy_objective_s(self, on_target)
        except BaseException:
            self.close()
            raise

    def answer(
        self, request: environment_pb2.EvaluateBatchRequest
    ) -> tuple[list[plan_pb2.Metrics], list[float]]:
        """Metrics and rewards of the plans of a request.

        Raises:
          PlanError: a plan is malformed, or belongs to another graph or target.
          EnvironmentFailedError: the environment failed or gave an invalid answer.
        """
        batch = self._reader.read(request)
        plain = np.flatnonzero(batch.is_plain)
        parts = [
            (plain, self.evaluate(batch.placement[plain], batch.order[plain], batch.fusion_group[plain]))
        ]
        reasons = {i: self._why_broken(request.batch_id, i, plan) for i, plan in batch.others.items()}
        kept = np.array([i for i, reason in reasons.items() if not reason], dtype=np.int64)
        if kept.size:
            parts.append((kept, self._session.evaluate_plans([batch.others[i] for i in kept.tolist()])))
        found = self._joined(len(batch.is_plain), parts)
        rewards = reward(found.objective_s, found.valid, self.reference_s)
        metrics = list(map(self._metrics, found.objective_s.tolist(), cast(FloatArray, found.chip_s)))
        for i in np.flatnonzero(~found.valid).tolist():
            metrics[i].reason = reasons.get(i) or self._reason(batch, i)
        with self._lock:
            self.plans_evaluated += len(metrics)
        return metrics, rewards.tolist()

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        """Evaluates plans; plans that break a rule are invalid and never reach the environment."""
        plans, parts = (placement, order, fusion_group), []
        if len(placement) and (kept := np.flatnonzero(self._rules.are_kept(*plans))).size:
            parts.append((kept, self._session.evaluate(*(array[kept] for array in plans))))
        return self._joined(len(placement), parts)

    def close(self) -> None:
        """Close the session in the environment; only logs a failure, because nobody waits for it."""
        try:
            self._session.close()
        except GoOptError as error:
            _log.warning("%s", error)

    def _joined(self, num_plans: int, parts: Sequence[tuple[LongArray, Evaluations]]) -> Evaluations:
        """The answers for some plans each, as one; plans in none are invalid."""
        reached_s, valid = np.full(num_plans, np.inf), np.zeros(num_plans, dtype=np.bool_)
        chip_s = np.full((num_plans, self._target.num_chips), np.nan)
        for plans, answer in parts:
            reached_s[plans], valid[plans] = answer.objective_s, answer.valid
            if answer.chip_s is not None:
                chip_s[plans] = answer.chip_s
        return Evaluations(reached_s, valid, chip_s)

    def _metrics(self, reached_s: float, chip_s: FloatArray) -> plan_pb2.Metrics:
        if reached_s == math.inf:
            return plan_pb2.Metrics(interval_s=reached_s, latency_s=reached_s, makespan_s=reached_s)
        seen_s: Sequence[float] = () if np.isnan(chip_s).any() else chip_s.tolist()
        if self._objective == "latency":
            return plan_pb2.Metrics(makespan_s=reached_s, valid=True, compute_s=seen_s)
        per_s = 1.0 / reached_s
        return plan_pb2.Metrics(interval_s=reached_s, throughput_per_s=per_s, valid=True, compute_s=seen_s)

    def _why_broken(self, batch: int, i: int, plan: Plan) -> str:
        """Why a plan with replicated stages or relays cannot be evaluated; empty if it can.

        Raises:
          PlanError: the plan has relays of unknown tensors.
        """
        violations = verify(planned_graph(self.graph, plan), self._target, plan)
        if any(violation.constraint == "shape" for violation in violations):
            raise PlanError(f"batch {batch}: plan {i}: {violations[0].message}", field=f"plans[{i}]")
        static = [violation.message for violation in violations if violation.constraint != "memory"]
        if static:
            return static[0]
        return "" if self._session.takes_plans else _NO_STAGES

    def _reason(self, batch: PlanBatch, i: int) -> str:
        """Why a plan is invalid: the first broken rule, or a chip without enough memory."""
        if i in batch.others:
            plan = batch.others[i]
            on_graph = planned_graph(self.graph, plan)
            return evaluate_plan(on_graph, self._target, plan).reason or _NOT_RUN
        placement, order, group = batch.placement[i], batch.order[i], batch.fusion_group[i]
        if self._rules.are_kept(placement[None], order[None], group[None]):
            # The common case, and far faster than the verifier.
            terms = evaluate_batch(self._tables, placement[None], order[None], group[None])
            return out_of_memory_reason(self._tables, terms) or _NOT_RUN
        plan = Candidate("session", placement, order, group).plan(self.graph, self._target)
        return verify(self.graph, self._target, plan)[0].message


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
            **{name: self.sent.stored_rows(name, arrays[name]) for name in DECIDED},
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
