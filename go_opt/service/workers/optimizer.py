"""Answers requests for plans: :class:`OptimizerService` serves them as ``go_opt.v1.Optimizer``.

:class:`LocalOptimizer` uses the calling threads;
:class:`go_opt.service.workers.process_optimizer.ProcessOptimizer` does the same in worker processes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from google.protobuf.message import Message

from go_opt import api
from go_opt.api.chips import fewest_chips, required_interval_s
from go_opt.api.plan_store import PlanStore
from go_opt.env import Target, load_target, target_names
from go_opt.errors import CancelledError, ExhaustedError, InvalidInputError, NotFoundError, PolicyError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.parallel.wire.steps import answer_about, answer_search
from go_opt.proto import optimizer_pb2, plan_pb2
from go_opt.result import DEFAULT_BUDGET_S, OptimizeResult, Request
from go_opt.result_json import explanation_to_dict
from go_opt.service.calls.calls import Call, Method, Send, Service, ServiceMetric, Stop
from go_opt.service.messages.convert import (
    chosen,
    constraints_from_proto,
    fewest_chips_to_proto,
    fidelity_of,
    message_of,
    request_from_proto,
    result_to_proto,
    target_from_proto,
    target_summary,
)
from go_opt.service.messages.graphs import DecodedGraphs, SentGraph, SizedCache
from go_opt.service.messages.requests import parsed, request_part, split_graph
from go_opt.solver.problem.user_constraints import UserConstraint

_log = logging.getLogger(__name__)
# Time reserved for sending the answer: a tenth of the time left, but at most this …
_MOST_RESERVE_S: Final = 0.2
# … plus the time to encode, send and decode large graphs.
_RESERVE_S_PER_BYTE: Final = 2e-8
# For larger requests, simulating a plan may take seconds, so it is skipped under a deadline.
_MOST_SIMULATED_BYTES: Final = 1_000_000
# The import of an ONNX file is part of the budget; this share of it is left for the search.
_LEAST_SEARCH_SHARE: Final = 0.1

Policy = Literal["default", "only"] | Path | None  # the policy of a search
PlanQuery = Literal["evaluate", "verify", "explain"]  # the kinds of request about a plan
_Planned = Callable[[], tuple[Graph, Target, Plan]]
_Constraints = tuple[UserConstraint, ...]
Improve = Callable[[optimizer_pb2.OptimizeResponse], None]
_NAMED: Final[Mapping[str, Policy]] = {"": None, "none": None, "default": "default", "only": "only"}
_MAX_CACHE_BYTES: Final = 64 * 2**20


class Answer(NamedTuple):
    """The answer to a search."""

    response: optimizer_pb2.OptimizeResponse
    is_whole: bool  # not stopped or cut short by a deadline, so it may be cached


@dataclass(frozen=True)
class SearchControl:
    """What a search gets besides its request.

    Args:
      policy: the policy of the search, which replaces the name in the request.
      stop: once set, the best plan so far is the answer, if there is one.
      deadline_s: on the monotonic clock; the caller must have the answer by then.
      on_improvement: called with every better answer as it is found.
      remember: the folder with the caller's plans; None: none are kept.
    """

    policy: Policy = None
    stop: Stop = field(default_factory=Stop)
    deadline_s: float | None = None
    on_improvement: Improve | None = None
    remember: Path | None = None


class Optimizer(ABC):
    """Answers the requests of ``go_opt.v1.Optimizer``; thread-safe."""

    @abstractmethod
    def optimize(self, request: bytes, control: SearchControl) -> Answer:
        """The answer to an ``OptimizeRequest``."""

    @abstractmethod
    def inspect(self, query: PlanQuery, request: bytes, *, stop: Stop) -> Message:
        """The answer to a request about a plan; ``stop`` is set once nobody waits for it."""

    def is_ready(self) -> bool:
        """Whether calls are answered without loading anything first."""
        return True

    def metrics(self) -> Sequence[ServiceMetric]:
        """The metrics of the optimizer."""
        return ()

    def close(self) -> None:  # noqa: B027
        """Free all resources."""


class LocalOptimizer(Optimizer):
    """Searches in the calling threads.

    Args:
      api: has the functions of :mod:`go_opt.api`, the default.
    """

    def __init__(self, api: Any = api) -> None:
        self._api = api
        self._graphs = DecodedGraphs()

    def optimize(self, request: bytes, control: SearchControl) -> Answer:
        begin_s = time.monotonic()
        # The search's own clock stands still while kernels compile.
        ends_s = _ends_s(control.deadline_s, len(request))
        message, graph_bytes = split_graph(optimizer_pb2.OptimizeRequest, request)
        if message.HasField("step"):
            _refuse_graph(graph_bytes)
            within = _within(request_from_proto(message), control.deadline_s, len(request), 1)
            target = target_from_proto(message.target)
            return Answer(*answer_search(message, target, within.time_limit_s, control.stop.is_set))
        if message.HasField("ranges"):
            from go_opt.serving.mixed import wire as ranges  # numba loads with it

            _refuse_graph(graph_bytes, "ranges")
            within = _within(request_from_proto(message), control.deadline_s, len(request), 1)
            return Answer(*ranges.answer_search(message, within.time_limit_s, control.stop.is_set))
        requested = request_from_proto(message)
        target = target_from_proto(message.target)
        import_ends_s = min(ends_s, begin_s + max(requested.time_limit_s, DEFAULT_BUDGET_S))
        sent = self._graph(message, graph_bytes, partial(_check_import, control.stop, import_ends_s))
        requested = replace(requested, policy=control.policy, start=sent.stored_start(requested.start))
        if message.HasField("onnx"):
            requested = _without_import(requested, time.monotonic() - begin_s)
        is_sized = message.HasField("fewest_chips")

        def improve(result: OptimizeResult) -> None:
            if control.on_improvement is not None:
                control.on_improvement(result_to_proto(result, sent))

        def should_stop() -> bool:
            return control.stop.is_set() or time.monotonic() >= ends_s

        # The bisection searches all chips, and then at most one number for each power of two.
        searches = 1 + target.num_chips.bit_length() if is_sized else 1
        within = _within(requested, control.deadline_s, len(request), searches)
        if is_sized:
            response = _fewest_chips(message.fewest_chips, sent, target, within, should_stop)
            return Answer(response, not (control.stop.is_set() or within != requested))
        result = self._api.optimize(
            sent.graph,
            target,
            remember=_store(control.remember),
            on_improvement=improve,
            should_stop=should_stop,
            **vars(within),
        )
        is_cut_short = within != requested and result.wall_s >= within.time_limit_s
        return Answer(result_to_proto(result, sent), not (control.stop.is_set() or is_cut_short))

    def inspect(self, query: PlanQuery, request: bytes, *, stop: Stop) -> Message:
        kind, answer = {
            "evaluate": (optimizer_pb2.EvaluateRequest, self._evaluate),
            "verify": (optimizer_pb2.VerifyRequest, self._verify),
            "explain": (optimizer_pb2.ExplainRequest, self._explain),
        }[query]
        message: Any
        message, graph_bytes = split_graph(kind, request)
        if message.HasField("step"):
            _refuse_graph(graph_bytes)
            return answer_about(query, message, target_from_proto(message.target))
        constraints = constraints_from_proto(message.constraints)
        return answer(message, partial(self._planned, message, graph_bytes), constraints)

    def _evaluate(self, message: Any, planned: _Planned, constraints: _Constraints) -> Message:
        fidelity = fidelity_of(message)
        seed = message.seed if message.HasField("seed") else None
        metrics = self._api.evaluate(*planned(), fidelity=fidelity, seed=seed, constraints=constraints)
        return optimizer_pb2.EvaluateResponse(metrics=message_of(metrics, plan_pb2.Metrics))

    def _verify(self, message: Any, planned: _Planned, constraints: _Constraints) -> Message:
        found = self._api.verify(*planned(), constraints=constraints)
        return optimizer_pb2.VerifyResponse(
            violations=[optimizer_pb2.Violation(**vars(violation)) for violation in found]
        )

    def _explain(self, message: Any, planned: _Planned, constraints: _Constraints) -> Message:
        objective = chosen(message, "objective")
        found = self._api.explain(
            *planned(), message.op or None, objective=objective, constraints=constraints
        )
        response = optimizer_pb2.ExplainResponse()
        response.explanation.update(explanation_to_dict(found))
        return response

    def _planned(self, message: Any, graph_bytes: bytes) -> tuple[Graph, Target, Plan]:
        """The graph, target and plan of a request about a plan."""
        target = target_from_proto(message.target)
        sent = self._graphs.get(graph_bytes)
        with request_part("plan", plan_pb2.Plan):
            plan = sent.plan_from_proto(message.plan, target.fingerprint)
            return sent.of_plan(plan).graph, target, plan

    def _graph(
        self, message: optimizer_pb2.OptimizeRequest, graph_bytes: bytes, checkpoint: Callable[[], None]
    ) -> SentGraph:
        if not message.HasField("onnx"):
            return self._graphs.get(graph_bytes)
        if graph_bytes:
            raise InvalidInputError("a request has a graph or an ONNX file, not both.", field="onnx")
        return self._graphs.of_onnx(message.onnx, checkpoint)


def no_policies(name: str, owner: str) -> Path:
    """Raises NotFoundError; for a service without training."""
    raise NotFoundError(f"no policy has the name {name[:80]!r}.", field="policy")


class OptimizerService(Service):
    """Serves an :class:`Optimizer`.

    Args:
      find_policy: maps a policy name and an owner to a file; raises NotFoundError. A name in a
        request is only looked up here, and never used as a path.
      plans: the folder in which the plans of each caller are kept, apart from those of others.
    """

    name = optimizer_pb2.DESCRIPTOR.services_by_name["Optimizer"].full_name

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        find_policy: Callable[[str, str], Path] = no_policies,
        plans: Path | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._plans = plans
        self._find_policy = find_policy
        self._answers: SizedCache[bytes] = SizedCache(_MAX_CACHE_BYTES)

    def methods(self) -> Mapping[str, Method]:
        return {
            "Optimize": Method("search", self._optimize),
            "OptimizeStream": Method("updates", self._optimize_stream),
            "Evaluate": Method("search", partial(self._inspect, "evaluate")),
            "Verify": Method("search", partial(self._inspect, "verify")),
            "Explain": Method("search", partial(self._inspect, "explain")),
            "ListTargets": Method("quick", self._list_targets),
        }

    def is_ready(self) -> bool:
        """Whether calls are answered without loading anything first."""
        return self._optimizer.is_ready()

    def metrics(self) -> Sequence[ServiceMetric]:
        """The metrics of the optimizer and of the answer cache."""
        answers = self._answers
        return (
            ServiceMetric("optimizer_cached_answers", "Answers given again.", lambda: answers.hits, True),
            ServiceMetric("optimizer_cache_bytes", "Size of the answers kept.", lambda: answers.size_bytes),
            *self._optimizer.metrics(),
        )

    def close(self) -> None:
        """Close the optimizer."""
        self._optimizer.close()

    def _optimize(self, data: bytes, call: Call, on_improvement: Improve | None = None) -> Message:
        with self._policy(data, call.owner) as policy:
            remember = None if self._plans is None else self._plans / _digest(call.owner)
            # The file of a trained policy never changes, so its path can be part of the key.
            key = hashlib.sha256(f"{policy}\0{remember}\0".encode() + data).digest()
            known = self._answers.get(key)
            if known is not None:
                response = optimizer_pb2.OptimizeResponse(is_cached=True)
                response.MergeFromString(known)
                return response
            control = SearchControl(policy, call.stop, call.deadline_s, on_improvement, remember)
            response, is_whole = self._optimizer.optimize(data, control)
        if is_whole:
            kept = response.SerializeToString()
            self._answers.put(key, kept, len(kept))
        return response

    def _optimize_stream(self, data: bytes, call: Call, send: Send) -> Message:
        def improve(response: optimizer_pb2.OptimizeResponse) -> None:
            response.ClearField("history")
            send(optimizer_pb2.OptimizeUpdate(improvement=response))

        return optimizer_pb2.OptimizeUpdate(result=self._optimize(data, call, improve))

    def _inspect(self, query: PlanQuery, data: bytes, call: Call) -> Message:
        return self._optimizer.inspect(query, data, stop=call.stop)

    def _list_targets(self, data: bytes, call: Call) -> Message:
        parsed(optimizer_pb2.ListTargetsRequest, data)
        targets = [target_summary(load_target(name)) for name in target_names()]
        return optimizer_pb2.ListTargetsResponse(targets=targets)

    @contextmanager
    def _policy(self, data: bytes, owner: str) -> Iterator[Policy]:
        """The policy of a request; errors in its file name the policy instead of the path."""
        name = split_graph(optimizer_pb2.OptimizeRequest, data)[0].policy
        if name in _NAMED:
            yield _NAMED[name]
            return
        path = self._find_policy(name, owner)
        try:
            yield path
        except PolicyError as error:
            raise PolicyError(str(error).replace(repr(str(path)), repr(name)), field="policy") from None


def _digest(owner: str) -> str:
    """A folder's name for any name of a caller."""
    return hashlib.sha256(owner.encode()).hexdigest()


