"""A recipe: how one graph of the zoo is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from go_opt.model.graph import Graph


@dataclass(frozen=True)
class Recipe:
    """How one graph of the zoo is made. Random weights, nothing downloaded."""

    name: str
    family: str  # one of data/families.toml
    library: str  # the distribution the model is from or written in; its version goes into the source
    model: str  # the model in that library, with its input
    build: Callable[[], Graph]
