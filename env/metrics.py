"""What an evaluation answers: every term of the interval, not only the maximum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Metrics:
    """The cost of one plan (design section 5).

    Axes: ``D`` chips, ``L`` links: the target's links in order, then host in, host out.
    """

    interval_s: float  # steady-state time between two inferences
    throughput_per_s: float  # 1 / interval_s
    latency_s: float  # longest path of one sample through kernels and transfers
    makespan_s: float  # one execution alone, links as resources
    bottleneck: str  # "chip 3 compute", "link 2->3", "host in", "host out", …
    compute_s: NDArray[np.float64]  # [D]
    link_s: NDArray[np.float64]  # [L]
    stream_bytes: NDArray[np.int64]  # [D] weights streamed from the host each inference
    peak_bytes: NDArray[np.int64]  # [D] activations at their peak
    weight_bytes: NDArray[np.int64]  # [D] weights resident
    valid: bool
    reason: str  # why the plan is invalid; empty where it is valid
