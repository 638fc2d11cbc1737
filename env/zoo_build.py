"""Builds the graphs that the zoo ships: ``python -m go_opt.env.zoo_build [NAME ...]``.

Needs the extra ``zoo`` (``pip install go-opt[zoo]``). Models get random weights, nothing
is downloaded, and the same library versions give the same bytes.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from go_opt.dtypes import size_bytes
from go_opt.env.zoo import INDEX_NAME, Split, ZooEntry, graph_file_name, zoo_entries
from go_opt.errors import ModelError
from go_opt.frontends import from_jax, from_onnx
from go_opt.graph import WEIGHT, Graph
from go_opt.wire import graph_to_proto

_FOLDER: Final = Path(__file__).parent / "zoo_data"

# A family is in one split, so that no test graph has a sibling among the training graphs.
_FAMILY_SPLITS: Final[Mapping[str, Split]] = {
    "bert": "train",
    "densenet": "train",
    "mobilenet": "train",
    "resnet": "train",
    "rnn": "train",
    "swin": "train",
    "t5": "train",
    "inception": "validation",
    "vit": "validation",
    "gpt": "test",
    "nasnet": "test",
    "unet": "test",
}


@dataclass(frozen=True)
class Recipe:
    """How one graph of the zoo is made."""

    name: str
    family: str
    library: str  # the distribution the model is from or written in; its version goes into the source
    model: str  # the model in that library, with its input
    build: Callable[[], Graph]


def _keras(application: str, pixels: int) -> Graph:
    os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported
    import keras

    keras.utils.clear_session()  # or layers are numbered on from the previous model's
    model = getattr(keras.applications, application)(weights=None)
    image = np.zeros((1, pixels, pixels, 3), np.float32)
    return from_jax(lambda x: model(x, training=False), image)


def _transformers(
    model: str, config: str, settings: Mapping[str, Any], inputs: Mapping[str, NDArray]
) -> Graph:
    import torch
    import transformers

    # The fused attention exports as the same products, plus guards against rows that are all masked.
    sizes = getattr(transformers, config)(attn_implementation="eager", **settings)
    network = getattr(transformers, model)(sizes).eval()
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        torch.onnx.export(network, (), path, kwargs=tensors, dynamo=True, external_data=True, verbose=False)
        return from_onnx(path)


def _unet() -> Graph:
    from flax import nnx

    from go_opt.env.zoo_models import DiffusionUNet

    model = DiffusionUNet(nnx.Rngs(0))
    return from_jax(model.__call__, np.zeros((1, 32, 32, 3), np.float32), np.zeros(1, np.float32))


def _rnn(tokens: int) -> Graph:
    from flax import nnx

    from go_opt.env.zoo_models import LstmLanguageModel

    model = LstmLanguageModel(vocabulary=10_000, width=2048, layers=2, rngs=nnx.Rngs(0))
    return from_jax(model.__call__, np.zeros((1, tokens), np.int32))


def _application(name: str, family: str, application: str, pixels: int) -> Recipe:
    model = f"{application}, 1x{pixels}x{pixels}x3"
    return Recipe(name, family, "keras", model, partial(_keras, application, pixels))


def _tokens(*names: str) -> dict[str, NDArray]:
    return dict.fromkeys(names, np.zeros((1, 128), np.int64))


_IMAGE: Final = {"pixel_values": np.zeros((1, 3, 224, 224), np.float32)}

RECIPES: Final[tuple[Recipe, ...]] = (
    _application("densenet121", "densenet", "DenseNet121", 224),
    _application("inception_v3", "inception", "InceptionV3", 299),
    _application("mobilenet_v2", "mobilenet", "MobileNetV2", 224),
    _application("nasnet_large", "nasnet", "NASNetLarge", 331),
    _application("nasnet_mobile", "nasnet", "NASNetMobile", 224),
    _application("resnet50", "resnet", "ResNet50", 224),
    Recipe(
        "bert_base",
        "bert",
        "transformers",
        "BertModel, 128 tokens",
        partial(_transformers, "BertModel", "BertConfig", {}, _tokens("input_ids", "attention_mask")),
    ),
    Recipe(
        "gpt2",
        "gpt",
        "transformers",
        "GPT2LMHeadModel, 128 tokens",
        partial(_transformers, "GPT2LMHeadModel", "GPT2Config", {"use_cache": False}, _tokens("input_ids")),
    ),
    Recipe(
        "swin_t",
        "swin",
        "transformers",
        "SwinForImageClassification, 1x3x224x224",
        partial(_transformers, "SwinForImageClassification", "SwinConfig", {"num_labels": 1000}, _IMAGE),
    ),
    Recipe(
        "t5_small",
        "t5",
        "transformers",
        "T5ForConditionalGeneration, 128 tokens in and out",
        partial(
            _transformers,
            "T5ForConditionalGeneration",
            "T5Config",
            {"use_cache": False},
            _tokens("input_ids", "decoder_input_ids"),
        ),
    ),
    Recipe(
        "vit_b16",
        "vit",
        "transformers",
        "ViTForImageClassification, 1x3x224x224",
        partial(_transformers, "ViTForImageClassification", "ViTConfig", {"num_labels": 1000}, _IMAGE),
    ),
    Recipe("rnnlm_2x2048", "rnn", "flax", "zoo_models.LstmLanguageModel, 192 tokens", partial(_rnn, 192)),
    Recipe("unet", "unet", "flax", "zoo_models.DiffusionUNet, 1x32x32x3", _unet),
)


def describe(recipe: Recipe, graph: Graph) -> ZooEntry:
    """The entry of the index for a recipe's graph."""
    weights = graph.tensor_kind == WEIGHT
    return ZooEntry(
        name=recipe.name,
        family=recipe.family,
        split=_FAMILY_SPLITS[recipe.family],
        ops=graph.num_ops,
        edges=graph.num_edges,
        flops=math.fsum(graph.op_flops),
        weight_bytes=int(size_bytes(graph.tensor_elements[weights], graph.tensor_dtype[weights]).sum()),
        source=f"{recipe.library} {version(recipe.library)} {recipe.model}",
        fingerprint=graph.fingerprint,
    )


