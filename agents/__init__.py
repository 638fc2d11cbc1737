"""What learns: features of graphs, the policy that proposes plans, and its training.

The learned network is behind a door of its own, :mod:`go_opt.agents.networks`: it loads JAX.
"""

from go_opt.agents.features import GraphFeatures, graph_features
from go_opt.agents.padding import Bucket, PaddedGraph, ops_to_rows, pad, rows_to_ops, smallest_bucket

__all__ = [
    "Bucket",
    "GraphFeatures",
    "PaddedGraph",
    "graph_features",
    "ops_to_rows",
    "pad",
    "rows_to_ops",
    "smallest_bucket",
]
