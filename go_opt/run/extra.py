"""Checks for the packages of the extra ``run``."""

from __future__ import annotations

from importlib.util import find_spec

from go_opt.errors import InvalidInputError


def check_installed(package: str) -> None:
    """Check that a package of the extra is installed.

    Raises:
      InvalidInputError: it is not installed; the message names the extra.
    """
    if find_spec(package) is None:
        raise InvalidInputError(f"{package} is not installed: use `pip install 'go-opt[run]'`.")
