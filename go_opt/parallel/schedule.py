"""The schedule of a step, event by event: which pass of which micro-batch each rank runs when.

Axes: ``P`` ranks, ``E`` passes of a rank, in its order. Stage ``chunk * P + rank`` of the model is chunk
``chunk`` of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, FloatArray, IntArray
from go_opt.common.compiling import compiled
from go_opt.errors import InvalidInputError
from go_opt.parallel.configuration import Configuration
from go_opt.parallel.step import Step, working_bytes

MOST_PASSES: Final = 20_000_000


@dataclass(frozen=True)
class Order:
    """The passes of each rank, [P, E], in order."""

    chunk: IntArray
    micro_batch: IntArray
    is_backward: BoolArray


@dataclass(frozen=True)
class Timeline:
    """A simulated step. A pass holds its rank, and so does a message while it is received."""

    order: Order
    start_s: FloatArray  # [P, E]
    end_s: FloatArray  # [P, E]
    peak_bytes: tuple[int, ...]  # [P]
    summed_s: FloatArray  # [P] when the gradients of a rank are summed
    after_s: float  # then weights are updated and gathered

    @cached_property
    def step_s(self) -> float:
        return float(max(self.end_s.max(), self.summed_s.max())) + self.after_s


def order_of(chosen: Configuration, number: int) -> Order:
    """The order of a schedule with ``number`` micro-batches."""
    ranks, v = chosen.pipeline, chosen.stages_per_device
    total = number * v
    if 2 * total * ranks > MOST_PASSES:
        raise InvalidInputError(
            f"a schedule of {2 * total * ranks} passes, the limit is {MOST_PASSES}.", field="batch"
        )
    forwards = np.arange(total)
    chunk = forwards % (ranks * v) // ranks
    micro_batch = forwards // (ranks * v) * ranks + forwards % ranks if v > 1 else forwards
    chunk = chunk if v > 1 else np.zeros(total, np.int64)
    rows = []
    for rank in range(ranks):
        ahead = _ahead(chosen, rank, number)
        is_backward = np.zeros(2 * total, np.bool_)
        is_backward[2 * total - ahead :] = True
        is_backward[ahead + 1 : 2 * total - ahead : 2] = True
        which = np.where(is_backward, np.cumsum(is_backward), np.cumsum(~is_backward)) - 1
        turned = np.where(is_backward, v - 1 - chunk[which], chunk[which])
        rows.append((turned, micro_batch[which], is_backward))
    chunks, batches, backward = (np.array(one) for one in zip(*rows, strict=True))
    return Order(chunks.astype(np.int32), batches.astype(np.int32), backward)


def _ahead(chosen: Configuration, rank: int, number: int) -> int:
    """Forward passes before a rank alternates."""
    ranks, v = chosen.pipeline, chosen.stages_per_device
    if chosen.schedule == "gpipe":
        return number
    if v == 1:
        return min(number, ranks - rank - 1)
    return min(number * v, 2 * (ranks - rank - 1) + (v - 1) * ranks)


def chunk_layers(step: Step) -> np.ndarray:
    """[P, V, 3] layers of each chunk, by RECOMPUTE: of a rank's layers as equal numbers as can be."""
    v = step.chosen.stages_per_device
    found = np.zeros((len(step.layers), v, 3), np.int64)
    for rank, layers in enumerate(step.layers):
        kinds = np.repeat(np.arange(3), layers)
        for chunk in range(v):
            found[rank, chunk] = np.bincount(kinds[chunk::v], minlength=3)
    return found


