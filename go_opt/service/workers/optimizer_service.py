"""Serves ``go_opt.v1.Optimizer``: plans for graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from go_opt.env import load_target, target_names
from go_opt.errors import NotFoundError, PolicyError
from go_opt.proto import optimizer_pb2
from go_opt.service.calls.calls import Call, Method, Send, Service, ServiceMetric
from go_opt.service.messages.convert import target_summary
from go_opt.service.messages.graphs import SizedCache
from go_opt.service.messages.requests import parsed, split_graph
from go_opt.service.workers.optimizer import Improve, Optimizer, PlanQuery, Policy, SearchControl

SERVICE_NAME: Final = optimizer_pb2.DESCRIPTOR.services_by_name["Optimizer"].full_name
_NAMED: Final[Mapping[str, Policy]] = {"": None, "none": None, "default": "default", "only": "only"}
_MAX_CACHE_BYTES: Final = 64 * 2**20


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

    name = SERVICE_NAME

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
