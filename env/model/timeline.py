"""The timeline of a plan: kernels on chips, transfers on links, memory in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.env.model.metrics import Fidelity, Metrics


@dataclass(frozen=True)
class Span:
    """One kernel on a chip, one wait of a chip, or one transfer on a link."""

    resource: int  # chip, or link in the order of ``Metrics.link_s``
    name: str  # op types of the kernel, or the tensor
    inference: int
    start_s: float
    end_s: float
    details: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrow:
    """A tensor between two spans: from its producer or a transfer to a transfer or its reader."""

    name: str
    source_kind: Literal["chip", "link"]
    source: Span
    destination_kind: Literal["chip", "link"]
    destination: Span


@dataclass(frozen=True, eq=False)
class Timeline:
    """A few inferences of one plan."""

    fidelity: Fidelity
    metrics: Metrics  # of the plan, in steady state
    kernels: tuple[Span, ...]
    waits: tuple[Span, ...]  # of chips, between kernels, for streamed weights
    transfers: tuple[Span, ...]
    arrows: tuple[Arrow, ...]
    # [D] times, and the bytes in use from then on: weights, double buffers, activations to the top address
    memory: tuple[tuple[FloatArray, LongArray], ...]
    is_deadlocked: bool = False  # the execution ended because nothing could proceed
