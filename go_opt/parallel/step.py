"""The seconds and bytes of one training step in a given configuration.

    step = (m - 1/v) slowest + sum / v + messages + reduction + optimizer

with m micro-batches, v stages a device, and the seconds of a micro-batch on the slowest device and on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from go_opt.common.units import format_bytes
from go_opt.env import Target
from go_opt.errors import InvalidInputError
from go_opt.parallel.block import Block, block_of, message_s
from go_opt.parallel.configuration import (
    RECOMPUTE,
    Configuration,
    check_configuration,
    parse_configuration,
)
from go_opt.parallel.machine import Machine
from go_opt.parallel.transformer import Transformer, parse_transformer

Layers = tuple[int, int, int]  # of one device, by RECOMPUTE: none, attention, full
_OPTIMIZER_BYTES = 40.0  # a parameter: gradient, moments and weights in float32, read and written
_MOMENT_BYTES = 12.0  # a parameter in float32: weight and two moments


@dataclass(frozen=True)
class Case:
    """A step to plan: a model, devices, and the sequences of all replicas together."""

    model: Transformer
    machine: Machine
    batch: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InvalidInputError(f"batch must be 1 or more, not {self.batch}.", field="batch")

    @classmethod
    def read(cls, model: str, target: Target, batch: int) -> Case:
        """The step of a model as ``gpt:hidden=768,…`` on a target with levels."""
        return cls(parse_transformer(model), Machine(target), batch)


@dataclass(frozen=True)
class Step:
    """The predicted cost of a step. Axis ``P``: pipeline ranks."""

    case: Case
    chosen: Configuration
    layers: tuple[Layers, ...]  # [P]

    @cached_property
    def block(self) -> Block:
        return block_of(self.case.model, self.chosen, self.case.machine)

    @cached_property
    def sent_s(self) -> float:
        """Seconds of a message between ranks, in one direction."""
        return message_s(self.case.model, self.chosen, self.case.machine)

    @cached_property
    def rank_s(self) -> tuple[float, ...]:
        """[P] seconds of a micro-batch on the stages of each rank, forwards and backwards."""
        return rank_seconds(self.block, self.layers)

    @cached_property
    def terms_s(self) -> dict[str, float]:
        """Parts of the step's seconds. Those of layers are means over ranks; the bubble has the rest."""
        block, chosen, ranks = self.block, self.chosen, self.chosen.pipeline
        number, v = chosen.micro_batches(self.case.batch), chosen.stages_per_device
        counts = [sum(layers[kind] for layers in self.layers) for kind in range(len(RECOMPUTE))]
        each = number / ranks

        def summed(row: Sequence[float]) -> float:
            return each * sum(count * value for count, value in zip(counts, row, strict=True))

        kernels_s = sum(counts) * (block.forward_s + block.backward_s) + block.head_s
        return {
            "compute_s": each * kernels_s,
            "recompute_s": summed(block.again_s),
            "host_s": summed(block.host_s),
            "collectives_s": summed(block.collective_s),
            "bubble_s": pipeline_s(self.rank_s, number, v) - each * sum(self.rank_s),
            "messages_s": 2.0 * waits(chosen, self.case.batch) * self.sent_s,
            "reduction_s": reduction_s(self.case, chosen),
            "optimizer_s": optimizer_s(self.case, chosen),
        }

    @cached_property
    def step_s(self) -> float:
        return sum(self.terms_s.values())

    @cached_property
    def memory_bytes(self) -> tuple[int, ...]:
        """[P] bytes of a device of each rank at its peak."""
        ranks = range(self.chosen.pipeline)
        return tuple(int(rank_bytes(self.case, self.chosen, self.block, i, self.layers[i])) for i in ranks)

    @property
    def lacks(self) -> list[str]:
        """A sentence for each rank that does not fit into memory."""
        limit = self.case.machine.memory_bytes
        return [
            f"rank {rank} needs {format_bytes(used)} of {format_bytes(limit)}."
            for rank, used in enumerate(self.memory_bytes)
            if used > limit
        ]


def cost_step(case: Case, given: Configuration | str) -> Step:
    """The step in a configuration, with layers divided evenly that all recompute alike.

    Args:
      given: a configuration, or its text (:func:`parse_configuration`).

    Ranks that have a layer more than others stand in the middle, since the ends also have the tokens' table.

    Raises:
      InvalidInputError: model, batch or devices cannot be divided so.
    """
    chosen = parse_configuration(given) if isinstance(given, str) else given
    check_configuration(chosen, case.model, case.machine.devices, case.batch)
    ranks, kind = chosen.pipeline, RECOMPUTE.index(chosen.recompute)
    few, more = divmod(case.model.layers, ranks)
    first = (ranks - more) // 2
    counts = [few + (first <= rank < first + more) for rank in range(ranks)]
    layers = [[0, 0, 0] for _ in range(ranks)]
    for rank, count in enumerate(counts):
        layers[rank][kind] = count
    return Step(case, chosen, tuple((one[0], one[1], one[2]) for one in layers))


