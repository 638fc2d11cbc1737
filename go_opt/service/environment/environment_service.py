"""Serves any environment as ``go_opt.v1.Environment``: sessions that evaluate batches of plans."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, get_args

import numpy as np
from google.protobuf.message import Message

from go_opt.agents.training.problems.environment import (
    Environment,
    Evaluations,
    LocalEnvironment,
    greedy_objective_s,
    open_session,
)
from go_opt.common.arrays import FloatArray
from go_opt.env import Target, evaluate_batch, evaluate_plan
from go_opt.env.evaluation import Plans, out_of_memory_reason
from go_opt.env.model.metrics import Fidelity, Objective
from go_opt.env.reward import reward
from go_opt.errors import CancelledError, ExhaustedError, GoOptError, PlanError, UnsupportedError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.proto import environment_pb2, graph_pb2, plan_pb2
from go_opt.service.calls.calls import Call, Method, Service, ServiceMetric
from go_opt.service.environment.sessions import SessionLimits, Sessions
from go_opt.service.messages.convert import target_from_proto
from go_opt.service.messages.convert_environment import (
    SERVED_FIDELITIES,
    PlanBatch,
    PlanReader,
    ServedFidelity,
)
from go_opt.service.messages.convert_request import named, objective_from_proto
from go_opt.service.messages.requests import parsed, request_part
from go_opt.service.messages.sent_graph import SentGraph
from go_opt.solver.orders.instance import instance
from go_opt.solver.verify.plan_rules import plan_rules
from go_opt.solver.verify.verifier import verify

SERVICE_NAME: Final = environment_pb2.DESCRIPTOR.services_by_name["Environment"].full_name
MAX_BATCH_PLANS: Final = 1024
_MAX_BATCH_OPS: Final = 4_000_000  # of all plans of a batch; takes the cost model some seconds
_NOT_RUN: Final = "the environment could not run the plan."
_NO_STAGES: Final = "the environment evaluates no replicated stages and relays."
_log = logging.getLogger(__name__)


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
        """The metrics of the service."""
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
        """Close all sessions."""
        self.sessions.close()

    def _create_session(self, data: bytes, call: Call) -> Message:
        request = parsed(environment_pb2.CreateSessionRequest, data)
        fidelity = named("fidelity", SERVED_FIDELITIES, request.fidelity)
        served = fidelity, objective_from_proto(request.objective)
        environment, is_latency = self._environment(*served), served[1] == "latency"
        target = target_from_proto(request.target)
        with request_part("graph", graph_pb2.Graph):
            sent = SentGraph.from_proto(request.graph)
        # A short target file may have large routes.
        held_bytes = len(data) + sum(table.nbytes for table in target.topology.routes)
        session_id, session = self.sessions.open(
            call.client, held_bytes, lambda: EvaluationSession(environment, sent, target, served[1])
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
            **{"reference_makespan_s" if is_latency else "reference_interval_s": session.reference_s},
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


def _rows(plans: Sequence[int], chip_s: FloatArray | None) -> dict[int, FloatArray]:
    """Seconds of chips by plan, for plans with measured chips."""
    if chip_s is None:
        return {}
    return {i: row for i, row in zip(plans, chip_s, strict=True) if not np.isnan(row).any()}


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
        reached_s, valid = np.full(len(batch.is_plain), np.inf), batch.is_plain.copy()
        chip_s: dict[int, FloatArray] = {}
        plain = np.flatnonzero(batch.is_plain)
        answer = self.evaluate(batch.placement[plain], batch.order[plain], batch.fusion_group[plain])
        reached_s[plain], valid[plain] = answer.objective_s, answer.valid
        chip_s |= _rows(plain.tolist(), answer.chip_s)
        reasons = {i: self._why_broken(request.batch_id, i, plan) for i, plan in batch.others.items()}
        kept = [i for i, reason in reasons.items() if not reason]
        if kept:
            answer = self._session.evaluate_plans([batch.others[i] for i in kept])
            reached_s[kept], valid[kept] = answer.objective_s, answer.valid
            chip_s |= _rows(kept, answer.chip_s)
        rewards = reward(reached_s, valid, self.reference_s)
        metrics = [self._metrics(seconds, chip_s.get(i, ())) for i, seconds in enumerate(reached_s.tolist())]
        for i in np.flatnonzero(~valid).tolist():
            metrics[i].reason = reasons.get(i) or self._reason(batch, i)
        with self._lock:
            self.plans_evaluated += len(metrics)
        return metrics, rewards.tolist()

    def evaluate(self, placement: Plans, order: Plans, fusion_group: Plans) -> Evaluations:
        """Evaluates plans; plans that break a rule are invalid and never reach the environment."""
        plans = (placement, order, fusion_group)
        valid = np.zeros(len(placement), dtype=np.bool_)
        reached_s, chip_s = np.full(len(placement), np.inf), None
        if len(placement):
            valid = self._rules.are_kept(*plans)
        if valid.any():
            kept = np.flatnonzero(valid)
            answer = self._session.evaluate(*(array[kept] for array in plans))
            reached_s[kept], valid[kept] = answer.objective_s, answer.valid
            if answer.chip_s is not None:
                chip_s = np.full((len(placement), answer.chip_s.shape[1]), np.nan)
                chip_s[kept] = answer.chip_s
        return Evaluations(reached_s, valid, chip_s)

    def close(self) -> None:
        """Close the session in the environment; only logs a failure, because nobody waits for it."""
        try:
            self._session.close()
        except GoOptError as error:
            _log.warning("%s", error)

    def _metrics(self, reached_s: float, chip_s: Sequence[float] | FloatArray) -> plan_pb2.Metrics:
        if reached_s == math.inf:
            return plan_pb2.Metrics(interval_s=reached_s, latency_s=reached_s, makespan_s=reached_s)
        if self._objective == "latency":
            return plan_pb2.Metrics(makespan_s=reached_s, valid=True, compute_s=chip_s)
        return plan_pb2.Metrics(
            interval_s=reached_s, throughput_per_s=1.0 / reached_s, valid=True, compute_s=chip_s
        )

    def _why_broken(self, batch: int, i: int, plan: Plan) -> str:
        """Why a plan with replicated stages or relays cannot be evaluated; empty if it can.

        Raises:
          PlanError: the plan has relays of unknown tensors.
        """
        violations = verify(self.graph, self._target, plan)
        if any(violation.constraint == "shape" for violation in violations):
            raise PlanError(f"batch {batch}: plan {i}: {violations[0].message}", field=f"plans[{i}]")
        static = [violation.message for violation in violations if violation.constraint != "memory"]
        if static:
            return static[0]
        return "" if self._session.takes_plans else _NO_STAGES

    def _reason(self, batch: PlanBatch, i: int) -> str:
        """Why a plan is invalid: the first broken rule, or a chip without enough memory."""
        if i in batch.others:
            return evaluate_plan(self.graph, self._target, batch.others[i]).reason or _NOT_RUN
        placement, order, group = batch.placement[i], batch.order[i], batch.fusion_group[i]
        if self._rules.are_kept(placement[None], order[None], group[None]):
            # The common case, and far faster than the verifier.
            terms = evaluate_batch(self._tables, placement[None], order[None], group[None])
            return out_of_memory_reason(self._tables, terms) or _NOT_RUN
        plan = Plan.of_rows(self.graph, self._target, placement, order, group, "session")
        return verify(self.graph, self._target, plan)[0].message
