"""The version of this go-opt."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _version() -> str:
    try:
        return version("go-opt")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


VERSION: Final = _version()
