"""What running a plan needs beyond a plain install: the extra ``run``."""

from __future__ import annotations

from importlib.util import find_spec

from go_opt.errors import InvalidInputError


def check_installed(package: str) -> None:
    """Refuse to go on without a package of the extra.

    Raises:
      InvalidInputError: it is not installed; one sentence that names the extra.
    """
    if find_spec(package) is None:
        raise InvalidInputError(f"{package} is not installed: use `pip install 'go-opt[run]'`.")
