"""Compiling is what takes the time here, not running what is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from go_opt.agents.training.requests import pretrain
from tests.agents.training.runs import Flaky, pretraining


@pytest.fixture(autouse=True, scope="package")
def quick_compilation() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pretraining that went through."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert pretrain(pretraining(), folder, Flaky()).is_complete
    return folder
