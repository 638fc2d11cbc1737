"""The processes of a run: what each is told; started together, watched, and always ended.

It loads no kernels: those simulate, and a process only computes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from go_opt.common.processes import module_command, module_environment
from go_opt.errors import EnvironmentFailedError


class Action(NamedTuple):
    """A pass of a stage on a micro-batch, or a message of what the pass gives to another rank."""

    kind: str  # forward, backward, send, receive
    stage: int  # whose pass it is, or gave what is sent
    micro_batch: int
    is_backward: bool
    peer: int  # the other rank of a message, else -1


@dataclass(frozen=True)
class Job:
    """The work of one process."""

    WORKER: ClassVar = "go_opt.parallel.execution.worker"  # the module that does it

    model: str
    parallel: str
    steps: int
    seed: int
    shardings: str  # path of the exported module
    out: str  # path of the arrays that it writes; its other results stand beside it as .json
    rank: int = -1  # -1: the step on one device
    actions: tuple[tuple[Any, ...], ...] = ()  # of the rank
    address: str = ""  # of the process of rank 0, if there are several


@dataclass(frozen=True)
class FunctionJob:
    """The work of the process that runs a step given as a JAX function, with its shardings and without."""

    WORKER: ClassVar = "go_opt.parallel.execution.function_worker"

    function: str  # path of the serialised function of arrays
    arrays: str  # path of its arguments, by number
    arguments: tuple[tuple[tuple[str, ...], ...], ...]  # the axes that divide each dimension of each one
    results: tuple[tuple[tuple[str, ...], ...], ...]
    states: dict[int, int]  # argument -> the result that is its next value
    axes: dict[str, int]  # devices of each axis, the last one of neighbours
    steps: int
    out: str  # path of what it writes, JSON


_FAST: Final = "--xla_backend_optimization_level=0"  # compiles faster, and computes the same
_LOOKS_S: Final = 0.05
_MOST_OUTPUT: Final = 4000  # characters of a process's last words


def run_processes(folder: Path, jobs: Mapping[str, tuple[Job | FunctionJob, int]]) -> None:
    """Run each job, by the name of its process, with so many host devices; all end before this returns.

    Raises:
      EnvironmentFailedError: a process cannot start, or failed; the message has its last words.
    """
    with ExitStack() as stack:
        running = {}
        for name, (job, devices) in jobs.items():
            running[name] = _started(folder, name, job, devices)
            stack.callback(_end, running[name])
        while running:
            for name, process in list(running.items()):
                code = process.poll()
                if code == 0:
                    del running[name]
                elif code is not None:
                    raise EnvironmentFailedError(_failure(name, code, _said(folder, name)))
            time.sleep(_LOOKS_S)


def _started(folder: Path, name: str, job: Job | FunctionJob, devices: int) -> subprocess.Popen:
    path = folder / f"{name.replace(' ', '-')}.job"
    path.write_text(json.dumps(asdict(job)), "utf-8")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices} {_FAST}"
    environment = {
        **module_environment(),
        "XLA_FLAGS": flags.strip(),
        "JAX_PLATFORMS": "cpu",
        "JAX_TRACEBACK_FILTERING": "off",
    }
    try:
        with (folder / f"{path.stem}.log").open("wb") as log:
            return subprocess.Popen(
                module_command(job.WORKER, str(path)),
                stdin=subprocess.PIPE,  # whose end tells it that this process has ended
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal reaches only this process
                env=environment,
            )
    except OSError as error:
        raise EnvironmentFailedError(f"{name} cannot be started: {error.strerror or error}.") from None


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _said(folder: Path, name: str) -> str:
    text = (folder / f"{name.replace(' ', '-')}.log").read_text("utf-8", "replace")[-_MOST_OUTPUT:]
    return (text.strip().splitlines() or ["it gave no reason"])[-1].rstrip(".")


def _failure(name: str, code: int, words: str) -> str:
    if code < 0:
        return f"the process of {name} was ended by {signal.Signals(-code).name}."
    if "DEADLINE_EXCEEDED" in words or "timeout" in words.lower():
        return f"the process of {name} waited too long for another one, as on a machine with too much to do."
    return f"the process of {name} failed: {words}."
