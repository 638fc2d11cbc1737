"""The whole model that a plan is of: an ONNX file, or several models in one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from go_opt.api.inputs import ZOO_PREFIX, as_loaded
from go_opt.errors import ModelError
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.frontends.union.graphs import UNION_PREFIX, shares_of
from go_opt.model.bindings import Bindings
from go_opt.model.graph import Graph, Precision


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
    from go_opt.run.cut.stage_model import write_model

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
