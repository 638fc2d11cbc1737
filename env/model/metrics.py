"""The result of an evaluation: every term of the interval, not only the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar, get_args

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.errors import InvalidInputError

Fidelity = Literal["analytical", "simulated"]
Objective = Literal["throughput", "latency"]
STALL_CAUSES: Final = ("input", "host", "output", "weights")
STEP: Final = "the step before"  # the bottleneck if each step needs the results of the one before
WAITING: Final = "waiting for streamed weights"  # the bottleneck if no chip or link is always busy


_T = TypeVar("_T", covariant=True)


class Timed(Protocol[_T]):
    """An object with an interval and a makespan, of one plan or of a batch."""

    @property
    def interval_s(self) -> _T: ...

    @property
    def makespan_s(self) -> _T: ...


def objective_s(of: Timed[_T], objective: Objective) -> _T:
    """The quantity that ``objective`` minimises: the interval or the makespan."""
    return of.makespan_s if objective == "latency" else of.interval_s


def check_fidelity(fidelity: str) -> None:
    """Raise :class:`InvalidInputError` if the fidelity is unknown."""
    check_choice("fidelity", fidelity, get_args(Fidelity))


def check_objective(objective: str) -> None:
    """Raise :class:`InvalidInputError` if the objective is unknown."""
    check_choice("objective", objective, get_args(Objective))


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise :class:`InvalidInputError` if ``value`` is not one of ``choices``."""
    if value not in choices:
        raise InvalidInputError(f"{field} must be one of {', '.join(choices)}, not {value!r}.", field=field)


@dataclass(frozen=True, eq=False)
class Simulation:
    """The additional figures of a simulated evaluation. Axes as in :class:`Metrics`."""

    utilisation: FloatArray  # [D] share of the interval that the chip computes
    stall_s: FloatArray  # [D, 4] waiting in one inference, by STALL_CAUSES
    link_utilisation: FloatArray  # [L] share of the interval that the link transfers
    link_wait_s: FloatArray  # [L] waiting for the link by the tensors of one inference
    period: int  # inferences until everything repeats; 0: no repetition in the simulation
    inferences: int  # number simulated


@dataclass(frozen=True, eq=False)
class Metrics:
    """The cost of one plan (design section 5).

    Axes: ``D`` chips, ``L`` links: the target's links in order, then host in, host out.
    """

    interval_s: float  # steady-state time between two inferences
    throughput_per_s: float  # 1 / interval_s
    latency_s: float  # longest path of one sample through kernels and transfers
    makespan_s: float  # one execution alone, links as resources
    bottleneck: str  # "chip 3 compute", "link 2->3", "host in", "host out", … or WAITING
    compute_s: FloatArray  # [D]
    link_s: FloatArray  # [L]
    stream_bytes: LongArray  # [D] weights streamed from the host each inference
    peak_bytes: LongArray  # [D] peak of the activations
    weight_bytes: LongArray  # [D] weights resident
    valid: bool
    reason: str  # why the plan is invalid; empty if it is valid
    simulation: Simulation | None = None  # only with the simulated fidelity

    @property
    def waits(self) -> bool:
        """Whether waiting for streamed weights makes the interval longer than every term."""
        return self.bottleneck == WAITING

    def __repr__(self) -> str:
        validity = "valid" if self.valid else f"invalid: {self.reason}"
        return (
            f"Metrics(interval {self.interval_s * 1e6:.4g} us, latency {self.latency_s * 1e6:.4g} us, "
            f"makespan {self.makespan_s * 1e6:.4g} us, bottleneck {self.bottleneck!r}, {validity})"
        )
