"""The outputs of a policy for one graph, in the graph's own order of ops."""

from __future__ import annotations

from typing import NamedTuple

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
