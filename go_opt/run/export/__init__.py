"""Plans as files that other tools run. Needs the extra ``run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from go_opt.run.manifest import FORMATS as FORMATS
from go_opt.run.manifest import TORCH_FORMATS as TORCH_FORMATS
from go_opt.run.manifest import Manifest as Manifest
from go_opt.run.manifest import TorchManifest as TorchManifest
from go_opt.run.manifest import load_manifest as load_manifest

if TYPE_CHECKING:
    from go_opt.run.export.exporting import export as export
    from go_opt.run.export.torch_export import export_torch as export_torch


__all__ = ["FORMATS", "TORCH_FORMATS", "Manifest", "TorchManifest", "export", "export_torch", "load_manifest"]


def __getattr__(name: str) -> Any:
    if name == "export":
        from go_opt.run.export.exporting import export

        return export
    if name == "export_torch":
        from go_opt.run.export.torch_export import export_torch

        return export_torch
    raise AttributeError(f"module 'go_opt.run.export' has no attribute {name!r}")
