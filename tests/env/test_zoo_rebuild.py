"""The shipped graphs are what their recipes build: one from each library that needs no torch.

Skipped where the versions that pyproject.toml pins are not installed; CI installs them
and lets nothing be skipped.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from go_opt.env.zoo import INDEX_NAME, ZooEntry, zoo_entry
from tests.zoo_recipes.build import main

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
PINNED = dict(pin.split("==") for pin in PROJECT["optional-dependencies"]["zoo-jax"])


def installed(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


@pytest.mark.parametrize(
    ("name", "libraries"),
    [("squeezenet", ["onnx"]), ("unet", ["jax", "flax"]), ("mobilenet_v2", ["jax", "keras"])],
)
def test_a_graph_built_again_is_the_shipped_one(name: str, libraries: list[str], tmp_path: Path) -> None:
    for library in libraries:
        if installed(library) != PINNED[library]:
            pytest.skip(f"the zoo was built with {library} {PINNED[library]}, here is {installed(library)}")
    main([name, "--folder", str(tmp_path)])
    index = tomllib.loads((tmp_path / INDEX_NAME).read_text("utf-8"))
    assert ZooEntry(name=name, **index[name]) == zoo_entry(name)
