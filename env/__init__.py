"""The environment: targets, costs, and the analytical model that evaluates plans."""

from go_opt.env.cost import CostTables, cost_tables, divided_tables
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.kernels.fusion import fused_within_chips, greedy_fusion, is_one_loop, loop_roles
from go_opt.env.kernels.priority_fusion import priority_fusion
from go_opt.env.kernels.schedule import depth, height, list_schedule
from go_opt.env.model.analytical import BatchMetrics, evaluate_batch
from go_opt.env.model.metrics import Metrics
from go_opt.env.reward import INVALID_REWARD, reward
from go_opt.env.target import Target, load_target, parse_target, shipped_target, target_names, target_text
from go_opt.env.zoo import ZooEntry, load_zoo, zoo_entries

__all__ = [
    "INVALID_REWARD",
    "BatchMetrics",
    "CostTables",
    "Metrics",
    "Target",
    "ZooEntry",
    "cost_tables",
    "depth",
    "divided_tables",
    "evaluate_batch",
    "evaluate_plan",
    "fused_within_chips",
    "greedy_fusion",
    "height",
    "is_one_loop",
    "list_schedule",
    "load_target",
    "load_zoo",
    "loop_roles",
    "parse_target",
    "priority_fusion",
    "reward",
    "shipped_target",
    "target_names",
    "target_text",
    "zoo_entries",
]
