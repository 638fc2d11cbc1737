"""A policy: a network with parameters, asked about one graph at a time. Importing this imports JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from go_opt.agents.decoding.outputs import Outputs as Outputs
from go_opt.agents.inputs.features import GraphFeatures
from go_opt.agents.inputs.padding import Bucket, ops_to_rows, pad, rows_to_ops, smallest_bucket
from go_opt.agents.networks import PolicyConfig, PolicyOutput, policy_outputs


@dataclass(frozen=True, eq=False)
class Policy:
    """The network of ``config`` with ``parameters``."""

    config: PolicyConfig
    parameters: nnx.State

    def __call__(self, features: GraphFeatures) -> Outputs:
        """What it says of a graph; compiles once for each bucket."""
        padded = pad(features, smallest_bucket(features))
        return to_ops(features, policy_outputs(self.config, self.parameters, padded))


def to_ops(features: GraphFeatures, rows: PolicyOutput) -> Outputs:
    """The outputs of one padded graph, by op; what stands in the padding is left out."""
    *by_row, log_std = (np.asarray(output, dtype=np.float64) for output in rows)
    placement, cut_score, schedule_key, fusion_key = (rows_to_ops(features, output) for output in by_row)
    return Outputs(placement[:, : features.num_chips], cut_score, schedule_key, fusion_key, log_std)


def to_rows(features: GraphFeatures, by_op: Outputs, bucket: Bucket) -> PolicyOutput:
    """The inverse of :func:`to_ops`, zeros in the padding: how gradients reach the network."""
    placement = np.zeros((bucket.ops, bucket.chips), dtype=np.float32)
    placement[:, : features.num_chips] = ops_to_rows(features, by_op.placement_logits, bucket)
    by_row = (ops_to_rows(features, output.astype(np.float32), bucket) for output in by_op[1:4])
    rows: tuple[Any, ...] = (placement, *by_row, by_op.exploration_log_std.astype(np.float32))
    return PolicyOutput(*rows)
