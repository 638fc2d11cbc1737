"""Which policy takes part in a search, and asking it without the search having to wait.

The policy runs in a process of its own (:mod:`go_opt.agents.policy.policy_process`): loading JAX and
compiling take seconds, cannot be interrupted, and would hold up both the search and the end
of this process. One that is no longer waited for finishes what it compiles, for the
compilation cache, and ends with this process.
"""

from __future__ import annotations

import atexit
import copyreg
import io
import logging
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from go_opt.agents.decoding.proposals import Advice
from go_opt.common.process_memory import resident_bytes
from go_opt.env import Target
from go_opt.errors import PolicyError
from go_opt.model.graph import Graph

SHIPPED: Final = "policy.safetensors"
_MOST_BYTES: Final = 1 << 30  # of the process
_log = logging.getLogger(__name__)


def find_policy(policy: str | Path | None) -> Path | None:
    """The file of a policy: ``"default"`` is the shipped one, ``"none"`` or None is none.

    Raises:
      PolicyError: a file of your own is missing, malformed or of another version.
    """
    if policy is None or policy == "none":
        return None
    if policy == "default":
        return _shipped_policy()
    path = Path(policy).absolute()
    kind, answer = _process(os.getpid()).ask(_request(path, None))
    if kind != "advice":
        raise PolicyError(answer if kind == "refused" else f"policy {str(policy)!r} cannot be run: {answer}")
    return path


def expect_question() -> None:
    """Start the process, so that it has loaded JAX when it is asked."""
    _process(os.getpid()).start()


def ask_policy(policy: Path, graph: Graph, target: Target) -> Future[Advice | None]:
    """What a policy says of a graph, once it is known; None, and a warning, where it cannot be run.

    Asked in a thread; nobody has to wait for it, not even the end of this process. The
    future raises PolicyError where the file is at fault.
    """
    future: Future[Advice | None] = Future()
    # Pickled here: a graph fills its caches while others use it.
    request = _request(policy, (graph, target))
    thread = threading.Thread(target=_ask, args=(future, request), name="go-opt policy", daemon=True)
    thread.start()
    return future


def _ask(future: Future[Advice | None], request: bytes) -> None:
    try:
        kind, answer = _process(os.getpid()).ask(request)
        if kind == "refused":
            raise PolicyError(answer)
        if kind == "failed":
            _log.warning("the search goes on without the policy: %s", answer)
        future.set_result(answer if kind == "advice" else None)
    except BaseException as error:  # for the search to raise: a thread has nobody to tell
        future.set_exception(error)


@cache
def _shipped_policy() -> Path | None:
    """None in a checkout before one was trained."""
    path = Path(str(resources.files("go_opt.agents") / "data" / SHIPPED))
    return path if path.is_file() else None


class _Pickler(pickle.Pickler):
    """Takes a graph: its read-only mappings arrive as dictionaries."""

    dispatch_table = copyreg.dispatch_table | {MappingProxyType: lambda mapping: (dict, (dict(mapping),))}


def _request(policy: Path, question: tuple[Graph, Target] | None) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump((policy, question))
    return buffer.getvalue()


class _PolicyProcess:
    """The process, started when asked and there is none; one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None:
            with self._lock, suppress(OSError):  # told when it is asked
                self._process = self._process or _start()

    def ask(self, request: bytes) -> tuple[str, Any]:
        """As :func:`go_opt.agents.policy.policy_process.serve`."""
        with self._lock:
            try:
                answer = self._exchange(request)
                self._renew()
                return answer
            except (OSError, EOFError, pickle.UnpicklingError) as cause:
                self._end()
                return "failed", f"its process ended: {cause or 'no answer'}."
            except BaseException:  # an answer that nobody took must not be the next one's
                self._end()
                raise

    def _exchange(self, request: bytes) -> tuple[str, Any]:
        if self._process is None:
            self._process = _start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request)
        self._process.stdin.flush()
        kind, answer = pickle.load(self._process.stdout)
        return kind, answer

    def _renew(self) -> None:
        """Start anew once it is large: what it compiled for graphs of each size it keeps for good."""
        if self._process is not None and resident_bytes(self._process.pid) > _MOST_BYTES:
            self._end()
            with suppress(OSError):  # told when it is asked
                self._process = _start()

    def end_if_idle(self, pid: int) -> None:
        """For the exit of the process ``pid``: one that still works is left to finish by itself."""
        if os.getpid() == pid and self._lock.acquire(blocking=False):
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.communicate()  # closes its pipes, whatever state they are in


@cache
def _process(pid: int) -> _PolicyProcess:
    """The process of this one; a fork must neither talk to that of its parent nor end it."""
    process = _PolicyProcess()
    atexit.register(process.end_if_idle, pid)
    return process


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: no module of the working directory stands in for one of the library.
        [sys.executable, "-P", "-m", "go_opt.agents.policy.policy_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            # One pass takes milliseconds; an accelerator would take longer to set up, and memory.
            "JAX_PLATFORMS": "cpu",
        },
        start_new_session=True,  # Ctrl-C is for the search
    )
