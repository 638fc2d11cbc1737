"""Finds the policy of a search, and runs it in a background thread."""

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
    """The file of a policy: ``"default"`` and ``"only"`` name the shipped one, ``"none"`` and None no policy.

    Raises:
      PolicyError: the user's file is missing, malformed or of another version.
    """
    if policy is None or policy == "none":
        return None
    if policy in ("default", ONLY):
        return _shipped_policy()
    path = Path(policy).absolute()
    _loaded(path)
    return path


def shipped_policy() -> LoadedPolicy:
    """The policy that is a part of go-opt.

    Raises:
      PolicyError: this version has none.
    """
    path = _shipped_policy()
    if path is None:
        raise PolicyError("no policy is shipped with this version; give a file, or none.", field="policy")
    return _loaded(path)


def ask_policy(policy: Path, graph: Graph, target: Target) -> Future[Advice | None]:
    """The advice of a policy on a graph, as a future; None, with a warning, if the policy cannot run.

    The policy runs in a daemon thread, so the process need not wait for it to exit. The
    future raises PolicyError if the file is at fault.
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
    except PolicyError as error:  # raised in the search, not in this thread
        future.set_exception(error)
    except Exception as error:
        _log.warning("the search goes on without the policy: %s: %s", type(error).__name__, error)
        future.set_result(None)


@cache
def _shipped_policy() -> Path | None:
    """The file of the shipped policy; None if this checkout has none."""
    path = Path(str(resources.files("go_opt.agents") / "data" / SHIPPED))
    return path if path.is_file() else None


def _loaded(path: Path) -> LoadedPolicy:
    """The policy of a file, read again only if the file has changed."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # the loader raises an error that names the reason
        return load_policy(path)
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _load(path: Path, modified_ns: int, size_bytes: int) -> LoadedPolicy:
    return load_policy(path)
