"""Models alone, rewritten: written only if they compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from go_opt.errors import InvalidInputError, ModelError
from go_opt.run.cut import rewrites
from go_opt.run.simplifying.simplifying import SIMPLIFIED, simplify
from tests.exports import saved
from tests.rewritten import MODELS, convolutions, unrolled


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_checked(name: str, tmp_path: Path) -> None:
    found = simplify(saved(MODELS[name](), tmp_path), tmp_path / "out")
    assert found.difference <= 1e-5
    assert set(found.rewrites) <= {"fold", "batch"}


def test_what_is_written(tmp_path: Path) -> None:
    simplify(saved(convolutions(), tmp_path), tmp_path / "out")
    written = onnx.load(tmp_path / "out" / SIMPLIFIED)
    onnx.checker.check_model(written)
    assert [one.op_type for one in written.graph.node] == ["Conv", "Relu", "Conv"]


def test_a_wrong_weight_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(convolutions(), tmp_path)
    right = rewrites._with_scaled_columns
    monkeypatch.setattr(rewrites, "_with_scaled_columns", lambda *given: right(*given) * np.float64(1.001))
    with pytest.raises(ModelError, match="element: nothing was written"):
        simplify(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    path = saved(unrolled(), tmp_path)
    with pytest.raises(InvalidInputError, match="not empty"):
        simplify(path, tmp_path)


@pytest.mark.parametrize("name", ["zoo:resnet50", "graph.json"])
def test_a_graph_has_no_weights(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a graph without weights"):
        simplify(name, tmp_path / "out")
