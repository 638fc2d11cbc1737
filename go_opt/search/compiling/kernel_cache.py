"""Kernels that take long to compile are compiled once, in a process of their own that fills numba's cache.

Those of the rounds of improvement and of the search over orders take minutes after an
install. A search that is short of time goes without them meanwhile; one that counts
evaluations waits. A marker beside the compiled kernels says that they are there, for these
sources and this numba. Those of users' constraints take as long; they follow, and nobody waits.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Final

import numba

import go_opt.solver as solver
from go_opt.env import load_target
from go_opt.result import Request
from go_opt.solver import Colocate, Forbid
from go_opt.solver.certify.states.chains import find_chain
from go_opt.system.cores import num_cores
from go_opt.system.files import write_atomically

_POLL_S: Final = 0.002
_EVALUATIONS: Final = 300  # until every method has had a turn
_OPS: Final = 40
_COMPILES: Final = "GO_OPT_COMPILES_KERNELS"  # set in the process that does
_REQUESTS: Final = (
    Request(max_evaluations=_EVALUATIONS),
    Request(max_evaluations=_EVALUATIONS, relays=False),
    Request(max_evaluations=_EVALUATIONS, replication=False),
    Request(max_evaluations=_EVALUATIONS, decide="placement"),
)
_CONSTRAINED: Final = (
    Request(max_evaluations=_EVALUATIONS, constraints=(Colocate(("op0", "op1")), Forbid(("op2",), (3,)))),
)


def are_compiled() -> bool:
    """Whether the kernels of the improvement come from the cache; if not, a process compiles them."""
    if _is_interpreted() or _COMPILES in os.environ or _marker().exists():
        return True
    return _compiling().poll() is not None


def start_compiling() -> None:
    """Let the process begin where a core is left for what is compiled here, so that both share the work."""
    if num_cores() > 1:
        are_compiled()


def _is_interpreted() -> bool:
    """Whether kernels run as plain Python."""
    return bool(vars(numba.config)["DISABLE_JIT"])


def until_compiled() -> Iterator[None]:
    """Ends once the kernels are in the cache; or are to be compiled here, since no process can or will.

    Meanwhile the caller may do something else, or ask whether to stop.
    """
    while not are_compiled():
        time.sleep(_POLL_S)
        yield None


@cache
def _marker() -> Path:
    """The marker of these sources, in numba's cache folder."""
    digest = hashlib.sha256(f"{version('numba')} {sys.version}".encode())
    for folder in solver.__path__:
        for source in sorted(Path(folder).rglob("*.py")):
            stat = source.stat()
            digest.update(f"{source} {stat.st_size} {stat.st_mtime_ns}".encode())
    return Path(str(find_chain.stats.cache_path)) / f"improvement-{digest.hexdigest()[:16]}.ready"


@cache
def _compiling() -> subprocess.Popen[bytes]:
    # Of a session of its own: it goes on where the search that started it ends, or is interrupted.
    return subprocess.Popen(
        [sys.executable, "-m", "go_opt.search.compiling.kernel_cache"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _compile(requests: Iterable[Request]) -> None:
    """Run the kernels once, as searches do, on a small graph; also those that its optimum makes needless."""
    from go_opt.agents.generator import generate_graph
    from go_opt.search.compiling.warm_up import warm_up
    from go_opt.search.optimizer import Search
    from go_opt.search.portfolio import proposals

    warm_up(backwards=True)  # whoever started this process compiles them as well
    graph, target = generate_graph(0, num_ops=_OPS), load_target("mcm-2x2")
    for request in requests:
        search = Search(graph, target, request, None, lambda step: None)
        for proposal in islice(proposals(search), request.max_evaluations):
            if proposal is not None:
                search.consider(proposal)


def main() -> None:
    """Compile, unless another process has, and leave the marker."""
    os.environ[_COMPILES] = "1"
    _marker().parent.mkdir(parents=True, exist_ok=True)
    with open(_marker().with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when the process ends, however it does
        if not _marker().exists():
            _compile(_REQUESTS)
            write_atomically(_marker(), "")
            _compile(_CONSTRAINED)


if __name__ == "__main__":
    main()
