"""What an evaluation answers: every term of the interval, not only the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.errors import InvalidInputError

Fidelity = Literal["analytical", "simulated"]
STALL_CAUSES: Final = ("input", "host", "output", "weights")
WAITING: Final = "waiting for streamed weights"  # a bottleneck where no chip or link is always busy


def check_fidelity(fidelity: str) -> None:
    """Raise :class:`InvalidInputError` where there is no such fidelity."""
    if fidelity not in get_args(Fidelity):
        choices = ", ".join(get_args(Fidelity))
        raise InvalidInputError(f"fidelity must be one of {choices}, not {fidelity!r}.", field="fidelity")


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a simulated evaluation saw beside the metrics. Axes as in :class:`Metrics`."""

    utilisation: FloatArray  # [D] share of the interval that the chip computes
    stall_s: FloatArray  # [D, 4] waiting in one inference, by STALL_CAUSES
    link_utilisation: FloatArray  # [L] share of the interval that the link transfers
    link_wait_s: FloatArray  # [L] tensors of one inference waited for the link
    period: int  # inferences after which everything repeats; 0: not within those simulated
    inferences: int  # simulated


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
    peak_bytes: LongArray  # [D] activations at their peak
    weight_bytes: LongArray  # [D] weights resident
    valid: bool
    reason: str  # why the plan is invalid; empty where it is valid
    simulation: Simulation | None = None  # of the simulated fidelity only

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
