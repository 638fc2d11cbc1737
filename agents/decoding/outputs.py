"""The outputs of a policy for one graph, in the graph's own order of ops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from go_opt.agents.inputs.features import NUM_EXPLORED
from go_opt.common.arrays import FloatArray


class Outputs(NamedTuple):
    """The outputs of a policy for one graph, in its own order of ops; or their gradient.

    Axes: ``N`` ops, ``W`` features of the walk, ``F`` exploration features.
    """

    walk_weights: FloatArray  # [W]
    walk_head: FloatArray  # [N]
    schedule_key: FloatArray  # [N]
    fusion_key: FloatArray  # [N]
    exploration_log_std: FloatArray  # [2, F] schedule, fusion


def neutral_outputs(walk_weights: FloatArray, walk_head: FloatArray) -> Outputs:
    """Those of a policy whose network has no opinion: the default order and kernels, noise of spread one."""
    no_key = np.zeros(len(walk_head))
    return Outputs(walk_weights, walk_head, no_key, no_key, np.zeros((2, NUM_EXPLORED)))
