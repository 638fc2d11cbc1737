"""The outputs of a policy for one graph, in the graph's own order of ops."""

from __future__ import annotations

from typing import NamedTuple

from go_opt.common.arrays import FloatArray


class Outputs(NamedTuple):
    """The network's outputs for one graph, in its own order of ops; or their gradient.

    Axes: ``N`` ops, ``D`` chips, ``F`` exploration features.
    """

    slice_logits: FloatArray  # [N, D] for slicings
    sample_logits: FloatArray  # [N, D] for placements op by op
    cut_score: FloatArray  # [N]
    schedule_key: FloatArray  # [N]
    fusion_key: FloatArray  # [N]
    exploration_log_std: FloatArray  # [2, F] schedule, fusion

    def logits(self, mode: str) -> FloatArray:
        """[N, D] those for a mode of decoding: op by op, or slices."""
        return self.sample_logits if mode.startswith(("sample", "fix")) else self.slice_logits
