"""A trainable policy: a network with parameters in JAX. Importing this module imports JAX.

Compiled programs are kept on disk, so that a network compiles once and not in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from go_opt.agents.decoding.decode import Outputs as Outputs
from go_opt.agents.inputs.features import GraphFeatures
from go_opt.agents.inputs.padding import Bucket, ops_to_rows, rows_to_ops
from go_opt.agents.networks import PolicyConfig, PolicyNetwork, PolicyOutput, initial_parameters
from go_opt.agents.policy.forward import WALK_WEIGHTS, forward
from go_opt.agents.policy.policy_file import LoadedPolicy, write_policy
from go_opt.common.arrays import FloatArray
from go_opt.common.caches.folder import cache_folder
from go_opt.solver.walk.walk import NUM_FEATURES


@dataclass(frozen=True, eq=False)
class Policy:
    """The network of ``config`` with ``parameters``, and the weights of the walk."""

    config: PolicyConfig
    parameters: nnx.State
    walk_weights: FloatArray  # [W]

    def __call__(self, features: GraphFeatures) -> Outputs:
        """The outputs for a graph; nothing is compiled."""
        return forward(self.config, _arrays(self), features)


def untrained(config: PolicyConfig, seed: int) -> Policy:
    """A policy to train from, the same for the same ``seed``: it has no preference."""
    return Policy(config, initial_parameters(config, seed), np.zeros(NUM_FEATURES))


def to_ops(
    features: GraphFeatures, rows: PolicyOutput, walk_weights: FloatArray, walk_head: FloatArray
) -> Outputs:
    """The outputs of one padded graph, by op and without padding, with those of the walk."""
    schedule, fusion, log_std = (np.asarray(output, dtype=np.float64) for output in rows)
    keys = (rows_to_ops(features, schedule), rows_to_ops(features, fusion))
    return Outputs(walk_weights, walk_head, keys[0], keys[1], log_std)


def to_rows(features: GraphFeatures, by_op: Outputs, bucket: Bucket) -> PolicyOutput:
    """The network's part of ``by_op``, with zeros in the padding; gradients reach the network this way."""
    schedule: Any = ops_to_rows(features, by_op.schedule_key.astype(np.float32), bucket)
    fusion: Any = ops_to_rows(features, by_op.fusion_key.astype(np.float32), bucket)
    log_std: Any = by_op.exploration_log_std.astype(np.float32)
    return PolicyOutput(schedule, fusion, log_std)


def save_policy(
    path: str | Path,
    policy: Policy,
    card: Mapping[str, Any],
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
) -> None:
    """Write a policy; see :func:`go_opt.agents.policy.policy_file.write_policy`."""
    write_policy(path, policy.config, _arrays(policy), card, dtype)


def trainable(loaded: LoadedPolicy) -> Policy:
    """A loaded policy in the form for further training."""
    keys = _keys(loaded.config)
    leaves = [(key, leaf.replace(loaded.arrays[name])) for name, (key, leaf) in keys.items()]
    return Policy(loaded.config, nnx.from_flat_state(leaves), loaded.walk_weights)


def parameters_digest(policy: Policy) -> str:
    """SHA-256 of the parameters, which identifies a policy."""
    digest = hashlib.sha256()
    for name, array in _arrays(policy).items():
        digest.update(name.encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _arrays(policy: Policy) -> dict[str, NDArray[np.float32]]:
    """The parameters by name."""
    flat = nnx.to_flat_state(policy.parameters)
    of_network = {_name(key): np.asarray(leaf[...], dtype=np.float32) for key, leaf in flat}
    return of_network | {WALK_WEIGHTS: policy.walk_weights.astype(np.float32)}


@lru_cache(maxsize=4)  # a trace of the network takes 0.3 s
def _keys(config: PolicyConfig) -> dict[str, tuple[tuple[Any, ...], nnx.Param]]:
    """Key and shape of each parameter, by name."""
    shapes = nnx.state(nnx.eval_shape(lambda: PolicyNetwork(config, rngs=nnx.Rngs(0))), nnx.Param)
    return {_name(key): (key, leaf) for key, leaf in nnx.to_flat_state(shapes)}


def _name(key: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in key)


def enable_compilation_cache() -> None:
    """Cache all compiled programs in a folder of the user, if one is writable.

    A folder that is configured already, by ``JAX_COMPILATION_CACHE_DIR`` or otherwise, is kept.
    """
    # By default, JAX caches only programs that take seconds to compile.
    options: dict[str, Any] = {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        folder = cache_folder("jax")
        if folder is None:
            return
        options["jax_compilation_cache_dir"] = str(folder)
    for name, value in options.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
