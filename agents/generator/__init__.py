"""Synthetic branchy graphs for pretraining: ``generate_graph(seed)``."""

from go_opt.agents.generator.generate import generate_graph
from go_opt.agents.generator.structures import FAMILIES

__all__ = ["FAMILIES", "generate_graph"]
