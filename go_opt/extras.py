"""The packages that only some features need, each with the extra of go-opt that installs it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from go_opt.errors import InvalidInputError

TRAINING: Final = ("flax", "jax", "optax", "tensorboardX")
EXTRA_OF: Final = {
    **dict.fromkeys(TRAINING, "train"),
    **dict.fromkeys(("onnxruntime", "scipy"), "run"),
    **dict.fromkeys(("ortools", "pymetis"), "bench"),
    "gymnasium": "gymnasium",
    "torch": "torch",
}


def why_missing(feature: str, *packages: str) -> str:
    """One sentence if ``feature`` lacks one of its packages; else empty."""
    for package in packages:
        if find_spec(package) is None:
            extra = EXTRA_OF[package]
            return f"{feature} needs {package}, which is not installed: pip install 'go-opt[{extra}]'."
    return ""


def check_installed(feature: str, *packages: str) -> None:
    """Check that the packages of a feature are installed.

    Raises:
      InvalidInputError: one is not; the message names the extra.
    """
    if why := why_missing(feature, *packages):
        raise InvalidInputError(why)
