"""Synthetic branchy graphs to pretrain on, beside the zoo: ``generate_graph(seed)``."""

from go_opt.agents.generator.generate import generate_graph
from go_opt.agents.generator.structures import FAMILIES

__all__ = ["FAMILIES", "generate_graph"]
