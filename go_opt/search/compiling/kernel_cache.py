"""Kernels that take long to compile are compiled once, in a process of their own that fills numba's cache.

Those of the rounds of improvement and of the search over orders take minutes after an
install. A search that is short of time goes without them meanwhile; one that counts
evaluations waits. A marker beside the compiled kernels says that they are there, for these
sources and this numba; beside it is the lock of the one process that compiles. Those of
users' constraints take as long; they follow, and nobody waits.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import numba

import go_opt.solver as solver
from go_opt.common.caches.kernels import folder_of, sources_digest
from go_opt.common.processes import module_command, module_environment, num_cores
from go_opt.solver.certify.chains import find_chain

COMPILES: Final = "GO_OPT_COMPILES_KERNELS"  # set in the process that does


def are_compiled() -> bool:
    """Whether the kernels of the improvement come from the cache, or are to be compiled here.

    If not, a process compiles them; they are to be compiled here where ours ended without, or none can be
    started. Where that of another search ends without, ours begins.
    """
    if _is_interpreted() or COMPILES in os.environ or marker().exists():
        return True
    try:
        process = _compiling()
    except OSError:
        return True
    return process is not None and process.poll() is not None


def start_compiling() -> bool:
    """Let the process begin where a core is left for what is compiled here, so that both share the work.

    Returns whether kernels are missing that no earlier run has left in the cache.
    """
    if num_cores() > 1:
        are_compiled()
    return not (_is_interpreted() or marker().exists())


def _is_interpreted() -> bool:
    """Whether kernels run as plain Python."""
    return bool(vars(numba.config)["DISABLE_JIT"])


@cache
def marker() -> Path:
    """The marker of these sources, beside the slowest of their kernels."""
    return folder_of(find_chain.__module__) / f"improvement-{sources_digest(solver.__name__)}.ready"


class _LeftBehind(subprocess.Popen[bytes]):
    """A process that is meant to go on where the one that started it ends."""

    def __del__(self) -> None:
        """Python would warn that it still runs."""


_started: Final[list[_LeftBehind]] = []  # by this process: at most one


def _compiling() -> subprocess.Popen[bytes] | None:
    """The process that this one has started, now or before; None while that of another search compiles.

    Raises:
      OSError: none can be started.
    """
    if not _started:
        marker().parent.mkdir(parents=True, exist_ok=True)
        # One for all sources: where they change, at most one process compiles nonetheless.
        with open(marker().with_name("improvement.lock"), "w") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _started.append(_start(lock.fileno()))
    return _started[0] if _started else None


def _start(lock: int) -> _LeftBehind:
    # Of a session of its own: it goes on where the search that started it is interrupted. It inherits
    # the lock, which is let go of when it ends, however it does. It takes the sources that run here,
    # whatever lies in the working directory.
    return _LeftBehind(
        module_command("go_opt.search.compile_kernels"),
        env=module_environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, pass_fds=(lock,),
    )  # fmt: skip
