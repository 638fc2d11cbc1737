"""Where a user's programs that are compiled once are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """A writable folder of this user, by what it keeps; None if there is none."""
    # The XDG base directory specification says to ignore relative paths.
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "go-opt" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None