def _refuse_graph(graph_bytes: bytes, field: str = "step") -> None:
    if graph_bytes:
        what = {"step": "a training step", "ranges": "ranges of layers"}[field]
        raise InvalidInputError(f"a request has a graph or {what}, not both.", field=field)


def reserve_s(left_s: float, request_bytes: int) -> float:
    """Seconds before the deadline at which a search must end, so that its answer arrives in time."""
    return min(0.1 * left_s, _MOST_RESERVE_S) + _RESERVE_S_PER_BYTE * request_bytes


def _store(folder: Path | None) -> PlanStore | None:
    """The caller's plans; a folder that cannot be used costs the search its start, not the answer."""
    try:
        return None if folder is None else PlanStore(folder)
    except InvalidInputError as error:
        _log.warning("no plans are remembered: %s", error)
        return None


def _check_import(stop: Stop, ends_s: float) -> None:
    """End the import of a file for which nobody waits, or for which there is no more time."""
    if stop.is_set():
        raise CancelledError("the call was cancelled.")
    if time.monotonic() >= ends_s:
        message = "the import of the ONNX file takes longer than the budget or the deadline of the call."
        raise ExhaustedError(message, retry_s=None)


def _without_import(request: Request, import_s: float) -> Request:
    """The request with the budget that the import has left."""
    if math.isinf(request.time_limit_s):
        return request
    left_s = max(request.time_limit_s - import_s, _LEAST_SEARCH_SHARE * request.time_limit_s)
    return replace(request, budget_s=left_s)


