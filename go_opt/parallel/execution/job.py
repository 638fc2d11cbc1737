"""What a process of a run is told. It loads no kernels: those simulate, and a process only computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


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
