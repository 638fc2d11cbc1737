"""Reads the program in a file of ``torch.export.save``, JSON in a zip archive, without torch."""

from __future__ import annotations

import json
import os
import re
import zipfile
from typing import IO, Any, Final

from go_opt.errors import ModelError

_SCHEMA_MAJOR = 8
_MOST_BYTES: Final = 32 << 20  # about 2 kB a node; parsed, the text takes up to 25 times as much
# The second path is that of torch before 2.8.
_PROGRAM = re.compile(r"(^|/)models/[^/]+\.json$|^serialized_exported_program\.json$")


def read_program(source: str | os.PathLike[str] | IO[bytes]) -> dict[str, Any]:
    """The program of an archive, as ``torch/_export/serde/schema.py`` describes it; weights are not read.

    Raises:
      ModelError: the file cannot be read, or is not an archive of one program.
    """
    shown = repr(str(source)) if isinstance(source, str | os.PathLike) else "in memory"
    try:
        with zipfile.ZipFile(source) as archive:
            names = [name for name in archive.namelist() if _PROGRAM.search(name)]
            text = _unpacked(archive, names[0]) if len(names) == 1 else b""
        is_too_long = len(text) > _MOST_BYTES
        program = json.loads(text) if names and text and not is_too_long else {}
    except OSError as error:
        raise ModelError(f"torch archive {shown} cannot be read: {error.strerror or error}.") from None
    except Exception:  # damaged archives fail in more ways than can be named
        raise ModelError(f"{shown} is truncated or no archive of torch.export.save.") from None
    if len(names) != 1:
        raise ModelError(f"torch archive {shown} has {len(names)} programs, not one of torch.export.save.")
    if is_too_long:
        raise ModelError(
            f"torch archive {shown} has a program of more than {_MOST_BYTES >> 20} MiB without its weights."
        )
    version = program.get("schema_version") if isinstance(program, dict) else None
    version = version if isinstance(version, dict) else {}
    if version.get("major") != _SCHEMA_MAJOR:
        raise ModelError(
            f"torch archive {shown} has schema {version.get('major')}, where {_SCHEMA_MAJOR} is known: "
            "export the model with a newer torch."
        )
    return program


def _unpacked(archive: zipfile.ZipFile, name: str) -> bytes:
    """The content of an entry, up to one byte more than is read; the size it declares may be false."""
    with archive.open(name) as entry:
        return entry.read(_MOST_BYTES + 1)
