"""Training steps as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from go_opt.common.units import format_bytes, format_duration
from go_opt.parallel.step import Step

_TERMS: Final = {
    "compute_s": "kernels, forwards and backwards",
    "recompute_s": "kernels that run again",
    "host_s": "waiting for the host",
    "collectives_s": "collectives of tensor and expert parallelism",
    "bubble_s": "idle in the pipeline",
    "messages_s": "messages between stages",
    "reduction_s": "gradients and weights among replicas",
    "optimizer_s": "update of the weights",
}


def step_lines(step: Step) -> Iterator[str]:
    """The step's time, its parts, and the memory of the fullest rank."""
    tokens_per_s = step.case.batch * step.case.model.sequence / step.step_s
    number = step.chosen.micro_batches(step.case.batch)
    yield f"step        {format_duration(step.step_s)} ({tokens_per_s:.4g} tokens/s), {number} micro-batches"
    for name, seconds in step.terms_s.items():
        if seconds > 0:
            share = seconds / step.step_s
            yield f"  {format_duration(seconds):>10}  {share:4.0%}  {_TERMS[name]}"
    most = max(step.memory_bytes)
    rank = step.memory_bytes.index(most)
    limit = format_bytes(step.case.machine.memory_bytes)
    yield f"memory      {format_bytes(most)} of {limit}, rank {rank} of {len(step.memory_bytes)}"
    if step.lacks:
        yield f"lacks       {' '.join(step.lacks[:4])}{' …' if len(step.lacks) > 4 else ''}"
