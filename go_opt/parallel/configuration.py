"""One way to divide a training step among devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from go_opt.errors import InvalidInputError
from go_opt.parallel.transformer import Transformer, read_pairs

Recompute = Literal["full", "attention", "none"]
Schedule = Literal["1f1b", "gpipe", "interleaved"]
Zero = Literal[0, 1, 2, 3]
RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "attention", "full")  # more and more of it
ZERO: Final[tuple[Zero, ...]] = (0, 1, 2, 3)
OPTION: Final = "--parallel"


@dataclass(frozen=True)
class Configuration:
    """Degrees of parallelism and how stages run. Devices are numbered by tensor, expert, data, pipeline.

    ``data`` replicas hold the same parameters. ``expert`` divides the experts of each layer; its devices
    have different sequences, so everything but experts is replicated over them too.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    micro_batch: int = 1  # sequences
    schedule: Schedule = "1f1b"
    stages_per_device: int = 1
    zero: Zero = 0
    recompute: Recompute = "full"
    sequence_parallel: bool = False
    overlap: bool = False  # gradients are summed while backward passes run
    host_s_per_layer: float | None = None  # in place of the target's

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data * self.expert

    @property
    def replicas(self) -> int:
        """Groups of devices with different sequences."""
        return self.data * self.expert

    def micro_batches(self, batch: int) -> int:
        """Of one replica in a step of ``batch`` sequences."""
        return batch // (self.replicas * self.micro_batch)

    def in_flight(self, stage: int, batch: int) -> float:
        """Micro-batches whose activations a device of pipeline rank ``stage`` keeps at most."""
        number, v = self.micro_batches(batch), self.stages_per_device
        if self.schedule == "gpipe":
            return number
        if v == 1:
            return min(number, self.pipeline - stage)
        warm_up = 2 * (self.pipeline - stage - 1) + (v - 1) * self.pipeline
        return min(number, (warm_up + 1) / v)


def parse_configuration(text: str) -> Configuration:
    """The configuration of ``tensor=8,pipeline=8,data=8,micro_batch=1``; errors name the key."""
    return read_pairs(text, Configuration, OPTION)


def check_configuration(chosen: Configuration, model: Transformer, devices: int, batch: int) -> None:
    """Raise InvalidInputError unless the model and the batch can be divided so."""
    for field, is_right, problem in _rules(chosen, model, devices, batch):
        if not is_right:
            raise InvalidInputError(f"{OPTION}: {problem}.", field=field)


def undivided(model: Transformer, tensor: int) -> list[str]:
    """Sizes of the model that so many tensor ranks do not divide; keys and values may also be repeated."""
    sizes = {"heads": model.heads, "mlp": model.mlp}
    if tensor % model.kv_heads:
        sizes["kv_heads"] = model.kv_heads
    return [f"{name}={size}" for name, size in sizes.items() if size % tensor]


def _rules(
    chosen: Configuration, model: Transformer, devices: int, batch: int
) -> list[tuple[str, bool, str]]:
    """Of each rule: the field at fault, whether it holds, and the problem."""
    t, v = chosen.tensor, chosen.stages_per_device
    counted = ("tensor", "pipeline", "data", "expert", "micro_batch", "stages_per_device")
    degrees = f"tensor={t} x pipeline={chosen.pipeline} x data={chosen.data} x expert={chosen.expert}"
    found = [(name, getattr(chosen, name) >= 1, f"{name} must be 1 or more") for name in counted]
    if not all(is_right for _, is_right, _ in found):
        return found
    share, stages = chosen.replicas * chosen.micro_batch, chosen.pipeline * v
    found += [
        ("tensor", chosen.devices == devices, f"{degrees} is {chosen.devices} devices of {devices}"),
        *(("tensor", False, f"tensor={t} does not divide {name}") for name in undivided(model, t)),
        (
            "sequence_parallel",
            not chosen.sequence_parallel or model.sequence % t == 0,
            f"tensor={t} does not divide sequence={model.sequence}, which sequence_parallel=on needs",
        ),
        (
            "pipeline" if v == 1 else "stages_per_device",
            stages <= model.layers,
            f"{stages} stages are more than layers={model.layers}",
        ),
        (
            "expert",
            model.experts % chosen.expert == 0,
            f"expert={chosen.expert} does not divide experts={model.experts}",
        ),
        (
            "micro_batch",
            batch % share == 0,
            f"micro_batch={chosen.micro_batch} on {chosen.replicas} replicas does not divide batch={batch}",
        ),
    ]
    if chosen.schedule != "interleaved":
        return [*found, ("stages_per_device", v == 1, "stages_per_device is for schedule=interleaved")]
    problem = f"schedule=interleaved needs micro-batches in multiples of pipeline={chosen.pipeline}"
    return [
        *found,
        ("stages_per_device", v > 1, "schedule=interleaved needs stages_per_device of 2 or more"),
        ("schedule", batch // share % chosen.pipeline == 0, problem),
        ("schedule", chosen.pipeline > 1, "schedule=interleaved needs pipeline of 2 or more"),
    ]
