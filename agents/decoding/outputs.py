"""What a policy says of one graph, in the graph's own order of ops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Outputs(NamedTuple):
    """What the network says of one graph, in its own order of ops; or the gradient of that.

    Axes: ``N`` ops, ``D`` chips, ``F`` exploration features.
    """

    placement_logits: Array  # [N, D]
    cut_score: Array  # [N]
    schedule_key: Array  # [N]
    fusion_key: Array  # [N]
    exploration_log_std: Array  # [2, F] schedule, fusion