def build(recipe: Recipe) -> ZooEntry:
    """Make one graph and write its file."""
    graph = replace(recipe.build(), name=recipe.name)
    data = graph_to_proto(graph).SerializeToString(deterministic=True)
    packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    (_FOLDER / graph_file_name(recipe.name)).write_bytes(packed)
    return describe(recipe, graph)


def index_text(entries: Iterable[ZooEntry]) -> str:
    """The index: a table for each entry, ordered by name."""
    tables = [_toml_table(entry) for entry in sorted(entries, key=lambda entry: entry.name)]
    return "# Written by `python -m go_opt.env.zoo_build`.\n\n" + "\n".join(tables)


def _toml_table(entry: ZooEntry) -> str:
    fields = asdict(entry)
    # A JSON string or number is also one of TOML.
    lines = [f"{field} = {json.dumps(value)}" for field, value in fields.items() if field != "name"]
    return "\n".join([f"[{entry.name}]", *lines, ""])


def _chosen(names: Sequence[str]) -> list[Recipe]:
    recipes = {recipe.name: recipe for recipe in RECIPES}
    unknown = [name for name in names if name not in recipes]
    if unknown:
        raise ModelError(f"no recipe is called {unknown[0]!r}; there are {', '.join(recipes)}.")
    return [recipes[name] for name in names] or list(RECIPES)


def _kept_entries() -> dict[str, ZooEntry]:
    if not (_FOLDER / INDEX_NAME).is_file():
        return {}
    names = {recipe.name for recipe in RECIPES}
    return {entry.name: entry for entry in zoo_entries() if entry.name in names}


def main(names: Sequence[str]) -> None:
    """Build the named graphs, or all of them."""
    chosen = _chosen(names)
    entries = _kept_entries()
    for recipe in chosen:
        entry = entries[recipe.name] = build(recipe)
        (_FOLDER / INDEX_NAME).write_text(index_text(entries.values()), encoding="utf-8")
        print(
            f"{entry.name}: {entry.ops} ops, {entry.edges} edges, {entry.flops / 1e9:.2f} GFLOP", flush=True
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ModelError as error:
        sys.exit(f"error: {error}")
