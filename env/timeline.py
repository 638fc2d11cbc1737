"""What ran when: kernels on chips, transfers on links, memory in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from go_opt.env.metrics import Fidelity


@dataclass(frozen=True)
class Span:
    """One kernel on a chip, or one transfer on a link."""

    resource: int  # chip, or link in the order of ``Metrics.link_s``
    name: str  # op types of the kernel, or the tensor
    inference: int
    start_s: float
    end_s: float
    details: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrow:
    """A tensor from where it was made, or sent, to where it was sent, or read."""

    name: str
    source_kind: Literal["chip", "link"]
    source: Span
    destination_kind: Literal["chip", "link"]
    destination: Span


@dataclass(frozen=True, eq=False)
class Timeline:
    """A few inferences of one plan."""

    fidelity: Fidelity
    interval_s: float
    kernels: tuple[Span, ...]
    transfers: tuple[Span, ...]
    arrows: tuple[Arrow, ...]
    memory: tuple[tuple[NDArray[np.float64], NDArray[np.int64]], ...]  # [D] times and bytes held from then on
