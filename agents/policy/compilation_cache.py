"""Keeps JAX's compiled programs on disk, so that a network compiles once and not in every process."""

from __future__ import annotations

from typing import Any

import jax

from go_opt.common.caches.folder import cache_folder


def enable_compilation_cache() -> None:
    """Cache all compiled programs in a folder of the user, if one is writable.

    A folder that is configured already, by ``JAX_COMPILATION_CACHE_DIR`` or otherwise, is kept.
    """
    # By default, JAX caches only programs that take seconds to compile.
    options: dict[str, Any] = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        folder = cache_folder("jax")
        if folder is None:
            return
        options["jax_compilation_cache_dir"] = str(folder)
    for name, value in options.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
