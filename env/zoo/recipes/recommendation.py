"""TODO"""

from __future__ import annotations

from typing import Final

from go_opt.env.zoo.recipe import Recipe

RECIPES: Final[tuple[Recipe, ...]] = ()
