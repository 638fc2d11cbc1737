"""Checkpoints: bit for bit, and whole whenever the run is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from go_opt.agents.networks import PolicyConfig, initial_parameters
from go_opt.agents.policy.policy_file import TensorFormat, save_tensors
from go_opt.agents.training.checkpoint import (
    FILE_NAME,
    FORMAT,
    Checkpoint,
    from_arrays,
    load_checkpoint,
    save_checkpoint,
    to_arrays,
)
from go_opt.errors import InvalidInputError, PolicyError

CONFIG = PolicyConfig(width=8, graphsage_layers=1, attention_layers=1, num_heads=2)
# Saves checkpoints whose arrays are all equal to their step, until it is killed.
SAVER = """
import itertools, sys
import numpy as np
from go_opt.agents.training.checkpoint import Checkpoint, save_checkpoint
for step in itertools.count(1):
    arrays = {name: np.full(300_000, step, dtype=np.int32) for name in "ab"}
    save_checkpoint(sys.argv[1], Checkpoint({}, {"step": step}, arrays))
    print(step, flush=True)
"""


def equal_bits(left: Any, right: Any) -> bool:
    """Structure, types and bits."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in pairs
    )


def trained() -> dict[str, Any]:
    """Parameters and optimiser after two steps along made-up gradients."""
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 9)))
    first, *gradients = (initial_parameters(CONFIG, seed) for seed in range(3))

    @jax.jit
    def train() -> dict[str, Any]:
        parameters, state = first, optimiser.init(first)
        for gradient in gradients:
            updates, state = optimiser.update(gradient, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        return {"parameters": parameters, "optimiser": state}

    return train()


def test_a_run_comes_back_bit_for_bit(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    run = trained()
    progress = {"step": 2, "samples": 64, "best": None}
    save_checkpoint(folder, Checkpoint({"seed": 1}, progress, to_arrays("run", run)))
    loaded = load_checkpoint(folder)
    assert loaded is not None
    assert (loaded.request, loaded.progress) == ({"seed": 1}, progress)
    assert equal_bits(from_arrays("run", loaded.arrays, like=run), run)
    assert [file.name for file in folder.iterdir()] == [FILE_NAME]


def test_names_by_hand() -> None:
    tree = {"a": [np.zeros(1), (np.ones(2),)], "b": None}
    assert list(to_arrays("x", tree)) == ["x/['a'][0]", "x/['a'][1][0]"]


def test_types_and_bits_are_kept() -> None:
    tree = [
        jnp.array([1.5, jnp.nan], dtype=jnp.bfloat16),
        np.array(2**53 + 1, dtype=np.int64),
        np.array([-0.0, np.inf]),
        jax.random.key_data(jax.random.key(3)),
        np.zeros((0, 2), dtype=np.bool_),
    ]
    assert equal_bits(from_arrays("x", to_arrays("x", tree), like=tree), tree)


def test_prefixes_keep_trees_apart() -> None:
    arrays = to_arrays("best", [np.zeros(1)]) | to_arrays("best of all", [np.ones(1)])
    assert from_arrays("best", arrays, like=[np.zeros(1)])[0] == 0
    assert from_arrays("best of all", arrays, like=[np.zeros(1)])[0] == 1


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ([np.zeros(2)], r"holds what this run has no use for: 'x/\[1\]'\.$"),
        ([np.zeros(2), np.zeros(1), np.zeros(1)], r"lacks 'x/\[2\]'\.$"),
        ([np.zeros(3), np.zeros(1)], r"holds 'x/\[0\]' as float64\[2\], this run needs float64\[3\]\.$"),
        ([np.zeros(2), np.zeros(1, np.int32)], r"as float64\[1\], this run needs int32\[1\]\.$"),
    ],
)
def test_of_another_network(like: Any, message: str) -> None:
    arrays = to_arrays("x", [np.zeros(2), np.zeros(1)])
    with pytest.raises(PolicyError, match=message):
        from_arrays("x", arrays, like)


def test_no_checkpoint(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "absent") is None


def test_a_checkpoint_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    save_checkpoint(tmp_path, Checkpoint({}, {}, to_arrays("x", np.zeros(9))))
    whole = path.read_bytes()
    for kept in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(PolicyError, match="is truncated"):
            load_checkpoint(tmp_path)
    save_tensors(path, TensorFormat(FORMAT.name, FORMAT.version + 1), {}, {})
    with pytest.raises(PolicyError, match=f"is of version {FORMAT.version + 1}"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, Checkpoint({"seed": 1}, {"step": 3}, to_arrays("x", np.zeros(9))))
    whole = path.read_bytes()
    for at in (whole.index(b'step\\": 3') + 8, len(whole) - 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(PolicyError, match="is damaged: its digest is of other content"):
            load_checkpoint(tmp_path)
    save_tensors(path, FORMAT, {"request": {}}, {})
    with pytest.raises(PolicyError, match="lacks the request or the progress"):
        load_checkpoint(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match=r"^folder '.*' cannot be made: .*\.$"):
        save_checkpoint(tmp_path / "file", Checkpoint({}, {}, {}))


def test_a_failed_save_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Checkpoint({}, {"step": 1}, {}))
    with pytest.raises(PolicyError):
        save_checkpoint(tmp_path, Checkpoint({}, {"step": float("nan")}, {}))
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded.progress == {"step": 1}


def test_killed_at_any_moment(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert saver.stdout is not None
        saver.stdout.readline()
        time.sleep(rng.uniform(0, 0.05))
        saver.kill()
        done = 1 + len(saver.stdout.readlines())
        saver.stdout.close()
        saver.wait()
        loaded = load_checkpoint(tmp_path)
        assert loaded is not None
        step = loaded.progress["step"]
        assert step in (done, done + 1)
        assert all((array == step).all() for array in loaded.arrays.values())
    save_checkpoint(tmp_path, Checkpoint({}, {}, {}))
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
