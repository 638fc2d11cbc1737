"""Models of PyTorch, and how tests/data/torch was made of them.

With torch and onnxscript installed: ``python -m tests.torch_programs``.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "data" / "torch"


def models() -> dict[str, tuple[Any, tuple[Any, ...], Any]]:
    """Model, example inputs and dynamic shapes by name."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, steps, width = x.shape
            heads = self.qkv(self.norm(x)).view(batch, steps, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
            query, key, value = heads.unbind(0)
            mixed = nn.functional.scaled_dot_product_attention(query, key, value)
            x = x + mixed.transpose(1, 2).reshape(batch, steps, width)
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.layers = nn.ModuleList([Block(16) for _ in range(6)])
            self.head = nn.Linear(16, 50)

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    class Odd(nn.Module):
        """What exports hold beside plain layers: writes in place, tied weights, other types, an LSTM."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embedding.weight
            self.relu = nn.ReLU(inplace=True)
            self.lstm = nn.LSTM(16, 8, bidirectional=True, batch_first=True)
            self.register_buffer("calls", torch.zeros(2, 16))

        def forward(self, ids: Any) -> Any:
            x = self.relu(self.embedding(ids))
            self.calls.add_(x[:, 0])
            y = x * 2
            y[:, 0] = x[:, 1]
            with torch.no_grad():
                z = y + 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = z @ z.transpose(1, 2) @ x
            largest, _ = z.float().max(-1)
            return self.head(self.lstm(y + largest[..., None])[0])

    class Step(nn.Module):
        """A step with states of each kind: buffers, entries of a tree, and an input that is written to."""

        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 8)
            self.register_buffer("k_cache", torch.zeros(1, 2, 6, 4))
            self.register_buffer("values", torch.zeros(1, 2, 6, 4), persistent=False)
            self.register_buffer("running_mean", torch.zeros(8))

        def forward(self, x: Any, place: Any, past_key_values: Any, h: Any) -> Any:
            x.mul_(0.5)
            self.running_mean.mul_(0.9).to(torch.float32).add_(x[0, 0])
            row = self.project(x - self.running_mean).view(1, 1, 2, 4).transpose(1, 2)
            with torch.no_grad():
                self.k_cache.index_copy_(2, place, row)
            self.values[:, :, 5:] = row
            h.tanh_().add_(x[0])
            y = nn.functional.scaled_dot_product_attention(row, self.k_cache, self.values)
            (key, value) = past_key_values[0]
            new = (torch.cat([torch.tensor([]), key, row], 2), torch.cat([value, row], 2))
            return {"y": y * h.sum(), "past_key_values": [new]}

    cnn = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=4, bias=False),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
        nn.Softmax(-1),
    )
    mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    ids = torch.zeros(2, 8, dtype=torch.long)
    return {
        "mlp": (mlp, (torch.zeros(3, 8),), ({0: torch.export.Dim("batch", max=64)},)),
        "cnn": (cnn, (torch.zeros(2, 3, 16, 16),), None),
        "decoder": (Decoder(), (ids,), ({1: torch.export.Dim("steps", max=64)},)),
        "odd": (Odd(), (ids,), None),
        "step": (
            Step(),
            (
                torch.zeros(1, 1, 8),
                torch.tensor([3]),
                [(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))],
                torch.zeros(1, 8),
            ),
            None,
        ),
    }


def joint_models() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Models that return a loss, which are exported with their gradients, and example inputs."""
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

        def forward(self, x: Any, labels: Any) -> Any:
            return nn.functional.cross_entropy(self.last(torch.relu(self.first(x))), labels)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head, self.norm = nn.Embedding(50, 16), nn.Linear(16, 50), nn.LayerNorm(16)
            self.heads, self.mixed = nn.Linear(16, 48), nn.Linear(16, 16)
            self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, ids: Any, following: Any) -> Any:
            x = self.table(ids)
            batch, steps, width = x.shape
            query, key, value = (
                one.view(batch, steps, 2, width // 2).transpose(1, 2)
                for one in self.heads(self.norm(x)).chunk(3, -1)
            )
            shares = torch.softmax(query @ key.transpose(2, 3) / 8**0.5, -1)
            x = x + self.mixed((shares @ value).transpose(1, 2).reshape(batch, steps, width))
            x = x + self.down(nn.functional.gelu(self.up(x)))
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), following.flatten())

    torch.manual_seed(0)
    ids = torch.zeros(8, 12, dtype=torch.long)
    return {
        "joint_mlp": (Classifier(), (torch.zeros(64, 16), torch.zeros(64, dtype=torch.long))),
        "joint_transformer": (Transformer(), (ids, ids)),
    }


def joint(name: str) -> Any:
    """The exported program of a model with its gradients."""
    import torch
    from torch.export.experimental import _export_forward_backward

    return _export_forward_backward(torch.export.export(*joint_models()[name]))


def exported(name: str) -> Any:
    """The exported program of a model."""
    import torch

    torch.manual_seed(0)
    model, inputs, shapes = models()[name]
    for parameter in model.parameters():  # no two alike, which ONNX would merge
        torch.nn.init.normal_(parameter)
    return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)


def main() -> None:
    """Write the archives without their weights, and the same models as ONNX without names of code."""
    import onnx
    import torch

    FOLDER.mkdir(exist_ok=True)
    for name in (*models(), *joint_models()):
        program = exported(name) if name in models() else joint(name)
        whole = FOLDER / "whole.pt2"
        torch.export.save(program, whole)
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(FOLDER / f"{name}.pt2", "w") as file:
            entry = next(found for found in source.namelist() if found.endswith("models/model.json"))
            moment = zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0))
            saved = json.loads(source.read(entry))
            for node in saved["graph_module"]["graph"]["nodes"]:
                node["metadata"].pop("stack_trace", None)  # paths of this machine
            file.writestr(moment, json.dumps(saved), zipfile.ZIP_DEFLATED, 9)
        whole.unlink()
        if name in ("mlp", "cnn", "decoder"):
            model = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
            for part in (model, model.graph, *model.graph.node, *model.graph.value_info):
                part.ClearField("metadata_props")
            for part in (*model.graph.initializer, *model.graph.input, *model.graph.output):
                part.ClearField("metadata_props")
            for weight in model.graph.initializer:
                if len(weight.raw_data) > 256:
                    weight.ClearField("raw_data")  # the importer asks for sizes only
            onnx.save(model, FOLDER / f"{name}.onnx")


if __name__ == "__main__":
    main()
