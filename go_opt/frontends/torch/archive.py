"""Reads the program in a file of ``torch.export.save``, JSON in a zip archive, without torch."""

from __future__ import annotations

import json
import os
import re
import zipfile
from typing import IO, Any

from go_opt.errors import ModelError

_SCHEMA_MAJOR = 8
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
            texts = [archive.read(name) for name in archive.namelist() if _PROGRAM.search(name)]
        programs = [json.loads(text) for text in texts]
    except OSError as error:
        raise ModelError(f"torch archive {shown} cannot be read: {error.strerror or error}.") from None
    except (zipfile.BadZipFile, ValueError, RecursionError):
        raise ModelError(f"{shown} is truncated or no archive of torch.export.save.") from None
    if len(programs) != 1:
        raise ModelError(f"torch archive {shown} has {len(programs)} programs, not one of torch.export.save.")
    program: dict[str, Any] = programs[0]
    version = program.get("schema_version", {}) if isinstance(program, dict) else {}
    if version.get("major") != _SCHEMA_MAJOR:
        raise ModelError(
            f"torch archive {shown} has schema {version.get('major')}, where {_SCHEMA_MAJOR} is known: "
            "export the model with a newer torch."
        )
    return program
