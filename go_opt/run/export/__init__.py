"""Plans as files that other tools run. Needs the extra ``run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from go_opt.run.manifest import FORMATS as FORMATS
from go_opt.run.manifest import Manifest as Manifest
from go_opt.run.manifest import load_manifest as load_manifest

if TYPE_CHECKING:
    from go_opt.run.export.exporting import export as export


__all__ = ["FORMATS", "Manifest", "export", "load_manifest"]


def __getattr__(name: str) -> Any:
    if name != "export":
        raise AttributeError(f"module 'go_opt.run.export' has no attribute {name!r}")
    from go_opt.run.export.exporting import export

    return export
