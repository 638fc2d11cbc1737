"""The policy's side of a step: a forward pass, then a backward pass from gradients of its outputs.

The network takes part if a lesson draws keys; the walk learns graph by graph. Between the two passes stand
the solver and the environment, which JAX does not see: a program with a call-back could not be cached on
disk. Graphs of a step are stacked in one bucket and divided among the devices JAX sees, on every host that
takes part; parameters are on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from go_opt.agents.decoding.decode import Outputs, neutral_outputs
from go_opt.agents.inputs.padding import Bucket, PaddedGraph, pad
from go_opt.agents.networks import PolicyConfig, PolicyOutput, policy_outputs
from go_opt.agents.policy.network import Policy, to_ops, to_rows
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.settings import Settings
from go_opt.agents.training.updates.walk_learner import WalkLearner
from go_opt.common.arrays import FloatArray
from go_opt.errors import InvalidInputError

_ADAM: Final = optax.scale_by_adam()


class Descent(NamedTuple):
    """Adam's numbers. The compiled update takes them as arguments: one program serves all runs."""

    learning_rate: float
    last_learning_rate: float
    warm_up_updates: int
    updates: int


@dataclass(frozen=True, eq=False)
class LearnerState:
    """The state that an update changes."""

    parameters: nnx.State
    optimizer: optax.ScaleByAdamState
    walk: WalkLearner


class Learner:
    """Runs and updates a policy on batches of graphs of one bucket."""

    def __init__(self, config: PolicyConfig, settings: Settings, updates: int) -> None:
        """``updates``: gradient steps of the whole run, over which the learning rate falls."""
        self.config = config
        self._settings = settings
        self._updates = updates
        self._runs_network = any(lesson.draws_keys for lesson in settings.lessons)
        self._descent = Descent(
            settings.learning_rate,
            settings.last_learning_rate,
            settings.warm_up_updates,
            updates,
        )
        self._mesh = Mesh(np.array(jax.devices()), ("graphs",))
        if settings.graphs_per_step % self._mesh.size:
            raise InvalidInputError(
                f"graphs_per_step is {settings.graphs_per_step}, must be a multiple of the "
                f"{self._mesh.size} devices.",
                field="graphs_per_step",
            )

    def start(self, policy: Policy) -> LearnerState:
        """Fresh optimisers for the parameters of ``policy``."""
        walk = WalkLearner.start(policy.walk_weights)
        return self.place(LearnerState(policy.parameters, _ADAM.init(policy.parameters), walk))

    def place(self, state: LearnerState) -> LearnerState:
        """``state`` on all devices."""
        parameters, optimizer = jax.device_put((state.parameters, state.optimizer), self._on_all)
        return replace(state, parameters=parameters, optimizer=optimizer)

    def outputs(self, state: LearnerState, cases: Sequence[Case], bucket: Bucket) -> list[Outputs]:
        """The policy's outputs for each of this host's ``cases``; keys of 0 if the network has no part."""
        walks = [state.walk.parameters(case.instance.graph.num_ops) for case in cases]
        if not self._runs_network:
            return [neutral_outputs(*walk) for walk in walks]
        padded = self._divided(_stacked([pad(case.features, bucket) for case in cases]))
        rows = _local(_forward(self.config, state.parameters, padded))
        return [
            to_ops(case.features, PolicyOutput(*(output[i] for output in rows)), *walk)
            for i, (case, walk) in enumerate(zip(cases, walks, strict=True))
        ]

    def update(
        self, state: LearnerState, cases: Sequence[Case], bucket: Bucket, gradients: Sequence[Outputs]
    ) -> tuple[LearnerState, float]:
        """The state after one step down ``gradients`` of the loss, by output; the network's norm of it."""
        walk = self._walked(state.walk, gradients)
        if not self._runs_network:
            return replace(state, walk=walk), 0.0
        padded = self._divided(_stacked([pad(case.features, bucket) for case in cases]))
        rows = [to_rows(case.features, g, bucket) for case, g in zip(cases, gradients, strict=True)]
        parameters, adam, norm = _update(
            self.config,
            self._descent,
            state.parameters,
            state.optimizer,
            padded,
            self._divided(_stacked(rows)),
        )
        return LearnerState(parameters, adam, walk), float(norm)

    def policy(self, state: LearnerState) -> Policy:
        """The policy as it is now, on one device."""
        return Policy(self.config, jax.tree.map(np.asarray, state.parameters), state.walk.weights)

    def _walked(self, walk: WalkLearner, gradients: Sequence[Outputs]) -> WalkLearner:
        """``walk`` after a step for each graph of all hosts."""
        settings = self._settings
        most = settings.graphs_per_step * self._updates
        for gradient in _of_all_hosts([each.walk_weights for each in gradients]):
            share = min(1.0, walk.updates / most)
            rate = settings.walk_rate + share * (settings.last_walk_rate - settings.walk_rate)
            walk = walk.stepped(-gradient, rate)
        if settings.walk_head_rate > 0.0:
            for gradient in _of_all_hosts([each.walk_head for each in gradients]):
                walk = walk.with_head(-settings.walk_head_rate * gradient)
        return walk

    @cached_property
    def _on_all(self) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    def _divided(self, tree: Any) -> Any:
        """Leading axes divided among the devices; each host gives its own part."""
        sharding = NamedSharding(self._mesh, PartitionSpec("graphs"))  # type: ignore[no-untyped-call]
        return jax.tree.map(partial(jax.make_array_from_process_local_data, sharding), tree)


