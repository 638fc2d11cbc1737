"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from go_opt.errors import InvalidInputError


def check_free(directory: str | Path, *, force: bool) -> None:
    """Refuse a folder that cannot be written, or that has something in it unless ``force`` is set.

    Raises:
      InvalidInputError: one sentence that says why.
    """
    path = Path(directory)
    try:
        is_folder, parent = path.is_dir(), path.absolute().parent
        if not is_folder and path.exists():
            raise _unwritable(path, "it is a file")
        if is_folder and not force and any(path.iterdir()):
            raise InvalidInputError(f"folder {str(path)!r} is not empty: use --force.", field="directory")
        if not parent.is_dir():
            raise _unwritable(path, f"there is no folder {str(parent)!r}")
        if not os.access(parent, os.W_OK):
            raise _unwritable(path, f"nothing can be written to {str(parent)!r}")
    except OSError as error:
        raise _unwritable(path, error.strerror or error) from None


@contextmanager
def whole_folder(directory: str | Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``directory`` if all goes well, and is removed if not."""
    target = Path(directory).absolute()
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    old = temporary.with_suffix(".old")
    try:
        temporary.mkdir()
        yield temporary
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
    except OSError as error:
        raise _unwritable(target, error.strerror or error) from error
    finally:
        if old.exists() and not target.exists():
            os.rename(old, target)
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)


def _unwritable(path: Path, reason: object) -> InvalidInputError:
    return InvalidInputError(f"folder {str(path)!r} cannot be written: {reason}.", field="directory")
