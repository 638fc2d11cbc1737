"""The packages that only some features need, each with the extra of go-opt that installs it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from go_opt.errors import InvalidInputError

TRAINING: Final = ("flax", "jax", "optax", "tensorboardX")
EXTRA_OF: Final = {
    **dict.fromkeys(TRAINING, "train"),
    **dict.fromkeys(("onnxruntime", "scipy"), "run"),
    "gymnasium": "gymnasium",
    "openvino": "openvino",
    "torch": "torch",
}


def check_installed(feature: str, *packages: str) -> None:
    """Check that the packages of a feature are installed.

    Raises:
      InvalidInputError: one is not; the message names the extra.
    """
    for package in packages:
        if find_spec(package) is None:
            raise InvalidInputError(
                f"{feature} needs {package}, which is not installed: "
                f"pip install 'go-opt[{EXTRA_OF[package]}]'."
            )
