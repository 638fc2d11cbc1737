"""What a run of a training step measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

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


class StepDiffersError(EnvironmentFailedError):
    """A planned step ran, and does not give what the step on one device gives."""

    exit_code = 6

    def __init__(self, message: str, result: StepRun) -> None:
        super().__init__(message)
        self.result = result
