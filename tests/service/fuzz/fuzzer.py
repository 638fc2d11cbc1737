"""Throws requests at a service and looks at what becomes of them, and of the service."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.longrunning import operations_pb2
from google.protobuf.message import Message
from hypothesis import strategies as st

from go_opt.proto import environment_pb2
from tests.service.fuzz.examples import Examples
from tests.service.fuzz.messages import Draw, messages, mutations, spoiled, wire
from tests.service.fuzz.methods import METHODS, Method
from tests.service.fuzz.oracle import Outcome, call, fault
from tests.service.fuzz.process import FuzzedProcess

_OPTIONS: Final = (("grpc.max_receive_message_length", 2**28), ("grpc.max_send_message_length", 2**28))
_SEARCH_S: Final = (0.02, 0.3, 1.0)  # of which a search makes the most
_WATCH_S: Final = 0.05
_CALL_S: Final = 30.0  # no other call may take so long
_MOST_MESSAGES: Final = 3  # of a stream
_LOG_CHARACTERS: Final = 4000
_ENDS: Final = {  # of an example, where it is not OK
    "CloseSession": "NOT_FOUND",
    "CancelOperation": "NOT_FOUND",
    "DeleteOperation": "NOT_FOUND",
    "List": "UNIMPLEMENTED",
}
_OPERATIONS: Final = "google.longrunning.Operations"


@dataclass(frozen=True)
class Case:
    """One call."""

    method: Method
    requests: tuple[bytes, ...]
    timeout_s: float

    def __repr__(self) -> str:
        sent = [data if len(data) <= 2000 else data[:2000] + b"..." for data in self.requests]
        return f"Case({self.method.path}, {self.timeout_s} s, {sent})"


class FuzzError(AssertionError):
    """The service did what it must not; the message says what, and the case why."""


class Fuzzer:
    """Fuzzes one service; counts what became of its calls."""

    def __init__(self, service: FuzzedProcess) -> None:
        self._service = service
        self.channel = grpc.insecure_channel(service.address, options=_OPTIONS)
        self.examples = Examples(self.channel)
        self.counts: Counter[tuple[str, str]] = Counter()

    def close(self) -> None:
        self.channel.close()

    def cases(self, name: str) -> st.SearchStrategy[Case]:
        """Calls of a method: of any values, of nearly right ones, and of bytes that are no message."""
        method, examples = METHODS[name], self.examples.of_method[name]

        @st.composite
        def made(draw: Draw) -> Case:
            count = draw(st.sampled_from((1, 1, 1, 2, _MOST_MESSAGES, 0))) if method.takes_stream else 1
            requests = tuple(_request(draw, method, examples) for _ in range(count))
            timeout_s = _CALL_S
            if method.is_search:
                timeout_s = draw(st.sampled_from(_SEARCH_S))
            elif method.is_watch:
                timeout_s = _WATCH_S
            return Case(method, requests, timeout_s)

        return made()

    def run(self, case: Case) -> Outcome:
        """Make the call; raises FuzzError where the service did what it must not."""
        outcome = call(self.channel, case.method, case.requests, case.timeout_s)
        self.counts[case.method.path, outcome.code] += 1
        if self._service.process.poll() is not None:
            raise FuzzError(f"the service died of {case!r}")
        problem = fault(case.method, case.requests, outcome, case.timeout_s) or self._service.was_reached()
        if problem:
            raise FuzzError(f"{case.method.path} {problem}\n{case!r}")
        if outcome.code == "OK":
            self._forget(case.method, outcome)
        return outcome

    def check_is_well(self) -> None:
        """Raise FuzzError where the service does not answer valid requests of every method any more."""
        for name, examples in self.examples.of_method.items():
            method = METHODS[name]
            wanted = "DEADLINE_EXCEEDED" if method.is_watch else _ENDS.get(method.name, "OK")
            timeout_s = 1.0 if method.is_watch else _CALL_S
            outcome = call(self.channel, method, [examples[0].SerializeToString()], timeout_s)
            if outcome.code != wanted:
                raise FuzzError(f"after all, {name} ended with {outcome.code}: {outcome.text}")
            if outcome.code == "OK":
                self._forget(method, outcome)
        name = self.examples.jobs[-1]
        request = operations_pb2.GetOperationRequest(name=name)
        if operations_pb2.Operation.FromString(
            self.examples.ask(f"{_OPERATIONS}/GetOperation", request)
        ).done:
            raise FuzzError(f"{name}, which waits, has ended")

    def _forget(self, method: Method, outcome: Outcome) -> None:
        """Close the session, or cancel and delete the job, that the call has made."""
        reply = outcome.replies[0] if outcome.replies else b""
        if method.name == "CreateSession":
            session_id = environment_pb2.CreateSessionResponse.FromString(reply).session_id
            close = environment_pb2.CloseSessionRequest(session_id=session_id)
            self._ask("go_opt.v1.Environment/CloseSession", close)
        elif method.name in ("Pretrain", "Finetune"):
            name = operations_pb2.Operation.FromString(reply).name
            if name not in self.examples.jobs:
                cancel = operations_pb2.CancelOperationRequest(name=name)
                self._ask(f"{_OPERATIONS}/CancelOperation", cancel)
                delete = operations_pb2.DeleteOperationRequest(name=name)
                self._ask(f"{_OPERATIONS}/DeleteOperation", delete)

    def _ask(self, name: str, request: Any) -> None:
        outcome = call(self.channel, METHODS[name], [request.SerializeToString()], _CALL_S)
        if outcome.code != "OK":
            raise FuzzError(
                f"{name} of what was just made ended with {outcome.code}: {outcome.text}\n{self._log()}"
            )

    def _log(self) -> str:
        """The end of what the service has printed."""
        return self._service.log.read_text("utf-8", errors="replace")[-_LOG_CHARACTERS:]


def _request(draw: Draw, method: Method, examples: tuple[Message, ...]) -> bytes:
    example = draw(st.sampled_from(examples))
    how = draw(st.sampled_from(("mutated", "mutated", "mutated", "any", "spoiled")))
    if how == "spoiled":
        return draw(spoiled(example.SerializeToString()))
    return wire(draw(messages(method.request) if how == "any" else mutations(example)))
