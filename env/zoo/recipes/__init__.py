"""How each graph of the zoo is made, one module for each kind of model."""

from typing import Final

from go_opt.env.zoo.recipe import Recipe
from go_opt.env.zoo.recipes import (
    convolutional,
    diffusion,
    graph_nets,
    recommendation,
    recurrent,
    speech,
    text,
    vision,
)

RECIPES: Final[tuple[Recipe, ...]] = (
    *convolutional.RECIPES,
    *diffusion.RECIPES,
    *graph_nets.RECIPES,
    *recommendation.RECIPES,
    *recurrent.RECIPES,
    *speech.RECIPES,
    *text.RECIPES,
    *vision.RECIPES,
)
