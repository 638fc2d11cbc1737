"""Checks an export and writes its folder, in which it replaces only the files of an earlier export."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from go_opt.common.files import read_json
from go_opt.common.outputs import same_file
from go_opt.errors import InvalidInputError, PlanError
from go_opt.run.manifest import (
    FORMAT,
    MANIFEST,
    STEP_FORMAT,
    TORCH_FORMAT,
    Manifest,
    StepManifest,
    TorchManifest,
    manifest_text,
)
from go_opt.solver import Violation

_Manifest = TypeVar("_Manifest", Manifest, TorchManifest, StepManifest)


def check_can_run(violations: Iterable[Violation]) -> None:
    """Reject a plan of which a rule is broken.

    Raises:
      PlanError: the message is that of the first rule.
    """
    broken = next(iter(violations), None)
    if broken is not None:
        raise PlanError(f"the plan cannot run: {broken.message}", field="plan")


def check_free(directory: str | Path, *, force: bool, inputs: Iterable[object] = ()) -> None:
    """Reject a folder that cannot be written or is not empty; ``force`` allows an earlier export.

    Args:
      inputs: what the export reads; a file among them may not be one that ``force`` deletes.

    Raises:
      InvalidInputError: the message gives the reason.
    """
    path = _real(directory)
    try:
        if path.exists() and not path.is_dir():
            raise _unwritable(directory, "it is a file")
        if path.is_dir() and any(path.iterdir()):
            listed = exported_files(path)
            read = [str(one) for one in inputs if isinstance(one, str | Path)]
            if not (force and listed):
                hint = "--force replaces it" if listed else "it is no earlier export"
                raise InvalidInputError(f"folder {str(directory)!r} is not empty: {hint}.", field="directory")
            for file in listed:
                if same_file(str(path / file), read):
                    raise _unwritable(directory, f"the export reads its file {file!r}")
        if not path.parent.is_dir():
            raise _unwritable(directory, f"there is no folder {str(path.parent)!r}")
        if not os.access(path.parent, os.W_OK) or "\0" in path.name:
            raise _unwritable(directory, f"{str(path.parent)!r} does not take it")
    except OSError as error:
        raise _unwritable(directory, error.strerror or error) from None


def exported_files(folder: Path) -> list[str]:
    """The manifest of an earlier export and the files that it lists; empty without such a manifest.

    Links, and files outside the folder, also by way of a link, are none of them.
    """
    try:
        data = read_json(folder / MANIFEST, "manifest")
    except InvalidInputError:
        return []
    if not (isinstance(data, dict) and data.get("format") in (FORMAT, TORCH_FORMAT, STEP_FORMAT)):
        return []
    listed = data.get("written")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return [name for name in dict.fromkeys([*names, MANIFEST]) if _is_inside(folder, name)]


@contextmanager
def whole_folder(directory: str | Path) -> Iterator[Path]:
    """A temporary folder whose files come to ``directory`` on success; it is removed on failure.

    Files of an earlier export are deleted, others stay.
    """
    target = _real(directory)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.mkdir()
        yield temporary
        if target.is_dir() and any(target.iterdir()):
            _replace(target, temporary)
        else:
            os.rename(temporary, target)
    except OSError as error:
        raise _unwritable(directory, error.strerror or error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_export(manifest: _Manifest, directory: str | Path, write: Callable[[Path], None]) -> _Manifest:
    """Write an export: the files that ``write`` makes in a folder, and the manifest, which lists them."""
    with whole_folder(directory) as folder:
        write(folder)
        manifest = replace(manifest, written=_files_of(folder))
        (folder / MANIFEST).write_text(manifest_text(manifest), "utf-8")
    return manifest


def _files_of(folder: Path) -> tuple[str, ...]:
    """The files of a folder that is about to get its manifest, and the manifest."""
    files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return (*sorted(files), MANIFEST)


def _replace(target: Path, new: Path) -> None:
    """Put the files of ``new`` in place of those of the earlier export in ``target``; on failure undo it."""
    before, files = exported_files(target), _files_of(new)[:-1]
    old = new.with_suffix(".old")
    moves = [(target / name, old / name) for name in before] + [(new / name, target / name) for name in files]
    done = []
    try:
        for name in set(files) - set(before):
            if os.path.lexists(target / name):
                raise _unwritable(target, f"{name!r} is in the way and no file of the earlier export")
        for source, destination in moves:
            destination.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, destination)
            done.append((source, destination))
    except BaseException:
        for source, destination in reversed(done):
            os.rename(destination, source)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
    for name in before:
        _remove_empty(target, (target / name).parent)


def _remove_empty(root: Path, folder: Path) -> None:
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _is_inside(folder: Path, name: str) -> bool:
    parts = PurePosixPath(name).parts
    path = folder / name
    is_plain = bool(parts) and ".." not in parts and "\0" not in name and not name.startswith("/")
    return (
        is_plain
        and _real(path.parent).is_relative_to(folder)
        and os.path.isfile(path)
        and not os.path.islink(path)
    )


def _real(path: str | Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a null byte
        return Path(os.path.abspath(path))


def _unwritable(directory: str | Path, reason: object) -> InvalidInputError:
    return InvalidInputError(f"folder {str(directory)!r} cannot be written: {reason}.", field="directory")
