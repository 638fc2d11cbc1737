"""Ten models as exporters of torch write them, with random weights, for ``bench_rewrites.py rivals``.

Run: PYTHON tests/benchmarks/make_exports.py FOLDER, where PYTHON has torch, transformers and onnxscript.

Both exporters of torch: *dynamo*, by an exported program, and *script*, by TorchScript. Networks have the
layers of published ones, but are narrow and have two to four blocks, so that ten of them are planned and run
in minutes. Normalisations have statistics as after training, not zeros and ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

IDS: Final = ("input_ids", (1, 64))
IMAGE: Final = ("pixel_values", (1, 3, 64, 64))
WIDE: Final[Mapping[str, int]] = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
LAYERS: Final[Mapping[str, int]] = {**WIDE, "num_hidden_layers": 3}
# Exporter, model and configuration of transformers, input, settings.
MODELS: Final[Mapping[str, tuple[str, str, tuple, Mapping[str, Any]]]] = {
    "bert_dynamo": ("dynamo", "Bert", IDS, LAYERS),
    "bert_script": ("script", "Bert", IDS, LAYERS),
    "gpt2_dynamo": ("dynamo", "GPT2", IDS, {"n_embd": 256, "n_head": 4, "n_layer": 3, "use_cache": False}),
    "electra_script": ("script", "Electra", IDS, {**LAYERS, "embedding_size": 128}),
    "vit_dynamo": ("dynamo", "ViT", IMAGE, {**LAYERS, "image_size": 64, "patch_size": 8}),
    "vit_script": ("script", "ViT", IMAGE, {**LAYERS, "image_size": 64, "patch_size": 8}),
    "resnet_dynamo": ("dynamo", "ResNet", IMAGE, {"depths": [2, 2, 2], "hidden_sizes": [64, 128, 256]}),
    "resnet_script": ("script", "ResNet", IMAGE, {"depths": [2, 2, 2], "hidden_sizes": [64, 128, 256]}),
    "mobilenet_v2_dynamo": ("dynamo", "MobileNetV2", IMAGE, {"image_size": 64}),
    "convnext_script": (
        "script",
        "ConvNext",
        IMAGE,
        {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 96, 128, 192]},
    ),
}


def export(name: str, path: Path) -> None:
    """Write the ONNX file of one model, with its weights."""
    import torch
    import transformers

    exporter, model, (input_name, shape), settings = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{model}Config")(**settings)
    network = getattr(transformers, f"{model}Model")(config).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    given = torch.randint(0, 10, shape) if input_name == "input_ids" else torch.randn(shape)

    class Hidden(torch.nn.Module):  # the first output alone, as an inference needs it
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, given: Any) -> Any:
            return self.network(**{input_name: given}, return_dict=False)[0]

    with torch.no_grad():
        options = {"dynamo": True, "external_data": False} if exporter == "dynamo" else {"dynamo": False}
        torch.onnx.export(Hidden().eval(), (given,), path, input_names=["given"], **options)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        export(name, folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
