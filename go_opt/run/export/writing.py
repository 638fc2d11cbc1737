"""Writes ONNX models: in one file where they fit, with weights in a file of their own where not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx_ir as ir

MAX_FILE_BYTES: Final = 2**31 - 2**20  # protobuf ends at 2 GiB; nodes and shapes need room as well


def write_model(model: ir.Model, path: Path) -> None:
    """Write a model; weights too large for its file go to ``NAME.data`` in the same folder."""
    if weight_bytes(model) <= MAX_FILE_BYTES:
        ir.save(ir.external_data.load_to_model(model), path)
    else:
        ir.save(model, path, external_data=f"{path.name}.data")


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers."""
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
