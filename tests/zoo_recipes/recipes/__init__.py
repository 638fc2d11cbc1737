"""How each graph of the zoo is made, one module for each kind of model."""

from typing import Final

from tests.zoo_recipes.recipe import Recipe
from tests.zoo_recipes.recipes import (
    convolutional,
    decode_steps,
    detection,
    diffusion,
    graph_nets,
    image_text,
    recommendation,
    recurrent,
    segmentation_cnn,
    speech,
    text,
    time_series,
    training_steps,
    vision,
)

RECIPES: Final[tuple[Recipe, ...]] = (
    *convolutional.RECIPES,
    *decode_steps.RECIPES,
    *detection.RECIPES,
    *diffusion.RECIPES,
    *graph_nets.RECIPES,
    *image_text.RECIPES,
    *recommendation.RECIPES,
    *recurrent.RECIPES,
    *segmentation_cnn.RECIPES,
    *speech.RECIPES,
    *text.RECIPES,
    *time_series.RECIPES,
    *training_steps.RECIPES,
    *vision.RECIPES,
)
