"""The independent check of a plan of a training step: plain loops over ranks, passes and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from go_opt.common.units import format_bytes
from go_opt.errors import InvalidInputError
from go_opt.parallel.configuration import Configuration, check_configuration
from go_opt.parallel.schedule import Timeline, simulate
from go_opt.parallel.step import Step
from go_opt.solver import Violation

_TOLERANCE_S = 1e-9


def check_step(step: Step) -> list[Violation]:
    """What the plan breaks: layers, degrees, memory of ranks, order of passes, sums of gradients."""
    found = check_division(step)
    if found:
        return found
    chosen, timeline = step.chosen, simulate(step)
    return [*_memory(step, timeline), *check_passes(step, timeline), *check_sums(chosen, replicas(chosen))]


def check_division(step: Step) -> list[Violation]:
    """What of degrees and layers the model, the batch and the devices cannot be divided by."""
    case = step.case
    try:
        check_configuration(step.chosen, case.model, case.machine.devices, case.batch)
    except InvalidInputError as error:
        return [Violation("configuration", str(error))]
    return [*_layers(step)]


def _layers(step: Step) -> Iterator[Violation]:
    held = sum(map(sum, step.layers))
    if held != step.case.model.layers:
        yield Violation("layers", f"ranks have {held} layers of {step.case.model.layers}.")
    if len(step.layers) != step.chosen.pipeline:
        yield Violation("layers", f"{len(step.layers)} ranks are given, pipeline={step.chosen.pipeline}.")
    for rank, layers in enumerate(step.layers):
        if not sum(layers):
            yield Violation("layers", f"rank {rank} has no layer.")
        elif sum(layers) < step.chosen.stages_per_device:
            yield Violation("layers", f"rank {rank} has fewer layers than stages.")


def _memory(step: Step, timeline: Timeline) -> Iterator[Violation]:
    limit = step.case.memory_bytes
    for rank, used in enumerate(timeline.peak_bytes):
        if used > limit:
            yield Violation("memory", f"rank {rank} needs {format_bytes(used)} of {format_bytes(limit)}.")


def check_passes(step: Step, timeline: Timeline) -> Iterator[Violation]:
    """That each stage runs each micro-batch once in each direction, behind what it needs."""
    ranks, v = step.chosen.pipeline, step.chosen.stages_per_device
    number, order = step.chosen.micro_batches(step.case.batch), timeline.order
    ends: dict[tuple[int, int, bool], tuple[float, float]] = {}
    for rank in range(ranks):
        free_s = 0.0
        rows = zip(
            order.chunk[rank].tolist(),
            order.micro_batch[rank].tolist(),
            order.is_backward[rank].tolist(),
            timeline.start_s[rank].tolist(),
            timeline.end_s[rank].tolist(),
            strict=True,
        )
        for chunk, micro_batch, is_backward, start_s, end_s in rows:
            key = chunk * ranks + rank, micro_batch, is_backward
            if key in ends:
                yield Violation("passes", f"{_named(key)} runs twice.")
            if start_s < free_s - _TOLERANCE_S:
                yield Violation("passes", f"{_named(key)} begins while rank {rank} is busy.")
            ends[key] = start_s, end_s
            free_s = end_s
    for stage in range(ranks * v):
        for micro_batch in range(number):
            for is_backward in (False, True):
                key = stage, micro_batch, is_backward
                if key not in ends:
                    yield Violation("passes", f"{_named(key)} never runs.")
                    continue
                for need in _needs(key, ranks * v):
                    if need not in ends or ends[need][1] > ends[key][0] + _TOLERANCE_S:
                        yield Violation("passes", f"{_named(key)} begins before {_named(need)} ends.")


def _needs(key: tuple[int, int, bool], stages: int) -> list[tuple[int, int, bool]]:
    stage, micro_batch, is_backward = key
    if not is_backward:
        return [(stage - 1, micro_batch, False)] if stage else []
    behind = [(stage + 1, micro_batch, True)] if stage < stages - 1 else []
    return [(stage, micro_batch, False), *behind]


def _named(key: tuple[int, int, bool]) -> str:
    stage, micro_batch, is_backward = key
    return (
        f"the {'backward' if is_backward else 'forward'} pass of micro-batch {micro_batch} in stage {stage}"
    )


def replicas(chosen: Configuration) -> list[list[int]]:
    """Groups of devices whose gradients of the same parameters are summed; experts apart."""
    t, e, d = chosen.tensor, chosen.expert, chosen.data
    return [
        [tensor + t * (expert + e * (data + d * rank)) for data in range(d) for expert in range(e)]
        for rank in range(chosen.pipeline)
        for tensor in range(t)
    ]


def check_sums(chosen: Configuration, groups: list[list[int]]) -> Iterator[Violation]:
    """That each device is in one group, with one device of each share of the batch and its own parameters."""
    counts = Counter(device for group in groups for device in group)
    for device in range(chosen.devices):
        if counts[device] != 1:
            yield Violation("gradients", f"those of device {device} are summed {counts[device]} times.")
    for group in groups:
        t, shares = chosen.tensor, chosen.replicas
        places = {(device % t, device // (t * shares)) for device in group}
        if len(places) != 1:
            yield Violation("gradients", f"group {group[:4]} … sums those of different parameters.")
        if {device // t % shares for device in group} != set(range(shares)):
            yield Violation("gradients", f"group {group[:4]} … lacks a share of the batch.")
