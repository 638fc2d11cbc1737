"""Python processes that run the same go-opt as this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """What runs a module; no module of the working directory stands in for one of the library."""
    return (sys.executable, "-P", "-m", module, *arguments)


def module_environment() -> dict[str, str]:
    """This environment, with modules found where this process finds them, from any working directory."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
