"""The environment: targets, costs, and the analytical model that evaluates plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from go_opt.env.cost.tables import CostTables as CostTables
    from go_opt.env.cost.tables import cost_tables as cost_tables
    from go_opt.env.cost.tables import divided_tables as divided_tables
    from go_opt.env.evaluation import evaluate_plan as evaluate_plan
    from go_opt.env.kernels.fusion import fused_within_chips as fused_within_chips
    from go_opt.env.kernels.fusion import greedy_fusion as greedy_fusion
    from go_opt.env.kernels.fusion import is_one_loop as is_one_loop
    from go_opt.env.kernels.fusion import loop_roles as loop_roles
    from go_opt.env.kernels.fusion import priority_fusion as priority_fusion
    from go_opt.env.kernels.schedule import depth as depth
    from go_opt.env.kernels.schedule import height as height
    from go_opt.env.kernels.schedule import list_schedule as list_schedule
    from go_opt.env.model.analytical import BatchMetrics as BatchMetrics
    from go_opt.env.model.analytical import evaluate_batch as evaluate_batch
    from go_opt.env.model.metrics import Metrics as Metrics
    from go_opt.env.reward import INVALID_REWARD as INVALID_REWARD
    from go_opt.env.target import Target as Target
    from go_opt.env.target import load_target as load_target
    from go_opt.env.target import parse_target as parse_target
    from go_opt.env.target import shipped_target as shipped_target
    from go_opt.env.target import target_names as target_names
    from go_opt.env.target import target_text as target_text
    from go_opt.env.zoo import ZooEntry as ZooEntry
    from go_opt.env.zoo import load_zoo as load_zoo
    from go_opt.env.zoo import zoo_entries as zoo_entries
else:
    from go_opt.lazy_imports import lazy_imports

    __getattr__, __dir__, __all__ = lazy_imports(__name__)
