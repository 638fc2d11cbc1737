"""JAX keeps compiled programs on disk, so that a network compiles once and not once a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax


def enable_compilation_cache() -> None:
    """Keep every compiled program in a folder of the user's; without it where none can be written.

    A folder that JAX was given already, by ``JAX_COMPILATION_CACHE_DIR`` or otherwise, stays.
    """
    # By default only what takes seconds to compile is kept.
    options: dict[str, Any] = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        folder = _user_folder()
        if folder is None:
            return
        options["jax_compilation_cache_dir"] = str(folder)
    for name, value in options.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


def _user_folder() -> Path | None:
    """A folder of this user that can be written to; None where there is none."""
    # The base directory specification has relative paths ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "go-opt" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None
