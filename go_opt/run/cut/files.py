"""The ONNX files of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx_ir as ir

from go_opt.run.cut.stage_model import weight_bytes

MAX_MODEL_BYTES: Final = 2**31 - 2**26  # protobuf ends at 2 GiB, and nodes need some of it


def write_model(model: ir.Model, path: Path) -> None:
    """Write a model; weights that its file cannot hold go to ``NAME.data`` in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if weight_bytes(model) > MAX_MODEL_BYTES:
        ir.save(model, path, external_data=f"{path.name}.data")
    else:
        ir.save(ir.external_data.load_to_model(model), path)
