"""The measurements of a run of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numpy.typing import NDArray

from go_opt.errors import EnvironmentFailedError
from go_opt.run.manifest import Manifest


@dataclass(frozen=True)
class StageRun:
    """Predicted and measured seconds of one stage, per inference on one chip."""

    stage: int
    chips: tuple[int, ...]
    num_ops: int
    predicted_s: float  # compute
    processor_s: float  # median processor time of the model
    wall_s: float  # the same in wall-clock time

    @property
    def replication(self) -> int:
        return len(self.chips)


@dataclass(frozen=True)
class ChipMemory:
    """Bytes of weights, states and activations on the first chip of a stage."""

    chip: int
    predicted_bytes: int
    measured_bytes: int  # by which its process grew; it has ONNX Runtime's own buffers too


@dataclass(frozen=True)
class RunResult:
    """A plan that ran."""

    model: str
    target: str
    inferences: int
    workers: int
    cores: int
    stages: tuple[StageRun, ...]
    predicted_interval_s: float
    # Processor time per inference: of the busiest chip or, if it is longer, of all stages one after the other
    # divided by the sequences in flight.
    processor_interval_s: float
    wall_interval_s: float  # wall-clock time between two results
    predicted_latency_s: float
    latency_s: float  # median of inferences that ran alone
    difference: float  # largest difference of an output from the whole model's, relative to its scale
    tolerance: float  # largest that is taken for rounding, of any output
    is_equal: bool  # whether each output is within its tolerance
    sequences: int  # in flight; 0: the model has no states
    memory: tuple[ChipMemory, ...]
    outputs: Mapping[str, NDArray] = field(repr=False, compare=False)  # of the first inference, by name

    @property
    def throughput_per_s(self) -> float:
        """Measured inferences per second of wall-clock time."""
        return 1 / self.wall_interval_s


class OutputsDifferError(EnvironmentFailedError):
    """The stages of a plan ran, and do not give what the whole model gives; ``result`` has the times."""

    exit_code = 6

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


def path_seconds(manifest: Manifest, stages: tuple[StageRun, ...]) -> float:
    """Processor seconds of an inference alone: of the longest path of stages that wait for each other."""
    until: list[float] = []
    for stage, ran in zip(manifest.stages, stages, strict=True):
        before = (until[row.source] for row in stage.inputs if row.source is not None)
        until.append(max(before, default=0.0) + ran.processor_s)
    return max(until)


def chip_seconds(stages: tuple[StageRun, ...]) -> dict[int, float]:
    """Processor seconds of each chip, per inference of the pipeline."""
    seconds: dict[int, float] = {}
    for stage in stages:
        for chip in stage.chips:
            seconds[chip] = seconds.get(chip, 0.0) + stage.processor_s / stage.replication
    return seconds
