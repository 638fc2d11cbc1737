"""Writes a folder atomically."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from go_opt.errors import InvalidInputError
from go_opt.run.manifest import MANIFEST


def check_formats(formats: Sequence[str], known: Sequence[str]) -> None:
    """Reject unknown formats and an empty list.

    Raises:
      InvalidInputError: the message lists the known formats.
    """
    wrong = [formats] if isinstance(formats, str) else [name for name in formats if name not in known]
    if wrong or not formats:
        listed = ", ".join(known)
        given = repr(wrong[0]) if wrong else "none"
        raise InvalidInputError(f"formats must be some of {listed}, not {given}.", field="formats")


def check_free(directory: str | Path, *, force: bool) -> None:
    """Reject a folder that cannot be written or is not empty; ``force`` allows an earlier export.

    Raises:
      InvalidInputError: the message gives the reason.
    """
    path = Path(os.path.abspath(directory))
    try:
        if path.exists() and not path.is_dir():
            raise _unwritable(directory, "it is a file")
        is_export = (path / MANIFEST).exists()
        if path.is_dir() and any(path.iterdir()) and not (force and is_export):
            hint = "--force replaces it" if is_export else "it is no earlier export"
            raise InvalidInputError(f"folder {str(directory)!r} is not empty: {hint}.", field="directory")
        if not path.parent.is_dir():
            raise _unwritable(directory, f"there is no folder {str(path.parent)!r}")
        if not os.access(path.parent, os.W_OK) or "\0" in path.name:
            raise _unwritable(directory, f"{str(path.parent)!r} does not take it")
    except OSError as error:
        raise _unwritable(directory, error.strerror or error) from None


@contextmanager
def whole_folder(directory: str | Path) -> Iterator[Path]:
    """A temporary folder that replaces ``directory`` on success and is removed on failure."""
    target = Path(os.path.abspath(directory))
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    old = temporary.with_suffix(".old")
    try:
        temporary.mkdir()
        yield temporary
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
    except OSError as error:
        raise _unwritable(directory, error.strerror or error) from error
    finally:
        if old.exists() and not target.exists():
            os.rename(old, target)
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)


def _unwritable(directory: str | Path, reason: object) -> InvalidInputError:
    return InvalidInputError(f"folder {str(directory)!r} cannot be written: {reason}.", field="directory")
