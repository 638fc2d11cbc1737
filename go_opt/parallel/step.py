"""The seconds and bytes of one training step in a given configuration.

    step = (m - 1/v) slowest + sum / v + messages + reduction + optimizer

with m micro-batches, v stages a device, and the seconds of a micro-batch on the slowest device and on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.common.units import format_bytes
from go_opt.env import Target
from go_opt.errors import InvalidInputError
from go_opt.parallel.block import Block, Machine, block_of, message_s
from go_opt.parallel.configuration import (
    RECOMPUTE,
    Configuration,
    Transformer,
    check_configuration,
    parse_configuration,
    parse_transformer,
)

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


Layers = tuple[int, int, int]  # of one device, by RECOMPUTE: none, attention, full


@dataclass(frozen=True)
class Step:
    """The predicted cost of a step. Axis ``P``: pipeline ranks."""

    case: Case
    chosen: Configuration
    layers: tuple[Layers, ...]  # [P]

    @cached_property
    def block(self) -> Block:
        return self.case.block(self.chosen)

    @cached_property
    def sent_s(self) -> float:
        """Seconds of a message between ranks, in one direction."""
        return self.case.message_s(self.chosen)

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
            "bubble_s": pipeline_s(self.rank_s, number, v, block.head_s) - each * sum(self.rank_s),
            "messages_s": 2.0 * self.case.waits(chosen) * self.sent_s,
            "reduction_s": reduction_s(self.case.sums(chosen), chosen, block, self.case.model.layers),
            "optimizer_s": self.case.optimizer_s(chosen),
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
        limit = self.case.memory_bytes
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


def pipeline_s(rank_s: Sequence[float], number: int, stages_per_device: int, head_s: float = 0.0) -> float:
    """Seconds of ``number`` micro-batches on ranks of ``rank_s`` each, messages apart.

    Ranks run their first stages at the same time, then their second ones …: the last rank's head, of
    ``head_s``, lengthens only its last stage, for which all wait.
    """
    share = 1.0 / stages_per_device
    last_s = rank_s[-1] - head_s
    longest_s = max((*rank_s[:-1], last_s))
    slowest_s = max(longest_s, (1.0 - share) * longest_s + share * last_s + head_s)
    return (number - share) * slowest_s + share * sum(rank_s)


def rank_bytes(case: Case, chosen: Configuration, block: Block, rank: int, layers: Layers) -> float:
    """Bytes of a device of this rank at its peak: states, activations in flight, and what is at work."""
    is_last = rank == chosen.pipeline - 1
    kept = sum(n * size for n, size in zip(layers, block.kept_bytes, strict=True))
    held = case.state_bytes(chosen, sum(layers), is_end=rank == 0 or is_last)
    return held + case.in_flight(chosen, rank) * kept + working_bytes(block, layers, is_last=is_last)


def working_bytes(block: Block, layers: Layers, *, is_last: bool) -> float:
    """Bytes of what is at work on a device: its largest kind of layer, on the last rank maybe the head."""
    working = max(size for n, size in zip(layers, block.working_bytes, strict=True) if n or not size)
    return max(working, is_last * block.head_bytes)


# The gradients of a layer are summed once its last backward pass is done, one layer after the other; passes
# take no longer for it. Weights of ZeRO are gathered when no pass runs.


def reduction_s(sums: Sums, chosen: Configuration, block: Block, layers: int) -> float:
    """Seconds behind the last pass in which replicas sum gradients and share weights.

    With overlap it is what equal ranks that recompute nothing leave. The backward passes of the last
    micro-batches follow each other stage by stage, as many of each as there are ranks. The most that a layer
    has before it in the queue, and in itself, less the time since its gradients were there, is what is left;
    it grows evenly along a stage, so the first or last layer of a stage decides. ZeRO 2 sums each
    micro-batch, so the last ones of a rank, with one backward pass behind the other, may be what waits.

    Args:
      layers: of the model.
    """
    if not chosen.overlap:
        return sums.all_s
    v, on_rank = chosen.stages_per_device, layers / chosen.pipeline
    behind_s = block.layer_s[0] - _forward_s(block)[0]
    each_s, of_stage = sums.sum_s / on_rank, on_rank / v
    lefts_s = [each_s, of_stage * each_s - (of_stage - 1.0) * behind_s]
    if sums.times == 1:
        earlier_s = (v - 1) * chosen.pipeline * of_stage * behind_s  # passes of all stages but the last one
        lefts_s.append((on_rank - of_stage + 1.0) * each_s - earlier_s)
        lefts_s.append(sums.sum_s - earlier_s - (of_stage - 1.0) * behind_s)
    else:
        last = min(sums.times, chosen.pipeline)
        whole_s = last * sums.sum_s - (last * on_rank - 1.0) * behind_s
        lefts_s.append(last * sums.sum_s / v - (last * of_stage - 1.0) * behind_s)
        lefts_s += [whole_s, whole_s + (sums.times - last) * (sums.sum_s - on_rank * block.layer_s[0])]
    return max(lefts_s) + sums.gathered_s


def least_reduction_s(sums: Sums, chosen: Configuration, block: Block, seconds: FloatArray) -> FloatArray:
    """[K] at most what any schedule leaves, by the number of layers of the first rank.

    The last stage of that rank to end has a last backward pass in one piece, and sums behind it.

    Args:
      seconds: [K] least ones of a micro-batch on the layers of the first rank. With more of them, the step
        is longer, although more is hidden.
    """
    if not chosen.overlap:
        return np.full(len(seconds), sums.all_s)
    v, count = chosen.stages_per_device, np.maximum(np.arange(len(seconds)), 1.0)
    behind_s = np.where(np.isfinite(seconds), seconds, 0.0) / count - min(_forward_s(block))
    left_s = np.maximum(sums.sum_s / count, sums.sum_s / v - (count / v - 1.0) * behind_s)
    return left_s + sums.gathered_s


def _forward_s(block: Block) -> list[float]:
    """Seconds of a layer's forward pass, by what is computed again."""
    return [seconds * block.forward_share(kind) for kind, seconds in enumerate(block.layer_s)]
