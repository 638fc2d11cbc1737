"""Plans as files that other tools run; :func:`export` writes them, :func:`load_manifest` reads them.

Needs the extra ``run``: ``pip install 'go-opt[run]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from go_opt.run.export.folder import check_free, whole_folder
from go_opt.run.export.manifest import MANIFEST, Manifest, manifest_text
from go_opt.run.export.manifest import load_manifest as load_manifest

if TYPE_CHECKING:
    from go_opt.env import Target
    from go_opt.model.plan import Plan


def export(
    model: str | Path,
    plan: Plan | str | Path,
    directory: str | Path,
    *,
    target: Target | str | Path | None = None,
    force: bool = False,
) -> Manifest:
    """Write each stage of ``plan`` as an ONNX model of its own, with a manifest."""
    from go_opt import api
    from go_opt.frontends.onnx.lowered import lower_model
    from go_opt.model.codecs.plan_json import load_plan
    from go_opt.model.plan import Plan
    from go_opt.run.export.exporting import StageModels
    from go_opt.run.export.writing import write_model

    check_free(directory, force=force)
    decided = plan if isinstance(plan, Plan) else load_plan(plan)
    on = api.target(decided.target if target is None or isinstance(target, str | Path) else target.source)
    graph = api.load(model, dims=decided.dims, precision=decided.precision)
    decided.check_belongs_to(graph, on.fingerprint)
    cut = StageModels(lower_model(model, decided.dims), graph, on, decided)
    files = [f"stage-{i}.onnx" for i in range(len(cut.stages))]
    manifest = cut.manifest(files)
    with whole_folder(directory) as folder:
        for file, stage in zip(files, cut.models, strict=True):
            write_model(stage, folder / file)
        (folder / MANIFEST).write_text(manifest_text(manifest), "utf-8")
    return manifest
