"""Kernels that take long to compile are compiled once, in a process of their own that fills numba's cache.

The kernels of the improvement take half a minute after an install. A search that is short
of time goes without them meanwhile; one that counts evaluations waits. A marker beside the
compiled kernels says that they are there, for these sources and this numba.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numba

import go_opt.solver as solver
from go_opt.files import write_atomically
from go_opt.solver.refinement_kernels import find_chain


def are_compiled() -> bool:
    """Whether the kernels of the improvement come from the cache; if not, a process compiles them."""
    if numba.config.DISABLE_JIT or _marker().exists():
        return True
    return _compiling().poll() is not None


def wait_until_compiled() -> None:
    """Return once they are in the cache; or, where that cannot be written to, are to be compiled here."""
    if not are_compiled():
        _compiling().wait()


@cache
def _marker() -> Path:
    """The marker of these sources, in numba's cache folder."""
    digest = hashlib.sha256(f"{version('numba')} {sys.version}".encode())
    for folder in solver.__path__:
        for source in sorted(Path(folder).glob("*.py")):
            stat = source.stat()
            digest.update(f"{source} {stat.st_size} {stat.st_mtime_ns}".encode())
    return Path(str(find_chain.stats.cache_path)) / f"improvement-{digest.hexdigest()[:16]}.ready"


@cache
def _compiling() -> subprocess.Popen[bytes]:
    # Of a session of its own: it goes on where the search that started it ends, or is interrupted.
    return subprocess.Popen(
        [sys.executable, "-m", "go_opt.kernel_cache"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def main() -> None:
    """Compile, unless another process has, and leave the marker."""
    from go_opt.improvement import compile_kernels

    _marker().parent.mkdir(parents=True, exist_ok=True)
    with open(_marker().with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when the process ends, however it does
        if not _marker().exists():
            compile_kernels()
            write_atomically(_marker(), "")


if __name__ == "__main__":
    main()
