"""The key of an answer: a digest of everything that decides it."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from go_opt.constraint_file import constraints_to_toml
from go_opt.env import Target
from go_opt.errors import PolicyError
from go_opt.model.start import Start
from go_opt.result import Request
from go_opt.search.policies import find_policy
from go_opt.service.messages.convert_start import start_to_proto
from go_opt.service.messages.sent_graph import SentGraph
from go_opt.service.workers.optimizer import Policy


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
