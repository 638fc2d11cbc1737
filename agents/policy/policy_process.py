"""The process that runs a policy for a search: requests on stdin, answers on stdout, both pickled.

``python -m go_opt.agents.policy.policy_process``, started by :mod:`go_opt.search.policies`. It ends when
stdin does. JAX is loaded, compiles and, where a search is over early, finishes here: the
process that searches need neither wait nor share its interpreter lock.
"""

from __future__ import annotations

import os
import pickle
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import jax

from go_opt.agents.decoding.proposals import advice
from go_opt.agents.policy.compilation_cache import enable_compilation_cache
from go_opt.agents.policy.policy_file import LoadedPolicy, load_policy
from go_opt.common.process_memory import give_back, resident_bytes
from go_opt.errors import PolicyError

# Beyond this the programs compiled for the shapes of earlier graphs are dropped: each takes
# some 15 MB, and comes back from the cache on disk.
_MANY_BYTES: Final = 600 * 2**20


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer pickled ``(path, question)`` until there are no more.

    A question is a (graph, target) to be advised on, or None to have the file checked. An
    answer is ``("advice", value)``; ``("refused", why)``, the file is at fault; or ``("failed", why)``.
    """
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(_answer(*request), answers)
        answers.flush()
        del request
        if resident_bytes() > _MANY_BYTES:
            jax.clear_caches()  # type: ignore[no-untyped-call]
        give_back()


def _answer(path: Path, question: tuple[Any, Any] | None) -> tuple[str, Any]:
    try:
        policy = _load(path, *_version(path))
        return "advice", None if question is None else advice(policy, *question)
    except PolicyError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"


@lru_cache(maxsize=4)
def _load(path: Path, modified_ns: int, size_bytes: int) -> LoadedPolicy:
    return load_policy(path)


def _version(path: Path) -> tuple[int, int]:
    """What changes when the file does."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # the loader says what is wrong with it
        return 0, 0
    return status.st_mtime_ns, status.st_size


def main() -> None:
    # Whatever a library prints goes nowhere, not among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    enable_compilation_cache()
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
