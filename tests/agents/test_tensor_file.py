"""Safetensors files: what goes in comes out bit for bit, and nothing else is read."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from go_opt.agents.policy.policy_file import TensorFormat, load_tensors, save_tensors
from go_opt.errors import InvalidInputError, PolicyError

FORMAT = TensorFormat("test", 3)
RECORD = {"note": "é \ud800", "steps": [1, 2.5, None]}
ARRAYS = {
    "scalar": np.array(7, dtype=np.int32),
    "empty": np.zeros((0, 3), dtype=np.float64),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "not finite": np.array([np.nan, -np.inf, -0.0], dtype=np.float32),
    "rounded": np.array([1.5, 3.0], dtype=ml_dtypes.bfloat16),
    "mask": np.array([True, False]),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "file.safetensors"
    save_tensors(path, FORMAT, RECORD, ARRAYS)
    return path


def test_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    save_tensors(path, FORMAT, {"x": 1}, {"a": np.array([1.0], dtype=np.float32)})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + length]) == {
        "__metadata__": {"go_opt": '{"format": "test", "version": 3, "x": 1}'},
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    }
    assert data[8 + length :] == b"\x00\x00\x80\x3f"


def test_what_goes_in_comes_out(saved: Path) -> None:
    record, arrays = load_tensors(saved, FORMAT)
    assert record == {"format": "test", "version": 3, **RECORD}
    assert list(arrays) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()


def test_equal_content_is_equal_bytes(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    save_tensors(again, FORMAT, RECORD, dict(reversed(ARRAYS.items())))
    assert again.read_bytes() == saved.read_bytes()


@given(share=st.floats(0, 1, exclude_max=True))
def test_truncated_anywhere(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("truncated") / "file"
    save_tensors(path, FORMAT, RECORD, ARRAYS)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(PolicyError, match=r"^test file '.*' is truncated or no safetensors file: .*\.$"):
        load_tensors(path, FORMAT)


@given(data=st.data())
def test_changed_anywhere_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("changed") / "file"
    save_tensors(path, FORMAT, RECORD, ARRAYS)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(PolicyError):
        load_tensors(path, FORMAT)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TensorFormat("other", 3), r"^other file '.*' is of the format 'test'\.$"),
        (TensorFormat("test", 4), r"is of version 3, this version of go-opt reads version 4\.$"),
    ],
)
def test_another_format_or_version(saved: Path, other: TensorFormat, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_tensors(saved, other)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"__metadata__": {"format": "pt"}},
        {"__metadata__": {"go_opt": "["}},
        {"__metadata__": {"go_opt": "[" * 100_000}},
        {"__metadata__": {"go_opt": "[]"}},
        {"a": {"dtype": "F8_E4M3", "shape": [0], "data_offsets": [0, 0]}},
    ],
)
def test_a_safetensors_file_of_others(tmp_path: Path, header: dict) -> None:
    path = tmp_path / "file"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(PolicyError, match=r"is not a file of go-opt\.$"):
        load_tensors(path, FORMAT)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in [
        ("", "is not a file"),
        ("pipe", "is not a file"),
        ("absent", "cannot be read: No such file"),
        ("null\0byte", "cannot be read: embedded null byte"),
    ]:
        with pytest.raises(PolicyError, match=message):
            load_tensors(tmp_path / name, FORMAT)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), np.float32(1)])
def test_a_record_that_is_no_json(tmp_path: Path, value: object) -> None:
    with pytest.raises(PolicyError, match=r"^test file '.*' cannot hold what is no JSON: .*\.$"):
        save_tensors(tmp_path / "file", FORMAT, {"x": value}, {})
    assert not list(tmp_path.iterdir())


def test_an_array_that_cannot_be_held(tmp_path: Path) -> None:
    for dtype in ("<U1", ">i2"):
        with pytest.raises(PolicyError, match=rf"cannot hold 'a' of type {dtype}\.$"):
            save_tensors(tmp_path / "file", FORMAT, {}, {"a": np.zeros(1, dtype)})


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be written: No such file or directory\.$"):
        save_tensors(tmp_path / "absent" / "file", FORMAT, {}, {})