def learning_rate(descent: Descent, update: jax.Array) -> jax.Array:
    """The learning rate of an update, by its number: a warm-up, then a linear decay.

    Adam's first steps move every parameter by the whole rate, whatever the gradient's size.
    """
    rising = descent.learning_rate * (update + 1) / (descent.warm_up_updates + 1)
    falls = jnp.maximum(1, descent.updates - descent.warm_up_updates)
    done = jnp.clip((update - descent.warm_up_updates) / falls, 0.0, 1.0)
    falling = descent.learning_rate + (descent.last_learning_rate - descent.learning_rate) * done
    return jnp.where(update < descent.warm_up_updates, rising, falling)


@partial(jax.jit, static_argnums=0)
def _forward(config: PolicyConfig, parameters: nnx.State, padded: PaddedGraph) -> PolicyOutput:
    outputs: PolicyOutput = jax.vmap(lambda graph: policy_outputs(config, parameters, graph))(padded)
    return outputs


# The old state is not donated: a run goes back to it where the environment fails.
@partial(jax.jit, static_argnums=0)
def _update(
    config: PolicyConfig,
    descent: Descent,
    parameters: nnx.State,
    adam: optax.ScaleByAdamState,
    padded: PaddedGraph,
    gradients: PolicyOutput,
) -> tuple[nnx.State, optax.ScaleByAdamState, jax.Array]:
    """A step along the network's gradients, pulled back from those of its outputs.

    Each graph's is divided by its own norm before the mean is taken: log-probabilities are
    sums over ops, and large graphs would drown the others.
    """

    def linear(parameters: nnx.State, graph: PaddedGraph, gradient: PolicyOutput) -> jax.Array:
        outputs = policy_outputs(config, parameters, graph)
        products = jax.tree.map(lambda output, g: jnp.sum(output * g), outputs, gradient)
        return jnp.sum(jnp.stack(jax.tree.leaves(products)))

    by_graph = jax.vmap(jax.grad(linear), in_axes=(None, 0, 0))(parameters, padded, gradients)
    norms = jax.vmap(_norm)(by_graph)
    share = 1.0 / (jnp.maximum(norms, 1e-12) * len(norms))
    gradient = jax.tree.map(lambda leaf: jnp.tensordot(share, leaf, axes=1), by_graph)
    rate = learning_rate(descent, adam.count)
    direction, adam = _ADAM.update(gradient, adam)
    moved = jax.tree.map(lambda parameter, along: parameter - rate * along, parameters, direction)
    return moved, adam, norms.mean()


def _norm(tree: nnx.State) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)])))


def _of_all_hosts(rows: Sequence[FloatArray]) -> FloatArray:
    """The rows of the hosts, one after the other."""
    stacked = np.stack(rows)
    if jax.process_count() > 1:
        stacked = np.asarray(multihost_utils.process_allgather(stacked, tiled=True), np.float64)
    return stacked


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _local(rows: PolicyOutput) -> list[np.ndarray]:
    """This host's rows of each output, in order."""
    local = []
    for output in rows:
        shards = sorted(output.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        local.append(np.concatenate([np.asarray(shard.data) for shard in shards]))
    return local
