"""Convolutional networks that classify images: Keras applications, transformers, the models inside onnx."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from go_opt.model.graph import Graph
from tests.zoo_recipes.exporters import flax_graph, keras_graph, light_graph, transformers_graph
from tests.zoo_recipes.recipe import Recipe


def _application(name: str, family: str, application: str, pixels: int, batch: int = 1) -> Recipe:
    model = f"{application}, {batch}x{pixels}x{pixels}x3"
    return Recipe(name, family, "keras", model, partial(keras_graph, application, pixels, batch))


def _light(name: str, family: str) -> Recipe:
    return Recipe(name, family, "onnx", f"light_{name}, 1x3x224x224", partial(light_graph, name))


def _classifier(name: str, family: str, kind: str, pixels: int = 224, **settings: Any) -> Recipe:
    """``{kind}ForImageClassification`` of transformers; ``settings`` where its configuration is another."""
    build = partial(_classifier_graph, kind, pixels, settings)
    return Recipe(name, family, "transformers", f"{kind}ForImageClassification, 1x3x{pixels}x{pixels}", build)


def _classifier_graph(kind: str, pixels: int, settings: dict[str, Any]) -> Graph:
    image = {"pixel_values": np.zeros((1, 3, pixels, pixels), np.float32)}
    settings = {"num_labels": 1000, **settings}
    return transformers_graph(f"{kind}ForImageClassification", f"{kind}Config", settings, image)


def _alphazero() -> Graph:
    return flax_graph("alphazero.AlphaZero", (), [np.zeros((1, 19, 19, 17), np.float32)])


_CONVNEXT_BASE: Final[dict[str, Any]] = {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024]}

RECIPES: Final = (
    Recipe("alphazero", "resnet", "flax", "models.alphazero.AlphaZero, 1x19x19x17", _alphazero),
    _classifier("bit_r50x1", "resnet", "Bit", pixels=448),
    _classifier("convnext_base", "convnext", "ConvNext", **_CONVNEXT_BASE),
    _classifier("convnext_tiny", "convnext", "ConvNext"),
    _classifier("convnext_v2_base", "convnext", "ConvNextV2", **_CONVNEXT_BASE),
    _application("densenet121", "densenet", "DenseNet121", 224),
    _application("densenet169", "densenet", "DenseNet169", 224),
    _application("densenet201", "densenet", "DenseNet201", 224),
    _application("efficientnet_b0", "efficientnet", "EfficientNetB0", 224),
    _application("efficientnet_b4", "efficientnet", "EfficientNetB4", 380),
    _application("efficientnet_v2_l", "efficientnet", "EfficientNetV2L", 480),
    _application("efficientnet_v2_s", "efficientnet", "EfficientNetV2S", 384),
    _classifier("hgnet_v2_b4", "hgnet", "HGNetV2"),
    _application("inception_resnet_v2", "inception", "InceptionResNetV2", 299),
    _light("inception_v1", "inception"),
    _light("inception_v2", "inception"),
    _application("inception_v3", "inception", "InceptionV3", 299),
    _application("inception_v3_b32", "inception", "InceptionV3", 299, batch=32),
    _application("inception_v3_b64", "inception", "InceptionV3", 299, batch=64),
    _application("mobilenet_v1", "mobilenet", "MobileNet", 224),
    _application("mobilenet_v2", "mobilenet", "MobileNetV2", 224),
    _application("mobilenet_v3_large", "mobilenet", "MobileNetV3Large", 224),
    _application("mobilenet_v3_small", "mobilenet", "MobileNetV3Small", 224),
    _classifier("mobilevit_s", "mobilevit", "MobileViT", pixels=256),
    _classifier("mobilevit_v2_100", "mobilevit", "MobileViTV2", pixels=256),
    _application("nasnet_large", "nasnet", "NASNetLarge", 331),
    _application("nasnet_mobile", "nasnet", "NASNetMobile", 224),
    _classifier(
        "poolformer_m48",
        "poolformer",
        "PoolFormer",
        depths=[8, 8, 24, 8],
        hidden_sizes=[96, 192, 384, 768],
    ),
    _classifier("poolformer_s12", "poolformer", "PoolFormer"),
    _classifier(
        "regnet_x_160",
        "regnet",
        "RegNet",
        layer_type="x",
        depths=[2, 6, 13, 1],
        hidden_sizes=[256, 512, 896, 2048],
        groups_width=128,
    ),
    _classifier("regnet_y_040", "regnet", "RegNet"),
    _application("resnet101_v2", "resnet", "ResNet101V2", 224),
    _application("resnet152", "resnet", "ResNet152", 224),
    _classifier(
        "resnet34",
        "resnet",
        "ResNet",
        layer_type="basic",
        depths=[3, 4, 6, 3],
        hidden_sizes=[64, 128, 256, 512],
    ),
    _application("resnet50", "resnet", "ResNet50", 224),
    _light("shufflenet", "shufflenet"),
    _light("squeezenet", "squeezenet"),
    _classifier("swiftformer_xs", "swiftformer", "SwiftFormer"),
    _application("vgg16", "plain_cnn", "VGG16", 224),
    _application("xception", "xception", "Xception", 299),
)
