"""The processes of a run: what each is told; started together, watched, and always ended.

It loads no kernels: those simulate, and a process only computes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from go_opt.errors import EnvironmentFailedError
from go_opt.run.processes import Processes

_WORKER: Final = "go_opt.parallel.execution.worker"


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

    function: str  # path of the serialised function of arrays
    arrays: str  # path of its arguments, by number
    shardings: str  # path of the exported module
    states: dict[int, int]  # argument -> the result that is its next value
    steps: int
    out: str  # path of what it writes, JSON


_FAST: Final = "--xla_backend_optimization_level=0"  # compiles faster, and computes the same


def run_processes(folder: Path, jobs: Mapping[str, tuple[Job | FunctionJob, int]]) -> None:
    """Run each job, by the name of its process, with so many host devices; all end before this returns.

    Raises:
      EnvironmentFailedError: a process cannot start, or failed; the message has its last words.
    """
    processes = Processes()
    try:
        for name, (job, devices) in jobs.items():
            path = folder / f"{name.replace(' ', '-')}.job"
            path.write_text(json.dumps(asdict(job)), "utf-8")
            forced = f"--xla_force_host_platform_device_count={devices}"
            environment = {
                "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {forced} {_FAST}".strip(),
                "JAX_PLATFORMS": "cpu",
                "JAX_TRACEBACK_FILTERING": "off",
            }
            processes.start(f"the process of {name}", _WORKER, str(path), environment=environment)
        while processes.running:
            processes.wait()
    except OSError as error:
        raise EnvironmentFailedError(f"{name} cannot be started: {error.strerror or error}.") from None
    except EnvironmentFailedError as error:
        if "DEADLINE_EXCEEDED" in str(error) or "timeout" in str(error).lower():
            problem = "a process waited too long for another one, as on a machine with too much to do"
            raise EnvironmentFailedError(f"{problem}.") from None
        raise
    finally:
        processes.end()


def difference(array: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest element of ``right``."""
    if array.shape != right.shape:
        return np.inf
    gap, scale = float(np.max(np.abs(array - right))), float(np.max(np.abs(right)))
    return gap / scale if scale else float(np.inf if gap else 0.0)
