"""Which existing files go-opt replaces: only its own, known by a mark, and never an input."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from go_opt.common.files import read_json
from go_opt.errors import InvalidInputError

_HEAD_BYTES: Final = 8192  # within which a file that is not JSON has its mark
DATASET_MARK: Final = b"written by go-opt"  # the comment of a .npz file, which is a zip archive
COSTS_MARK: Final = "# Seconds of ops, written by `go-opt profile`."


@dataclass(frozen=True)
class FileKind:
    """A kind of file that go-opt writes, and the mark by which it knows its own."""

    name: str
    json_format: str = ""  # the value of "format" of a JSON object
    start: bytes = b""  # a regular expression that the beginning of any other file matches
    end: bytes = b""  # or the bytes with which it ends

    def is_of(self, path: Path) -> bool:
        """Whether the file has the mark; so does an empty file, which holds nothing to lose."""
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if self.json_format and head.lstrip()[:1] == b"{":
                return self._is_format_of(path)
            file.seek(-min(file.seek(0, os.SEEK_END), len(self.end)), os.SEEK_END)
            is_marked = bool(self.start and re.match(self.start, head, re.DOTALL))
            return not head or is_marked or bool(self.end and file.read() == self.end)

    def _is_format_of(self, path: Path) -> bool:
        try:
            data = read_json(path, "output")
        except InvalidInputError:
            return False
        return isinstance(data, dict) and data.get("format") == self.json_format


_TOML: Final = rb"# (Written|Measured) by `go-opt "
PLAN: Final = FileKind("plan", "go_opt.v1.Plan")
TRACE: Final = FileKind("trace", "go_opt.v1.Trace")
PAGE: Final = FileKind("page", start=rb'\s*<!doctype html>.*<meta name="generator" content="go-opt">')
NODE_DATA: Final = FileKind("node data", "go_opt.v1.NodeData")
TARGET: Final = FileKind("target", start=_TOML)
COSTS: Final = FileKind("costs", start=re.escape(COSTS_MARK.encode()))
SAMPLES: Final = FileKind("samples", "go_opt.v1.Samples")
DATASET: Final = FileKind("arrays", end=DATASET_MARK)
RECORDS: Final = FileKind("records", start=rb'\{"model": "[^\n]*"method": "')
# The files of a training run, by what follows its folder. Its checkpoint is read before it is written.
RUN: Final = {
    "/policy.safetensors": FileKind("policy", start=rb".{8}\{.*go-opt policy"),
    "/metrics.jsonl": FileKind("metrics", start=rb'\{"step": '),
    "/plan.json": PLAN,
    "/searched.json": PLAN,
}


def check_output(
    option: str,
    path: str | Path,
    kinds: Mapping[str, FileKind],
    inputs: Iterable[str | Path] = (),
    *,
    overwrite: bool | None = None,
) -> None:
    """Reject files that may not be written; called before the work, so that no result is lost.

    A link counts as the file that it leads to. Devices and pipes are written to.

    Args:
      option: the option that names ``path``, for messages.
      kinds: of each file that is written, by what follows ``path`` in its own path.
      inputs: files that are read, or that another option writes. They are never replaced.
      overwrite: whether other existing files may be replaced; None: the user cannot say so.

    Raises:
      InvalidInputError: the message names the file and the reason.
    """
    read = [str(one) for one in inputs]
    for suffix, kind in kinds.items():
        written = f"{path}{suffix}"
        problem = _unwritable(written, is_in_folder=suffix.startswith("/")) or _lost(
            written, kind, read, overwrite
        )
        if problem:
            raise InvalidInputError(f"{option}: {problem}.", field=option.removeprefix("--"))


def same_file(path: str, others: Iterable[str]) -> bool:
    """Whether ``path`` is one of the others, also by way of links, or will be once it is written."""
    real = os.path.realpath(path)
    for other in others:
        try:
            if os.path.realpath(other) == real or os.path.samefile(other, path):
                return True
        except (OSError, ValueError):  # one of them does not exist
            continue
    return False


def _unwritable(path: str, *, is_in_folder: bool) -> str:
    # os.path returns False for a too long name or a null byte, where Path raises.
    try:
        real = os.path.realpath(path)
    except ValueError:
        real = path
    folder = os.path.dirname(real)
    written = real if os.path.exists(real) and not os.path.isfile(real) else folder
    if not os.path.isdir(folder):
        shown = os.path.dirname(path) or "."
        return "" if is_in_folder else f"the folder {shown[:100]!r} does not exist"
    if os.path.isdir(real):
        return f"{path!r} is a folder"
    return "" if os.access(written, os.W_OK) else f"{path!r} cannot be written"


def _lost(path: str, kind: FileKind, inputs: list[str], overwrite: bool | None) -> str:
    """Why the file may not be replaced; empty if it may."""
    if os.path.exists(path) and not os.path.isfile(path):
        return ""  # a device or a pipe
    if same_file(path, inputs):
        return f"{path!r} is also an input or another output of this command"
    try:
        if overwrite or not os.path.exists(path) or kind.is_of(Path(path)):
            return ""
    except OSError as error:
        return f"{path!r} cannot be read: {error.strerror or error}"
    hint = "give another file" if overwrite is None else "--overwrite replaces it"
    return f"{path!r} exists and is no {kind.name} written by go-opt: {hint}"
