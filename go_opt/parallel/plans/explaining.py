"""What would make a training step faster, and what a page shows of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.parallel.block import Machine
from go_opt.parallel.configuration import RECOMPUTE, Configuration
from go_opt.parallel.schedule import Timeline, held_bytes, simulate
from go_opt.parallel.search import candidate, solve
from go_opt.parallel.step import Case, Layers, Step

_LESS: Final = 1.0 - 1e-9
TERMS: Final = {
    "compute_s": "kernels, forwards and backwards",
    "recompute_s": "kernels that run again",
    "host_s": "waiting for the host",
    "collectives_s": "collectives of tensor and expert parallelism",
    "bubble_s": "idle in the pipeline",
    "messages_s": "messages between stages",
    "reduction_s": "gradients and weights among replicas",
    "optimizer_s": "update of the weights",
}


class Gain(NamedTuple):
    """A change, and the step with it."""

    what: str
    step_s: float


def gains(step: Step) -> list[Gain]:
    """Each change with the seconds of the step with it, the largest gain first."""
    case, chosen = step.case, step.chosen
    kind, (within, *among) = case.machine.target.kinds[0], case.machine.target.levels

    def on(**fields: Any) -> Case:
        return replace(case, machine=Machine(replace(case.machine.target, **fields)))

    roomy = on(kinds=(replace(kind, sram_bytes=int(1.1 * kind.sram_bytes)),))
    found = [Gain(what, Step(on(**fields), chosen, step.layers).step_s) for what, fields in _changes(case)]
    if chosen.pipeline > 1:
        found.append(Gain("no bubble", step.step_s - step.terms_s["bubble_s"]))
    now_s, roomy_s = (_divided_s(one, chosen) for one in (case, roomy))
    found.append(Gain("other layers and recomputation on its ranks", now_s))
    if roomy_s < now_s:
        found.append(Gain("a tenth more memory, layers divided anew", roomy_s))
    if among and chosen.micro_batches(case.batch) % (2 * chosen.pipeline) == 0:
        larger, more = on(levels=(within, replace(among[0], size=2 * among[0].size))), 2 * chosen.data
        wider = Step(larger, replace(chosen, data=more), step.layers)
        found.append(Gain("twice the nodes, as replicas", wider.step_s))
    return sorted((one for one in found if one.step_s < step.step_s * _LESS), key=lambda one: one.step_s)


def _divided_s(case: Case, chosen: Configuration) -> float:
    """The step with the best layers and recomputation on each rank; infinite if none fits."""
    found = solve(candidate(case, chosen), math.inf)
    return math.inf if found is None else found.step_s


def _changes(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes of the target: other values of its fields."""
    target = case.machine.target
    kind, (within, *among) = target.kinds[0], target.levels

    def twice(row: Any, *names: str) -> Any:
        return replace(row, **{name: 2.0 * getattr(row, name) for name in names})

    rates = {name: 2.0 * rate for name, rate in kind.matrix_flops_per_s.items()}
    yield "twice the rate of products", {"kinds": (replace(kind, matrix_flops_per_s=rates),)}
    yield "twice the bandwidth of the memory", {"kinds": (twice(kind, "sram_bytes_per_s"),)}
    faster = tuple(twice(one, "link_bytes_per_s", "copy_bytes_per_s") for one in target.collectives)
    levels = (twice(within, "rate_bytes_per_s"), *among)
    yield "twice the rate within nodes", {"collectives": faster, "levels": levels}
    if among:
        yield "twice the rate among nodes", {"levels": (within, twice(among[0], "rate_bytes_per_s"))}
    yield "a host that takes no time", {"levels": (replace(within, host_s_per_layer=0.0), *among)}


def kinds_text(layers: Layers) -> str:
    """What layers of a rank recompute: ``none``, or ``9 none, 3 full``."""
    kinds = [(n, name) for n, name in zip(layers, RECOMPUTE, strict=True) if n]
    return kinds[0][1] if len(kinds) == 1 else ", ".join(f"{n} {name}" for n, name in kinds)


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
