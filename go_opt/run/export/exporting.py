"""Exports a plan of an ONNX model in the formats of other tools."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx_ir as ir

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
from go_opt.run.cut.source import model_of_file
from go_opt.run.cut.stages import plan_models, write_model
from go_opt.run.export.folder import check_can_run, check_free, write_export
from go_opt.run.export.formats import annotate, model_path, openvino_affinities, write_configs, write_stateful
from go_opt.run.manifest import FORMATS, Manifest, check_formats, check_states
from go_opt.solver.verify.verifier import verify


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
    from go_opt.frontends.union.merging import merged_model

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
        check_can_run(verify(planned_graph(graph, decided), on, decided))
        lowered.file.check_weights()
        check_free(directory, force=force, inputs=lowered.file.external_files())
        paths = _paths(graph.name, formats)
        cut = plan_models(lowered, graph, on, decided, next(iter(paths.values()), lambda stage: ""))
        if OPENVINO_IR in formats:
            check_states(cut.manifest)

        def write(folder: Path) -> None:
            for name, path_of in paths.items():
                for stage, made in cut.models.items():
                    if name == OPENVINO_IR:
                        write_stateful(made, cut.manifest, stage, folder / path_of(stage))
                    else:
                        write_model(made, folder / path_of(stage))
            if TRITON in formats:
                write_configs(cut.manifest, folder / TRITON)
            is_changed = bool(decided.splits or decided.rewrites)
            if "openvino" in formats:
                affinities = openvino_affinities(
                    cut.whole if is_changed else model_of_file(lowered), cut.manifest
                )
                text = json.dumps(affinities, ensure_ascii=False, indent=1) + "\n"
                (folder / OPENVINO).write_text(text, "utf-8")
            if "annotated" in formats:
                annotated = cut.whole if is_changed else model_of_file(lowered)
                annotate(annotated, cut.manifest)
                write_model(annotated, folder / ANNOTATED)

        return write_export(cut.manifest, directory, write)


def _paths(model: str, formats: Sequence[str]) -> dict[str, Callable[[int | None], str]]:
    """Where the model of a stage (None: of the host) lies in the folder, by those formats that have them."""

    def stem(stage: int | None) -> str:
        return "host" if stage is None else f"stage-{stage}"

    known: dict[str, Callable[[int | None], str]] = {
        "stages": lambda stage: f"{stem(stage)}.onnx",
        TRITON: lambda stage: f"{TRITON}/{model_path(model, stage)}",
        OPENVINO_IR: lambda stage: f"{OPENVINO_IR}/{stem(stage)}.xml",
    }
    return {name: path_of for name, path_of in known.items() if name in formats}