def simulate(step: Step) -> Timeline:
    """When each pass of the step runs, and the memory that its activations take."""
    case, chosen, block = step.case, step.chosen, step.block
    number, order = chosen.micro_batches(case.batch), order_of(chosen, chosen.micro_batches(case.batch))
    layers = chunk_layers(step)
    shares = np.array([block.forward_share(kind) for kind in range(3)])
    forward_s = layers @ (shares * block.layer_s)
    backward_s = layers @ ((1.0 - shares) * block.layer_s)
    forward_s[-1, -1] += block.head_s / 3.0  # one product of three
    backward_s[-1, -1] += block.head_s * 2.0 / 3.0
    start_s, end_s = _simulate(
        order.chunk, order.micro_batch, order.is_backward, forward_s, backward_s, step.sent_s, number
    )
    sums = case.sums(chosen)
    if chosen.overlap:
        summed_s = np.array(
            [
                _summed_s(step, rank, order, layers[rank], backward_s[rank], end_s[rank])
                for rank in range(len(end_s))
            ]
        )
    else:
        summed_s = np.full(len(end_s), end_s.max() + sums.times * sums.sum_s)
    peaks = tuple(int(held_bytes(step, order, rank).max()) for rank in range(len(end_s)))
    after_s = sums.gathered_s + case.optimizer_s(chosen)
    return Timeline(order, start_s, end_s, peaks, summed_s, after_s)


def _summed_s(
    step: Step, rank: int, order: Order, layers: np.ndarray, backward_s: FloatArray, end_s: FloatArray
) -> float:
    """When all gradients of a rank are summed, one layer after the other once its backward pass is done.

    Args:
      layers: [V, 3] of its stages. ``backward_s``: [V] their backward passes.
      end_s: [E] of its passes.
    """
    sums, last = step.case.sums(step.chosen), step.chosen.micro_batches(step.case.batch) - 1
    is_summed = order.is_backward[rank] & ((order.micro_batch[rank] == last) | (sums.times > 1))
    counts = layers.sum(axis=1)
    head_s = step.block.head_s * 2.0 / 3.0 * (np.arange(len(counts)) == len(counts) - 1)
    each_s = (backward_s - head_s * (rank == step.chosen.pipeline - 1)) / counts
    done_s = [
        end - each_s[chunk] * np.arange(counts[chunk])  # the first layer of a stage is the last one done
        for chunk, end in zip(order.chunk[rank][is_summed], end_s[is_summed], strict=True)
    ]
    in_turn = np.sort(np.concatenate(done_s))
    behind = np.arange(len(in_turn), 0, -1) * (sums.sum_s / counts.sum())
    return float((in_turn + behind).max())


def held_bytes(step: Step, order: Order, rank: int) -> FloatArray:
    """[E] bytes of a device of a rank during each of its passes: states, what waits, and what is at work."""
    kept = (chunk_layers(step)[rank] @ np.array(step.block.kept_bytes))[order.chunk[rank]]
    waits = np.cumsum(np.where(order.is_backward[rank], -kept, kept)) + kept * order.is_backward[rank]
    last = len(step.layers) - 1
    working = working_bytes(step.block, step.layers[rank], is_last=rank == last)
    states = step.case.state_bytes(step.chosen, sum(step.layers[rank]), is_end=rank in (0, last))
    held: FloatArray = states + waits + working
    return held


@compiled
def _simulate(
    chunk: IntArray,
    micro_batch: IntArray,
    is_backward: BoolArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
    sent_s: float,
    number: int,
) -> tuple[FloatArray, FloatArray]:
    """[P, E] start and end of each pass: as early as its rank and what it waits for allow."""
    ranks, passes = chunk.shape
    v = forward_s.shape[1]
    stages = ranks * v
    done = np.full((2, stages, number), -1.0)
    start, end = np.zeros((ranks, passes)), np.zeros((ranks, passes))
    at = np.zeros(ranks, np.int64)
    free = np.zeros(ranks)
    left, moved = ranks * passes, True
    while left and moved:
        moved = False
        for rank in range(ranks):
            while at[rank] < passes:
                i = at[rank]
                c, mb = chunk[rank, i], micro_batch[rank, i]
                stage = c * ranks + rank
                ready = 0.0
                if is_backward[rank, i]:
                    took, way, last = backward_s[rank, c], 1, stage == stages - 1
                    ready = done[0, stage, mb] if last else done[1, stage + 1, mb]
                else:
                    took, way, last = forward_s[rank, c], 0, stage == 0
                    ready = 0.0 if last else done[0, stage - 1, mb]
                took += 0.0 if last else sent_s
                if ready < 0.0:
                    break
                start[rank, i] = max(free[rank], ready)
                free[rank] = end[rank, i] = start[rank, i] + took
                done[way, stage, mb] = end[rank, i]
                at[rank] += 1
                left -= 1
                moved = True
    return start, end
