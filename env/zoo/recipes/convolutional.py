"""Convolutional networks: Keras applications."""

from __future__ import annotations

from functools import partial
from typing import Final

from go_opt.env.zoo.exporters import keras_graph
from go_opt.env.zoo.recipe import Recipe


def _application(name: str, family: str, application: str, pixels: int) -> Recipe:
    model = f"{application}, 1x{pixels}x{pixels}x3"
    return Recipe(name, family, "keras", model, partial(keras_graph, application, pixels))


RECIPES: Final = (
    _application("densenet121", "densenet", "DenseNet121", 224),
    _application("inception_v3", "inception", "InceptionV3", 299),
    _application("mobilenet_v2", "mobilenet", "MobileNetV2", 224),
    _application("nasnet_large", "nasnet", "NASNetLarge", 331),
    _application("nasnet_mobile", "nasnet", "NASNetMobile", 224),
    _application("resnet50", "resnet", "ResNet50", 224),
)