def rank_seconds(block: Block, layers: Sequence[Layers]) -> tuple[float, ...]:
    """[P] seconds of a micro-batch on each rank; the last also has the model's head."""
    found = [sum(n * s for n, s in zip(one, block.layer_s, strict=True)) for one in layers]
    found[-1] += block.head_s
    return tuple(found)


def pipeline_s(rank_s: Sequence[float], number: int, stages_per_device: int) -> float:
    """Seconds of ``number`` micro-batches on ranks of ``rank_s`` each, messages apart."""
    share = 1.0 / stages_per_device
    return (number - share) * max(rank_s) + share * sum(rank_s)


def waits(chosen: Configuration, batch: int) -> int:
    """How often a step waits for a message from either neighbour: one each way."""
    is_piped = chosen.pipeline > 1
    return is_piped * (chosen.micro_batches(batch) * chosen.stages_per_device + chosen.pipeline - 2)


def _mean_parameters(case: Case, chosen: Configuration) -> tuple[float, float]:
    """Parameters of a device, the mean of all ranks: those that all replicas hold, and of experts."""
    model = case.model
    table = model.vocabulary * model.hidden
    shared = float(model.layers * model.attention_parameters + table)
    own = model.layers * model.mlp_parameters / chosen.expert
    if model.experts == 1:
        shared, own = shared + own, 0.0
    share = chosen.tensor * chosen.pipeline
    return shared / share, own / share


def reduction_s(case: Case, chosen: Configuration) -> float:
    """Seconds in which replicas sum gradients and, with ZeRO, share weights; nothing of it is overlapped.

    ZeRO 2 reduces behind each micro-batch; ZeRO 3 also gathers the weights in each pass.
    """
    shared, own = _mean_parameters(case, chosen)
    number, machine = chosen.micro_batches(case.batch), case.machine
    times = {
        0: {"all_reduce": 1},
        1: {"reduce_scatter": 1, "all_gather": 1},
        2: {"reduce_scatter": number, "all_gather": 1},
        3: {"reduce_scatter": number, "all_gather": 2 * number},
    }[chosen.zero]
    groups = ((shared, chosen.replicas, chosen.tensor), (own, chosen.data, chosen.tensor * chosen.expert))
    return sum(
        count * machine.collective_s(op, machine.element_bytes * parameters, group, stride)
        for parameters, group, stride in groups
        if parameters
        for op, count in times.items()
    )


def optimizer_s(case: Case, chosen: Configuration) -> float:
    """Seconds of the update of the weights."""
    shared, own = _mean_parameters(case, chosen)
    if chosen.zero:
        shared, own = shared / chosen.replicas, own / chosen.data
    return case.machine.moved_s(_OPTIMIZER_BYTES * (shared + own))


def state_bytes(case: Case, chosen: Configuration, layers: int, is_end: bool) -> float:
    """Weights, gradients and moments of a device with so many layers; at an end also the tokens' table."""
    model, t = case.model, chosen.tensor
    shared = layers * model.attention_parameters + is_end * model.vocabulary * model.hidden
    own = layers * model.mlp_parameters / chosen.expert
    groups = ((shared / t, chosen.replicas), (own / t, chosen.data if model.experts > 1 else chosen.replicas))
    size, zero = case.machine.element_bytes, chosen.zero
    return sum(
        parameters
        * (
            size / (group if zero == 3 else 1)
            + size / (group if zero >= 2 else 1)
            + _MOMENT_BYTES / (group if zero else 1)
        )
        for parameters, group in groups
    )


def rank_bytes(case: Case, chosen: Configuration, block: Block, rank: int, layers: Layers) -> float:
    """Bytes of a device of this rank at its peak: states, activations in flight, and what is at work."""
    is_last = rank == chosen.pipeline - 1
    kept = sum(n * size for n, size in zip(layers, block.kept_bytes, strict=True))
    held = state_bytes(case, chosen, sum(layers), rank == 0 or is_last)
    return held + chosen.in_flight(rank, case.batch) * kept + working_bytes(block, layers, is_last=is_last)


def working_bytes(block: Block, layers: Layers, *, is_last: bool) -> float:
    """Bytes of what is at work on a device: its largest kind of layer, on the last rank maybe the head."""
    working = max(size for n, size in zip(layers, block.working_bytes, strict=True) if n or not size)
    return max(working, is_last * block.head_bytes)