def _fewest_chips(
    message: optimizer_pb2.FewestChips,
    sent: SentGraph,
    target: Target,
    request: Request,
    should_stop: Callable[[], bool],
) -> optimizer_pb2.OptimizeResponse:
    rate_per_s = message.rate_per_s if message.HasField("rate_per_s") else None
    with request_part("fewest_chips", optimizer_pb2.FewestChips):
        required_interval_s(request, rate_per_s)
    found = fewest_chips(sent.graph, target, request, rate_per_s=rate_per_s, should_stop=should_stop)
    return fewest_chips_to_proto(found, sent)


def _ends_s(deadline_s: float | None, request_bytes: int) -> float:
    """When a search must end that has used up more time than its budget."""
    if deadline_s is None:
        return math.inf
    return deadline_s - reserve_s(deadline_s - time.monotonic(), request_bytes) / 2


def _within(request: Request, deadline_s: float | None, request_bytes: int, searches: int) -> Request:
    """The request with the budget that the deadline allows for each of ``searches`` searches."""
    if deadline_s is None:
        return request
    if request_bytes > _MOST_SIMULATED_BYTES:
        request = replace(request, simulate=False)
    left_s = deadline_s - time.monotonic()
    search_s = max(left_s - reserve_s(left_s, request_bytes), 1e-3) / searches
    return request if search_s >= request.time_limit_s else replace(request, budget_s=search_s)
