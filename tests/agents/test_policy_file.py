"""Policies on disk: what was saved is loaded, everything else is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from go_opt.agents.inputs.features import graph_features
from go_opt.agents.networks import PolicyConfig, initial_parameters
from go_opt.agents.policy.network import Policy, save_policy, trainable, untrained
from go_opt.agents.policy.policy_file import FORMAT, features_digest, load_policy, load_tensors, save_tensors
from go_opt.errors import PolicyError
from go_opt.solver.walk.walk import NUM_FEATURES
from tests.strategies import small_mcm, toy_graph

CONFIG = PolicyConfig(width=8, graphsage_layers=1, attention_layers=1, num_heads=2, rounds=1)
CARD = {"steps": 20_000, "seeds": [1, 2], "validation": {"nasnet": 1.5}}


@pytest.fixture(scope="module")
def policy() -> Policy:
    # What begins at zero is moved, so that the outputs tell the parameters apart.
    parameters = jax.tree.map(lambda leaf: leaf + np.float32(0.1), initial_parameters(CONFIG, 0))
    return Policy(CONFIG, parameters, np.arange(NUM_FEATURES) / 8.0)


@pytest.fixture(scope="module")
def content(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "policy"
    save_policy(path, policy, CARD)
    return path.read_bytes()


@pytest.fixture
def path(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)
    return path


def flat(policy: Policy) -> dict[tuple, np.ndarray]:
    of_network = {key: np.asarray(leaf[...]) for key, leaf in nnx.to_flat_state(policy.parameters)}
    return of_network | {("walk", "weights"): policy.walk_weights.astype(np.float32)}


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], object]) -> Path:
    """The file with its record and arrays changed in place."""
    record, arrays = load_tensors(path, FORMAT)
    change(record, arrays)
    save_tensors(path, FORMAT, record, arrays)
    return path


def test_what_was_saved_is_loaded(policy: Policy, path: Path) -> None:
    loaded = load_policy(path)
    assert (loaded.config, loaded.card) == (CONFIG, CARD)
    saved = flat(policy)
    again = flat(trainable(loaded))
    assert again.keys() == saved.keys()
    for key, array in again.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, saved[key])


def test_it_decides_the_same(policy: Policy, path: Path) -> None:
    features = graph_features(toy_graph(), small_mcm(3))
    for loaded, saved in zip(trainable(load_policy(path))(features), policy(features), strict=True):
        np.testing.assert_array_equal(loaded, saved)


def test_names_are_dotted(path: Path) -> None:
    assert "blocks.0.widen.kernel" in load_tensors(path, FORMAT)[1]


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_half_the_bytes(policy: Policy, path: Path, dtype: Any, step: float) -> None:
    half = path.with_name("half")
    save_policy(half, policy, CARD, dtype)
    _, arrays = load_tensors(half, FORMAT)
    assert {array.dtype.name for array in arrays.values()} == {dtype}
    assert sum(array.nbytes for array in arrays.values()) * 2 == sum(a.nbytes for a in flat(policy).values())
    for key, array in flat(trainable(load_policy(half))).items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, flat(policy)[key], rtol=step, atol=1e-7)


def test_it_can_be_trained_on(path: Path) -> None:
    for array in flat(trainable(load_policy(path))).values():
        assert array.flags.writeable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record, _: record.update(features="0" * 64), "was made for other features"),
        (lambda record, _: record.pop("features"), "was made for other features"),
        (lambda record, _: record.pop("card"), "has no card"),
        (lambda record, _: record.pop("config"), "must give the sizes width, "),
        (lambda record, _: record["config"].pop("rounds"), "must give the sizes width, "),
        (lambda record, _: record["config"].update(depth=1), "must give the sizes width, "),
        (lambda record, _: record["config"].update(rounds=True), "gives the size rounds as True"),
        (lambda record, _: record["config"].update(width=8.0), "gives the size width as 8.0"),
        (lambda record, _: record["config"].update(width=-8), "gives the size width as -8"),
        (lambda record, _: record["config"].update(num_heads=0), "gives sizes of no network"),
        (lambda record, _: record["config"].update(segment_ops=3), "must be a power of two, not 3.$"),
        (
            lambda record, _: record["config"].update(graphsage_layers=10**9),
            "graphsage_layers 1000000000, but",
        ),
        (lambda record, _: record["config"].update(graphsage_layers=2), "lacks the parameter 'graphsage.1."),
        (
            lambda record, _: record["config"].update(attention_layers=0),
            "no use for the parameter 'blocks.0.",
        ),
        (
            lambda record, _: record["config"].update(width=2**62),
            "gives the size width as 4611686018427387904",
        ),
        (lambda record, _: record["config"].update(width=2**30), "must be float32"),
        (
            lambda _, arrays: arrays.pop("blocks.0.widen.kernel"),
            "lacks the parameter 'blocks.0.widen.kernel'",
        ),
        (lambda _, arrays: arrays.update(x=np.zeros(1)), "has no use for the parameter 'x'"),
        (
            lambda _, arrays: arrays.update({"blocks.0.widen.kernel": np.zeros((4, 8), np.float32)}),
            r"holds 'blocks.0.widen.kernel' as float32\[4, 8\], must be float32\[8, 16\]",
        ),
        (
            lambda _, arrays: arrays.update({"blocks.0.widen.kernel": np.zeros((8, 4))}),
            r"holds 'blocks.0.widen.kernel' as float64\[8, 4\], must be float32\[8, 16\]",
        ),
        (
            lambda _, arrays: arrays["blocks.0.widen.kernel"].fill(np.nan),
            "holds NaN or infinity in 'blocks.0.widen.kernel'",
        ),
        (
            lambda _, arrays: arrays["blocks.0.widen.kernel"].fill(np.inf),
            "holds NaN or infinity in 'blocks.0.widen.kernel'",
        ),
    ],
)
def test_refused_in_one_sentence(path: Path, change: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message) as caught:
        load_policy(changed(path, change))
    assert str(caught.value).startswith(f"go-opt policy file {str(path)!r}")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e5])
def test_what_could_not_be_loaded_is_not_saved(policy: Policy, tmp_path: Path, value: float) -> None:
    worse = replace(
        policy, parameters=jax.tree.map(lambda leaf: np.full_like(leaf, value), policy.parameters)
    )
    with pytest.raises(PolicyError, match="holds NaN or infinity"):
        save_policy(tmp_path / "policy", worse, CARD, "float16")
    other = replace(policy, config=replace(CONFIG, width=16))
    with pytest.raises(PolicyError, match="must be float32"):
        save_policy(tmp_path / "policy", other, CARD)
    assert not list(tmp_path.iterdir())


def test_the_digest_is_of_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    before = features_digest()
    assert len(before) == 64
    monkeypatch.setattr("go_opt.agents.policy.policy_file.GLOBAL_COLUMNS", ("position",))
    assert features_digest.__wrapped__() != before


def test_the_default_network_stays_below_four_megabytes(tmp_path: Path) -> None:
    policy = untrained(PolicyConfig(), 0)
    save_policy(tmp_path / "policy", policy, {})
    assert (tmp_path / "policy").stat().st_size < 4e6
    assert asdict(load_policy(tmp_path / "policy").config) == asdict(PolicyConfig())
