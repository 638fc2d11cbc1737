"""Answers given before, up to a number of bytes, and the keys that they are kept under."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, Protocol

from go_opt.constraint_file import constraints_to_toml
from go_opt.env import Target
from go_opt.errors import PolicyError
from go_opt.model.start import Start
from go_opt.result import Request
from go_opt.service.messages.convert_request import start_to_proto
from go_opt.service.messages.sent_graph import SentGraph

DEFAULT_MAX_BYTES: Final = 64 * 2**20
Policy = Literal["default", "only"] | Path | None  # what takes part in a search


class Answers(Protocol):
    """Where answers are kept."""

    def get(self, key: str) -> bytes | None:
        """The answer kept under the key, if there is one."""

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer, for as long as there is room."""


class AnswerCache:
    """Keeps the answers asked for last, up to a number of bytes; for several threads."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self.hits = 0

    @property
    def size_bytes(self) -> int:
        """Of the answers kept."""
        return self._bytes

    def get(self, key: str) -> bytes | None:
        """The answer kept under the key, if there is one."""
        with self._lock:
            if key in self._answers:
                self.hits += 1
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer, and drop those not asked for longest where there is no room."""
        if len(answer) > self._max_bytes:
            return
        with self._lock:
            self._bytes += len(answer) - len(self._answers.pop(key, b""))
            self._answers[key] = answer
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._answers.popitem(last=False)[1])


def answer_key(
    sent: SentGraph, target: Target, request: Request, policy: Policy, fewest: str | None = None
) -> str:
    """A digest of all that decides an answer: what it is searched in, how, by whom, and in which order.

    Args:
      fewest: what is asked of the fewest chips, where they are.

    Raises:
      PolicyError: the policy's file cannot be read.
    """
    graph = sent.graph
    decides = {
        # Names that the plan carries and fingerprints leave out.
        "dims": sorted(graph.dims.items()),
        "source": target.source,
        "graph": graph.fingerprint,
        "sent": sent.digest,
        "target": target.fingerprint,
        "policy": ("only " if policy == "only" else "") + _policy_digest(policy),
        **request.options,
        # Their fields alone would not tell kinds apart.
        "constraints": constraints_to_toml(request.constraints),
        "start": None if request.start is None else _start_digest(request.start),
        "fewest chips": fewest,
        "budget_s": request.time_limit_s,  # the default, written out or not
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _start_digest(start: Start) -> str:
    return hashlib.sha256(start_to_proto(start).SerializeToString(deterministic=True)).hexdigest()


def _policy_digest(policy: Policy) -> str:
    from go_opt.search.policies import find_policy  # the search loads with the first call

    path = policy if isinstance(policy, Path) else find_policy(policy)
    if path is None:
        return "none"
    try:
        status = path.stat()
        return _file_digest(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise PolicyError(f"the policy cannot be read: {error.strerror or error}.", field="policy") from None


@lru_cache(maxsize=64)
def _file_digest(path: Path, modified_ns: int, size_bytes: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
