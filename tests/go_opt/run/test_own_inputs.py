"""Inputs from a file: what fits the model is read, anything else is refused in one sentence."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from go_opt.errors import InvalidInputError
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest
from go_opt.run.pipeline.check import load_inputs, save_arrays
from tests.exports import FLOAT, INT64, info, model, node, plan_of, saved, weight

X = np.ones((4, 2), np.float32)
IDS = np.zeros(3, np.int64)
_SHAPE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}"
HUGE = b"\x93NUMPY\x01\x00v\x00" + _SHAPE.ljust(117) + b"\n"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Of a model that reads ``x`` and ``ids``, and has an input that nothing reads."""
    nodes = [
        node("Gather", "w ids", "rows", "look up"),
        node("MatMul", "rows x", "y", "product"),
    ]
    inputs = [info("x", [4, 2], FLOAT), info("ids", [3], INT64), info("unread", [1], FLOAT)]
    path = saved(model(nodes, inputs, [info("y", [3, 2])], [weight("w", 5, 4)]), tmp_path)
    return export(path, plan_of(path, [0, 1]), tmp_path / "out")


def test_what_stages_read_comes_from_the_file(manifest: Manifest, tmp_path: Path) -> None:
    file = tmp_path / "in.npz"
    np.savez(file, ids=IDS, x=X.astype(">f4"), unread=np.ones(1, np.float32))
    found = load_inputs(file, manifest)
    assert list(found) == ["x", "ids"]
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["ids"], IDS)
    np.savez(file, ids=IDS, x=X)
    assert list(load_inputs(file, manifest)) == ["x", "ids"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X}, "input 'ids' of the model is missing"),
        ({"x": X, "ids": IDS, "z": X}, "'z' is no input of the model, which has x, ids, unread"),
        ({"x": X[0], "ids": IDS}, "input 'x' must be float32 of shape (4, 2), not float32 of shape (2,)"),
        ({"x": X.astype(float), "ids": IDS}, "input 'x' must be float32 of shape (4, 2), not float64 of"),
        ({"x": X, "ids": IDS, "unread": IDS}, "input 'unread' must be float32 of shape (1,), not int64"),
        ({"x": np.ones((4, 2000), np.float32)}, "input 'x' must be of shape (4, 2), and is larger"),
        ({"x": np.array([X, None], object), "ids": IDS}, "cannot be read: it is no .npz file of arrays"),
    ],
)
def test_what_does_not_fit_is_refused(
    manifest: Manifest, tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(InvalidInputError, match=rf"^inputs '.*in\.npz': {re.escape(words)}.*\.$") as error:
        load_inputs(tmp_path / "in.npz", manifest)
    assert error.value.field == "inputs"


@pytest.mark.parametrize("data", [b"", b"not a file of arrays", b"PK\x03\x04 and nothing behind it", None])
def test_a_file_that_holds_no_arrays(manifest: Manifest, tmp_path: Path, data: bytes | None) -> None:
    file = tmp_path / "in.npz"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InvalidInputError, match=r"cannot be read: .*\.$"):
        load_inputs(file, manifest)


def test_one_array_alone_has_no_name(manifest: Manifest, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", X)
    with pytest.raises(InvalidInputError, match=r"it is no \.npz file of arrays"):
        load_inputs(tmp_path / "in.npy", manifest)


def test_arrays_are_saved_under_any_name(tmp_path: Path) -> None:
    arrays = {"file": X, "scope/y:0": IDS, "arr_0": np.float32(3.0)}
    save_arrays(tmp_path / "y.npz", arrays)
    with np.load(tmp_path / "y.npz", allow_pickle=False) as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.mark.parametrize("entry", [b"no array", HUGE])
def test_entries_that_are_no_arrays_or_lie_about_their_size(
    manifest: Manifest, tmp_path: Path, entry: bytes
) -> None:
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("x.npy", entry)
    with pytest.raises(InvalidInputError, match=r"it is no \.npz file of arrays"):
        load_inputs(tmp_path / "in.npz", manifest)
