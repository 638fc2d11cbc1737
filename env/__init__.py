"""The environment: targets, costs, and the analytical model that evaluates plans."""

from go_opt.env.metrics import Metrics
from go_opt.env.target import Target, load_target, parse_target, target_names

__all__ = ["Metrics", "Target", "load_target", "parse_target", "target_names"]
