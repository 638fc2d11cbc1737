"""Agents: what proposes orders and placements for the solver to make valid.

The learned network is behind a door of its own, :mod:`go_opt.agents.networks`: it loads JAX.
"""

from go_opt.agents.features import GraphFeatures, graph_features
from go_opt.agents.genetic import genetic_search
from go_opt.agents.orders import fixed_orders, kernel_features, random_orders
from go_opt.agents.padding import Bucket, PaddedGraph, ops_to_rows, pad, rows_to_ops, smallest_bucket

__all__ = [
    "Bucket",
    "GraphFeatures",
    "PaddedGraph",
    "fixed_orders",
    "genetic_search",
    "graph_features",
    "kernel_features",
    "ops_to_rows",
    "pad",
    "random_orders",
    "rows_to_ops",
    "smallest_bucket",
]
