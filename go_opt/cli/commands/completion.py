"""What a shell offers where a target or a model is asked for."""

from __future__ import annotations

from pathlib import Path

ZOO_PREFIX = "zoo:"


def targets_named(incomplete: str) -> list[str]:
    """Targets that ship, and files."""
    from go_opt.env import target_names

    return [*(name for name in target_names() if name.startswith(incomplete)), *_files(incomplete, ".toml")]


def models_named(incomplete: str) -> list[str]:
    """Graphs of the zoo, and files."""
    names = [f"{ZOO_PREFIX}{name}" for name in zoo_named("")]
    return [
        *(name for name in names if name.startswith(incomplete)),
        *_files(incomplete, ".onnx", ".pt2", ".mlir", ".json"),
    ]


def zoo_named(incomplete: str) -> list[str]:
    """Graphs of the zoo by name."""
    from go_opt.env import zoo_entries

    return [entry.name for entry in zoo_entries() if entry.name.startswith(incomplete)]


def _files(incomplete: str, *suffixes: str) -> list[str]:
    """Files of these kinds, and folders that may hold some."""
    folder, _, start = incomplete.rpartition("/")
    before = f"{folder}/" if "/" in incomplete else ""
    try:
        found = sorted(Path(before or ".").iterdir())
    except OSError:
        return []
    return [
        f"{before}{path.name}{'/' if path.is_dir() else ''}"
        for path in found
        if path.name.startswith(start) and (path.name.endswith(suffixes) or path.is_dir())
        if start or not path.name.startswith(".")
    ]
