"""Names of a package that are imported when they are first used, so that importing the package is cheap."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_imports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    The names are those that the package imports below ``if TYPE_CHECKING:``, where type checkers and
    editors find them: so each is written once. A name must not be one of the package's modules.
    """
    home = sys.modules[package]
    assert home.__spec__ is not None
    source = home.__spec__.loader.get_source(package)  # type: ignore[union-attr]
    module_of = {
        alias.name: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname == alias.name
    }

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    def names() -> list[str]:
        return [*vars(home), *module_of]

    return get, names, sorted(module_of)
