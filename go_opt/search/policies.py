"""Which policy takes part in a search, and asking it without the search having to wait."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Final

from go_opt.agents.decoding.proposals import Advice, advice
from go_opt.agents.policy.policy_file import LoadedPolicy, load_policy
from go_opt.env import Target
from go_opt.errors import PolicyError
from go_opt.model.graph import Graph
from go_opt.result import ONLY

SHIPPED: Final = "policy.safetensors"
_log = logging.getLogger(__name__)


def find_policy(policy: str | Path | None) -> Path | None:
    """The file of a policy: ``"default"`` and ``"only"`` are the shipped one, ``"none"`` or None is none.

    Raises:
      PolicyError: a file of your own is missing, malformed or of another version.
    """
    if policy is None or policy == "none":
        return None
    if policy in ("default", ONLY):
        return _shipped_policy()
    path = Path(policy).absolute()
    _loaded(path)
    return path


def ask_policy(policy: Path, graph: Graph, target: Target) -> Future[Advice | None]:
    """What a policy says of a graph, once it is known; None, and a warning, where it cannot be run.

    Asked in a thread: nobody has to wait for it, not even the end of this process. The
    future raises PolicyError where the file is at fault.
    """
    future: Future[Advice | None] = Future()
    thread = threading.Thread(
        target=_ask, args=(future, policy, graph, target), name="go-opt policy", daemon=True
    )
    thread.start()
    return future


def _ask(future: Future[Advice | None], policy: Path, graph: Graph, target: Target) -> None:
    try:
        future.set_result(advice(_loaded(policy), graph, target))
    except PolicyError as error:  # for the search to raise: a thread has nobody to tell
        future.set_exception(error)
    except Exception as error:
        _log.warning("the search goes on without the policy: %s: %s", type(error).__name__, error)
        future.set_result(None)


@cache
def _shipped_policy() -> Path | None:
    """None in a checkout before one was trained."""
    path = Path(str(resources.files("go_opt.agents") / "data" / SHIPPED))
    return path if path.is_file() else None


def _loaded(path: Path) -> LoadedPolicy:
    """The policy of a file; one that was read before is not read again while it stays as it is."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # the loader says what is wrong with it
        return load_policy(path)
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _load(path: Path, modified_ns: int, size_bytes: int) -> LoadedPolicy:
    return load_policy(path)
