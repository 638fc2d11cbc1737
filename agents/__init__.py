"""Agents: what proposes orders and placements for the solver to make valid."""

from go_opt.agents.genetic import genetic_search
from go_opt.agents.orders import fixed_orders, kernel_features, random_orders

__all__ = ["fixed_orders", "genetic_search", "kernel_features", "random_orders"]
