"""What a run of a training step measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from go_opt.common.units import format_bytes
from go_opt.errors import EnvironmentFailedError


@dataclass(frozen=True)
class RankRun:
    """What a pipeline rank measured. Bytes of states are in the types that the plan has."""

    rank: int
    layers: int
    in_flight: float  # most micro-batches between their passes
    planned_in_flight: float
    state_bytes: int  # weights, gradients and moments of a device
    planned_state_bytes: int
    kept_bytes: int  # most activations of a device, in float64


@dataclass(frozen=True)
class StepRun:
    """A planned step that ran. Differences are the largest ones, of the largest element of each array."""

    model: str
    target: str
    parallel: str
    devices: int
    processes: int
    cores: int
    losses: tuple[float, ...]
    whole_losses: tuple[float, ...]  # of the step on one device
    loss_difference: float
    gradient_difference: float
    weight_difference: float  # behind the last step
    different: str  # the array that differs most
    tolerance: float
    ranks: tuple[RankRun, ...]
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        worst = max(self.loss_difference, self.gradient_difference, self.weight_difference)
        return worst <= self.tolerance

    def lines(self) -> Iterator[str]:
        """As text."""
        ranks, processes = len(self.ranks), self.processes
        yield (
            f"{self.model}, planned for {self.target}: {ranks} pipeline rank{'s' * (ranks > 1)} of "
            f"{self.devices // ranks} in {processes} process{'es' * (processes > 1)} on {self.cores} cores, "
            f"{len(self.losses)} steps"
        )
        yield f"losses      {', '.join(f'{loss:.6f}' for loss in self.losses)}"
        are = "equal" if self.is_equal else f"DIFFERENT, most {self.different}"
        yield (
            f"compared    {are}: with the step on one device, losses up to {self.loss_difference:.1e}, "
            f"gradients up to {self.gradient_difference:.1e}, weights up to {self.weight_difference:.1e} of "
            "their scale"
        )
        for one in self.ranks:
            yield (
                f"rank {one.rank:<6} {one.layers} layers, {one.in_flight:g} micro-batches in flight, planned "
                f"{one.planned_in_flight:g}; weights, gradients and moments {format_bytes(one.state_bytes)} "
                f"a device, predicted {format_bytes(one.planned_state_bytes)}"
            )
        yield from (f"note        {note}" for note in self.notes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self) | {"is_equal": self.is_equal}


_FLOP_MARGIN: Final = 1.25  # XLA and the graph count element-wise ops differently


@dataclass(frozen=True)
class FunctionRun:
    """A step given as a JAX function that ran with a plan's shardings. Differences as in :class:`StepRun`."""

    model: str
    target: str
    devices: int
    results: tuple[tuple[float, ...], ...]  # by step: the mean of each result that is no state, the loss
    whole_results: tuple[tuple[float, ...], ...]  # of the step on one device
    difference: float  # of all results of all steps, weights and moments among them
    different: str  # the result that differs most
    tolerance: float
    # FLOPs of a device, of those of the step on one device, as XLA counts them, if all update all weights.
    flop_share: float
    planned_flop_share: float
    state_elements: int  # of a device, as a mean: a plan may put copies of replicas on other chips
    planned_state_elements: int

    @property
    def problem(self) -> str:
        """How the run is not what was planned; empty if it is."""
        if not self.difference <= self.tolerance:
            return (
                f"{self.different} differs from that of the step on one device by {self.difference:.1e} of "
                f"its scale, more than {self.tolerance:.1e}"
            )
        if self.state_elements != self.planned_state_elements:
            return (
                f"a device keeps {self.state_elements:,} elements of states, "
                f"and {self.planned_state_elements:,} by the plan"
            )
        if self.flop_share > self.planned_flop_share * _FLOP_MARGIN:
            return (
                f"with its part of the batch a device computes {self.flop_share:.3f} of the step's FLOPs, "
                f"and {self.planned_flop_share:.3f} by the plan"
            )
        return ""

    def lines(self) -> Iterator[str]:
        """As text."""
        yield f"{self.model}, planned for {self.target}: {self.devices} devices, {len(self.results)} steps"
        yield f"results     {'; '.join(', '.join(f'{one:.6f}' for one in of) for of in self.results)}"
        are = self.problem or f"equal to those of the step on one device, up to {self.difference:.1e}"
        yield f"compared    {are}"
        yield (
            f"a device    {self.flop_share:.3f} of the FLOPs without shared updates, "
            f"predicted {self.planned_flop_share:.3f}; "
            f"{self.state_elements:,} elements of states, predicted {self.planned_state_elements:,}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self) | {"is_equal": not self.problem}


def difference(array: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest element of ``right``."""
    if array.shape != right.shape:
        return np.inf
    gap, scale = float(np.max(np.abs(array - right))), float(np.max(np.abs(right)))
    return gap / scale if scale else float(np.inf if gap else 0.0)


class StepDiffersError(EnvironmentFailedError):
    """A planned step ran, and does not give what the step on one device gives."""

    exit_code = 6

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result  # a StepRun, or a FunctionRun
