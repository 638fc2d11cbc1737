"""What a page shows of a training step: its ranks, where its time goes, its passes and its memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.parallel.plans.lines import TERMS, gains, kinds_text
from go_opt.parallel.schedule import Timeline, held_bytes, simulate
from go_opt.parallel.step import Step


class Memory(NamedTuple):
    """Of a device of a rank, over the step."""

    begin_s: FloatArray  # [E] of its passes
    held_bytes: FloatArray  # [E] during each
    peak_bytes: int
    state_bytes: int  # weights, gradients and moments


class Drawing(NamedTuple):
    """Rows as JSON types, times of the timeline in nanoseconds."""

    step: Step
    simulated_s: float
    ranks: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    helps: list[dict[str, Any]]
    timeline: dict[str, Any]
    memory: list[Memory]


def drawing_of(step: Step, most_ranks: int, most_passes: int) -> Drawing:
    """The drawing, with passes of at most so many ranks, and so many passes of all."""
    timeline = simulate(step)
    numbers = range(len(step.layers))
    held = [_memory(step, timeline, rank) for rank in numbers]
    return Drawing(
        step,
        timeline.step_s,
        [_rank(step, rank, held[rank].state_bytes) for rank in numbers],
        [
            {"name": TERMS[name], "seconds": seconds, "share": seconds / step.step_s}
            for name, seconds in step.terms_s.items()
            if seconds > 0
        ],
        [
            {"change": gain.what, "seconds": gain.step_s, "share": gain.step_s / step.step_s}
            for gain in gains(step)
        ],
        _timeline(step, timeline, most_ranks, most_passes),
        held,
    )


def _rank(step: Step, rank: int, state_bytes: int) -> dict[str, Any]:
    count, seconds, slowest_s = sum(step.layers[rank]), step.rank_s[rank], max(step.rank_s)
    return {
        "name": f"rank {rank}",
        "devices": step.chosen.devices // step.chosen.pipeline,
        "layers": f"{count} layer{'s' * (count > 1)}: {kinds_text(step.layers[rank])} recomputed",
        "seconds": seconds,
        "load": seconds / slowest_s,
        "is_slowest": seconds == slowest_s > min(step.rank_s),
        "state_bytes": state_bytes,
        "other_bytes": step.memory_bytes[rank] - state_bytes,
        "limit_bytes": step.case.memory_bytes,
    }


def _timeline(step: Step, timeline: Timeline, most_ranks: int, most_passes: int) -> dict[str, Any]:
    """Passes of ranks evenly apart, the sums of their gradients and the update."""
    order, each = timeline.order, timeline.order.chunk.shape[1]
    number = min(most_ranks, max(most_passes // each, 1), len(step.layers))
    ranks = np.unique(np.linspace(0, len(step.layers) - 1, number).round().astype(int))
    drawn = np.ix_(ranks, np.arange(min(each, most_passes)))
    rows = np.repeat(np.arange(len(ranks)), drawn[1].size)
    end_s, last_s = timeline.step_s, timeline.end_s.max(axis=1)
    update_s = np.full(len(ranks), end_s - timeline.after_s)
    return {
        "rows": [{"name": f"rank {rank}", "stage": rank} for rank in ranks.tolist()],
        "passes": {
            "row": rows.tolist(),
            "begin_ns": _ns(timeline.start_s[drawn].ravel()),
            "end_ns": _ns(timeline.end_s[drawn].ravel()),
            "inference": order.micro_batch[drawn].ravel().tolist(),
            "stage": (order.chunk[drawn] * len(step.layers) + ranks[:, None]).ravel().tolist(),
            "back": order.is_backward[drawn].ravel().astype(int).tolist(),
        },
        "ends": {
            "row": [*range(len(ranks))] * 2,
            "begin_ns": _ns(np.concatenate([last_s[ranks], update_s])),
            "end_ns": _ns(np.concatenate([timeline.summed_s[ranks], np.full(len(ranks), end_s)])),
        },
        "end_ns": _ns(np.array([end_s]))[0],
        "passes_left_out": each - drawn[1].size,
    }


def _memory(step: Step, timeline: Timeline, rank: int) -> Memory:
    is_end = rank in (0, len(step.layers) - 1)
    states = step.case.state_bytes(step.chosen, sum(step.layers[rank]), is_end=is_end)
    held = held_bytes(step, timeline.order, rank)
    return Memory(timeline.start_s[rank], held, timeline.peak_bytes[rank], int(states))


def _ns(seconds: FloatArray) -> list[int]:
    found: list[int] = np.rint(seconds * 1e9).astype(np.int64).tolist()
    return found
