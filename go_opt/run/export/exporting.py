"""Exports a plan of an ONNX model in the formats of other tools."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from go_opt.api.inputs import ZOO_PREFIX, as_loaded, as_target, costed
from go_opt.costs.measured_costs import check_remembered
from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.errors import ModelError
from go_opt.extras import check_installed
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.frontends.union.graphs import UNION_PREFIX, shares_of
from go_opt.model.bindings import Bindings
from go_opt.model.codecs.plan_json import load_plan
from go_opt.model.graph import Graph, Precision
from go_opt.model.plan import Plan
from go_opt.run.export.folder import check_can_run, check_free, write_export
from go_opt.run.manifest import FORMATS, Manifest, check_formats, check_states
from go_opt.solver.verify.verifier import verify

if TYPE_CHECKING:
    import onnx_ir as ir

    from go_opt.frontends.onnx.lowered import LoweredModel
    from go_opt.run.cut.stages import PlanModels


@dataclass(frozen=True)
class WholeModel:
    """A model with all its weights in one file."""

    name: str  # as load() takes it
    path: Path

    @property
    def files(self) -> list[str]:
        """The files that it is read from."""
        return _files(self.name)

    def read(self, bindings: Bindings, precision: Precision) -> tuple[Graph, LoweredModel]:
        """The graph that was planned, and the model that it is cut from.

        Raises:
          ModelError: the model is malformed, or of several models more than dimensions is bound.
        """
        if not self.name.startswith(UNION_PREFIX):
            return import_onnx(self.path, bindings, precision)
        for kind in ("values", "trips", "states"):
            if getattr(bindings, kind):
                raise ModelError(f"several models with bound {kind} can be planned, not run.", field=kind)
        graph = as_loaded(self.name, bindings, precision)
        _, lowered = import_onnx(self.path, bindings, precision)
        states = {graph.tensor_names[state.read] for state in graph.states}
        if {state.read for state in lowered.states(bindings).states} != states:
            raise ModelError(f"the states of {self.name[:100]!r} are not found in the models as one.")
        return graph, lowered


@contextmanager
def whole_model(model: str | Path | WholeModel) -> Iterator[WholeModel]:
    """A model's file; several models are merged into one of a temporary folder, until the block ends.

    Raises:
      ModelError: a model is no ONNX file, or cannot be merged.
    """
    if isinstance(model, WholeModel):
        yield model
        return
    _check_is_onnx(model)
    name = str(model)
    if not name.startswith(UNION_PREFIX):
        yield WholeModel(name, Path(model))
        return
    import onnx_ir as ir

    from go_opt.frontends.union.merging import merged_model
    from go_opt.run.cut.stages import write_model

    with tempfile.TemporaryDirectory(prefix="go-opt-union-") as folder:
        path = Path(folder) / "union.onnx"
        write_model(ir.from_proto(merged_model(name)), path)
        yield WholeModel(name, path)


def _files(model: str | Path) -> list[str]:
    name = str(model)
    return [path for _, path in shares_of(name)] if name.startswith(UNION_PREFIX) else [name]


def _check_is_onnx(model: str | Path) -> None:
    """Raise ModelError for what has no weights, or is of another format."""
    if not isinstance(model, str | Path):
        raise ModelError(f"an export takes the path of an ONNX file, not {type(model).__name__}.")
    for name in _files(model):
        if name.startswith(ZOO_PREFIX) or name.endswith(".json"):
            raise ModelError(
                f"{name!r} is a graph without weights: only an ONNX file and its plan can be exported."
            )
        if name.endswith(".pt2"):
            raise ModelError(f"{name!r} is a torch program: go_opt.export_torch says where to split it.")


ANNOTATED: Final = "annotated.onnx"
OPENVINO: Final = "openvino.json"
TRITON: Final = "triton"
OPENVINO_IR: Final = "openvino-ir"


def export(
    model: str | Path | WholeModel,
    plan: Plan | str | Path,
    directory: str | Path,
    *,
    formats: Sequence[str] = ("stages",),
    target: Target | str | Path | None = None,
    costs: str | Path | None = None,
    force: bool = False,
) -> Manifest:
    """Write ``plan`` for other tools to run, with a manifest of its stages (docs/export.md).

    Args:
      model: the ONNX file that the plan is of, with all its weights; or several, ``union:2*a.onnx+1*b.onnx``.
      plan: a plan, or the path of a plan file.
      directory: a folder that does not exist or is empty.
      formats: ``stages``, an ONNX model for each stage; ``triton``, a model repository with an ensemble of
        them; ``annotated``, the whole model with the stage of each node; ``openvino``, a map from op
        names to devices; ``openvino-ir``, a stateful OpenVINO model for each stage.
      target: None: the plan's own.
      costs: CSV file of the measured seconds that the plan was made with.
      force: delete the files that the manifest of an earlier export lists; other files stay.

    Raises:
      InvalidInputError: an argument is wrong, or OpenVINO is not installed.
      ModelError: the model is not an ONNX file, or a part of it cannot be exported; the message names it.
      PlanError: the plan is not of this model and target, or breaks a rule.
    """
    check_formats(formats, FORMATS)
    if OPENVINO_IR in formats:
        check_installed(f"format {OPENVINO_IR}", "openvino")
    with whole_model(model) as whole:
        check_free(directory, force=force, inputs=(*whole.files, plan, target, costs))
        decided = plan if isinstance(plan, Plan) else load_plan(plan)
        on = as_target(target or decided.target)
        graph, lowered = whole.read(decided.bindings, decided.precision)
        graph = costed(graph, on, costs)
        if not isinstance(plan, Plan):
            check_remembered(Path(plan), graph, Path(costs) if costs is not None else None)
        planned = planned_graph(graph, decided)
        check_can_run(verify(planned, on, decided))
        lowered.file.check_weights()
        check_free(directory, force=force, inputs=lowered.file.external_files())
        return _write(lowered, _cut(lowered, graph, on, decided, formats), formats, directory)


def _stage_file(stage: int | None) -> str:
    return "host.onnx" if stage is None else f"stage-{stage}.onnx"


def _openvino_file(stage: int | None) -> str:
    return f"{OPENVINO_IR}/{Path(_stage_file(stage)).stem}.xml"


def _cut(
    lowered: LoweredModel, graph: Graph, target: Target, plan: Plan, formats: Sequence[str]
) -> tuple[Manifest, PlanModels]:
    from go_opt.run.cut.stages import manifest_of, plan_models
    from go_opt.run.export.formats import model_path

    def file_of(stage: int | None) -> str:
        if "stages" in formats:
            return _stage_file(stage)
        if TRITON in formats:
            return f"{TRITON}/{model_path(graph.name, stage)}"
        return _openvino_file(stage) if OPENVINO_IR in formats else ""

    cut = plan_models(lowered, graph, target, plan)
    return manifest_of(cut, planned_graph(graph, plan), target, plan, file_of), cut


def _write(
    lowered: LoweredModel,
    exported: tuple[Manifest, PlanModels],
    formats: Sequence[str],
    directory: str | Path,
) -> Manifest:
    from go_opt.run.cut.source import model_of_file
    from go_opt.run.cut.stages import write_model
    from go_opt.run.export.formats import (
        annotate,
        model_path,
        openvino_affinities,
        write_configs,
        write_stateful,
    )

    manifest, cut = exported
    if OPENVINO_IR in formats:
        check_states(manifest)

    def whole() -> ir.Model:
        """The whole model, with the rewrites and parts of ops if the plan has any."""
        return cut.whole if cut.is_changed else model_of_file(lowered)

    def write(folder: Path) -> None:
        for stage, model in cut.by_number.items():
            if "stages" in formats:
                write_model(model, folder / _stage_file(stage))
            if TRITON in formats:
                write_model(model, folder / TRITON / model_path(manifest.model, stage))
            if OPENVINO_IR in formats:
                write_stateful(model, manifest, stage, folder / _openvino_file(stage))
        if TRITON in formats:
            write_configs(manifest, folder / TRITON)
        if "openvino" in formats:
            affinities = openvino_affinities(whole(), manifest)
            (folder / OPENVINO).write_text(
                json.dumps(affinities, ensure_ascii=False, indent=1) + "\n", "utf-8"
            )
        if "annotated" in formats:
            annotated = whole()
            annotate(annotated, manifest)
            write_model(annotated, folder / ANNOTATED)

    return write_export(manifest, directory, write)
