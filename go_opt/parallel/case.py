"""A step to plan, and what its parts cost: what the search and the simulator ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from go_opt.env import Target
from go_opt.errors import InvalidInputError
from go_opt.parallel.block import Block, block_of, message_s
from go_opt.parallel.configuration import Configuration
from go_opt.parallel.machine import Machine
from go_opt.parallel.transformer import Transformer, parse_transformer

_OPTIMIZER_BYTES = 40.0  # a parameter: gradient, moments and weights in float32, read and written
_MOMENT_BYTES = 12.0  # a parameter in float32: weight and two moments


class Sums(NamedTuple):
    """Gradients of replicas in a step; of a device, the mean of all ranks."""

    sum_s: float  # of the gradients of all its layers
    times: int
    gathered_s: float  # of weights, all together

    @property
    def all_s(self) -> float:
        return self.times * self.sum_s + self.gathered_s


@dataclass(frozen=True)
class Case:
    """A step to plan: a model, devices, and the sequences of all replicas together.

    Its methods are the cost of a step; another cost is a subclass with methods of its own. A device holds
    ``state_bytes`` of its layers, and what ``block`` says of each layer for each micro-batch ``in_flight``.
    """

    model: Transformer
    machine: Machine
    batch: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InvalidInputError(f"batch must be 1 or more, not {self.batch}.", field="batch")

    @classmethod
    def read(cls, model: str, target: Target, batch: int) -> Self:
        """The step of a model as ``gpt:hidden=768,…`` on a target with levels."""
        return cls(parse_transformer(model), Machine(target), batch)

    @property
    def memory_bytes(self) -> int:
        """Of a device."""
        return self.machine.memory_bytes

    def block(self, chosen: Configuration) -> Block:
        """What a layer costs, by tensor and expert degree, micro-batch and sequence parallelism."""
        return block_of(self.model, chosen, self.machine)

    def message_s(self, chosen: Configuration) -> float:
        """Seconds of a message between ranks, in one direction."""
        return message_s(self.model, chosen, self.machine)

    def waits(self, chosen: Configuration) -> int:
        """How often a step waits for a message from either neighbour: one each way."""
        is_piped = chosen.pipeline > 1
        return is_piped * (chosen.micro_batches(self.batch) * chosen.stages_per_device + chosen.pipeline - 2)

    def sums(self, chosen: Configuration) -> Sums:
        """How replicas sum gradients and, with ZeRO, share weights.

        ZeRO 2 reduces behind each micro-batch; ZeRO 3 also gathers the weights in each pass.
        """
        shared, own = self._mean_parameters(chosen)
        number = chosen.micro_batches(self.batch)
        groups = (
            (shared, chosen.replicas, chosen.tensor),
            (own, chosen.data, chosen.tensor * chosen.expert),
        )

        def taken_s(op: str) -> float:
            return sum(
                self.machine.collective_s(op, self.machine.element_bytes * parameters, group, stride)
                for parameters, group, stride in groups
                if parameters
            )

        if not chosen.zero:
            return Sums(taken_s("all_reduce"), 1, 0.0)
        gathers = 2 * number if chosen.zero == 3 else 1
        times = number if chosen.zero > 1 else 1
        return Sums(taken_s("reduce_scatter"), times, gathers * taken_s("all_gather"))

    def optimizer_s(self, chosen: Configuration) -> float:
        """Seconds of the update of the weights."""
        shared, own = self._mean_parameters(chosen)
        if chosen.zero:
            shared, own = shared / chosen.replicas, own / chosen.data
        return self.machine.moved_s(_OPTIMIZER_BYTES * (shared + own))

    def state_bytes(self, chosen: Configuration, layers: int, *, is_end: bool) -> float:
        """Weights, gradients and moments of a device with so many layers; at an end the tokens' table too."""
        model, t = self.model, chosen.tensor
        shared = layers * model.attention_parameters + is_end * model.vocabulary * model.hidden
        own = layers * model.mlp_parameters / chosen.expert
        replicas = chosen.data if model.experts > 1 else chosen.replicas
        size, zero = self.machine.element_bytes, chosen.zero
        return sum(
            parameters
            * (
                size / (group if zero == 3 else 1)
                + size / (group if zero >= 2 else 1)
                + _MOMENT_BYTES / (group if zero else 1)
            )
            for parameters, group in ((shared / t, chosen.replicas), (own / t, replicas))
        )

    def in_flight(self, chosen: Configuration, rank: int) -> float:
        """Micro-batches whose activations a device of a pipeline rank keeps at most."""
        return chosen.in_flight(rank, self.batch)

    def _mean_parameters(self, chosen: Configuration) -> tuple[float, float]:
        """Parameters of a device, the mean of all ranks: those that all replicas hold, and of experts."""
        model = self.model
        table = model.vocabulary * model.hidden
        shared = float(model.layers * model.attention_parameters + table)
        own = model.layers * model.mlp_parameters / chosen.expert
        if model.experts == 1:
            shared, own = shared + own, 0.0
        share = chosen.tensor * chosen.pipeline
        return shared / share, own / share
