"""Reads and writes files: writes are atomic, errors are one sentence."""

from __future__ import annotations

import glob
import io
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final, TextIO

from go_opt.errors import InvalidInputError

MAX_BYTES: Final = 64 * 2**20  # a graph of 100,000 ops takes about as many
MAX_VALUES: Final = 4_000_000  # of JSON: each may take 100 bytes of memory
MAX_LINES: Final = 500_000  # of a table


def read_text(
    path: str | Path,
    what: str,
    error: type[InvalidInputError] = InvalidInputError,
    *,
    max_bytes: int = MAX_BYTES,
) -> str:
    """The UTF-8 text of a file; ``what`` names it in errors, which are of the class ``error``."""
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)  # also of a device, which may never end
        if len(data) <= max_bytes:
            return data.decode("utf-8")
        reason = f"is larger than {max_bytes // 2**20} MiB, the limit"
    except UnicodeDecodeError:
        reason = "is not UTF-8 text"
    except (OSError, ValueError) as cause:  # ValueError: a path with a null byte
        reason = f"cannot be read: {getattr(cause, 'strerror', None) or cause}"
    raise error(f"{what} {str(path)!r} {reason}.", field=what.split()[0])


def open_table(path: str | Path, what: str) -> TextIO:
    """The lines of a file of CSV, whose errors are those of :func:`read_text`."""
    text = read_text(path, what).removeprefix("\ufeff")
    if max(text.count("\n"), text.count("\r")) > MAX_LINES:
        raise InvalidInputError(
            f"{what} {str(path)!r} has more than {MAX_LINES} lines, the limit.", field=what.split()[0]
        )
    # A StringIO would take four bytes for each character.
    return io.TextIOWrapper(io.BytesIO(text.encode("utf-8")), "utf-8", newline="")


def read_json(path: str | Path, what: str, error: type[InvalidInputError] = InvalidInputError) -> Any:
    """As :func:`read_text`, of a file of JSON or its part ``plan.json#/models/0/plan`` (RFC 6901)."""
    whole, part, pointer = str(path).partition("#/")
    if part and not os.path.exists(path):
        found = read_json(whole, what, error)
        for key in pointer.split("/"):
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (LookupError, TypeError, ValueError):
                raise error(f"{what} {whole!r} has no {pointer[:60]!r}.", field=what.split()[0]) from None
        return found
    text = read_text(path, what, error)
    if sum(text.count(sign) for sign in ",[{") > MAX_VALUES:  # also those in names
        raise error(f"{what} {str(path)!r} has more than {MAX_VALUES} values, the limit.")
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
