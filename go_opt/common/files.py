"""Reads and writes files: writes are atomic, errors are one sentence."""

from __future__ import annotations

import glob
import json
import os
import secrets
from pathlib import Path
from typing import Any

from go_opt.errors import InvalidInputError


def read_text(path: str | Path, what: str, error: type[InvalidInputError] = InvalidInputError) -> str:
    """The UTF-8 text of a file; ``what`` names it in errors, which are of the class ``error``."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except (OSError, ValueError) as cause:  # ValueError: a path with a null byte
        reason = f"cannot be read: {getattr(cause, 'strerror', None) or cause}"
    raise error(f"{what} {str(path)!r} {reason}.", field=what.split()[0])


def read_json(path: str | Path, what: str, error: type[InvalidInputError] = InvalidInputError) -> Any:
    """As :func:`read_text`, of a file of JSON."""
    text = read_text(path, what, error)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as cause:
        reason = f"is not valid JSON: {cause}"
    except RecursionError:
        reason = "is not valid JSON: it is nested too deep"
    except ValueError as cause:  # an integer of thousands of digits
        reason = f"cannot be read: {cause}"
    raise error(f"{what} {str(path)!r} {reason}.")


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file as UTF-8; see :func:`write_bytes_atomically`."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as cause:
        raise _unwritable(repr(str(path)), "written", cause) from None
    write_bytes_atomically(path, data)


def write_bytes_atomically(path: str | Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    A link stays: the file that it leads to is written.

    Raises:
      InvalidInputError: the file cannot be written.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)  # a device or a pipe is written to, not replaced
        else:
            _replace(Path(os.path.realpath(target)), data)
    except (OSError, ValueError) as cause:  # ValueError: a null byte in the path
        raise _unwritable(repr(str(path)), "written", cause) from None


def remove_temporaries(path: str | Path) -> None:
    """Remove temporary files of killed writers of ``path``; no writer may be running."""
    target = Path(path)
    for temporary in target.parent.glob(f"{glob.escape(_temporary_stem(target))}*.tmp"):
        temporary.unlink(missing_ok=True)


def make_folder(path: str | Path) -> None:
    """Make a folder and its parents if they do not exist.

    Raises:
      InvalidInputError: the folder cannot be made.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as cause:
        raise _unwritable(f"folder {str(path)!r}", "made", cause) from None


def _replace(target: Path, data: bytes) -> None:
    # In the same folder, since os.replace is atomic only within one file system.
    temporary = target.with_name(f"{_temporary_stem(target)}{secrets.token_hex(6)}.tmp")
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _temporary_stem(target: Path) -> str:
    return f".{target.name[:100]}."


def _unwritable(what: str, done: str, cause: OSError | ValueError) -> InvalidInputError:
    reason = getattr(cause, "strerror", None) or cause
    return InvalidInputError(f"{what} cannot be {done}: {reason}.", field="path")


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not a JSON number", name, 0)
