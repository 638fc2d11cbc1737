"""The policy's side of a step: a forward pass, then a backward pass from gradients of its outputs.

The network takes part if a lesson draws keys; the walk learns graph by graph. Between the two passes stand
the solver and the environment, which JAX does not see: a program with a call-back could not be cached on
disk. Graphs of a step are stacked in one bucket and divided among the devices JAX sees, on every host that
takes part; parameters are on all.

Self-labelling (Corsini et al., *Self-labeling the job shop scheduling problem*, NeurIPS 2024): the
best samples of the policy are labels, whose log-probability is raised. Lessons differ in how
steep their losses are by orders of magnitude, so each gives the network a gradient of norm one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
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
from go_opt.agents.decoding.exploration import key_density
from go_opt.agents.inputs.padding import Bucket, PaddedGraph, pad
from go_opt.agents.networks import PolicyConfig, PolicyOutput, policy_outputs
from go_opt.agents.policy.network import Policy, to_ops, to_rows
from go_opt.agents.training.problems.cases import Case
from go_opt.agents.training.problems.environment import Session
from go_opt.agents.training.problems.rollout import Episodes, Settings, play
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


@dataclass(frozen=True, eq=False)
class Batch:
    """The episodes of one graph in one step, by lesson, and what they teach."""

    case: Case
    episodes: tuple[Episodes, ...]
    label_log_prob: tuple[float, ...]  # means over the labels
    gradient: Outputs  # of the loss, the lessons' added up


@dataclass(frozen=True, eq=False)
class Step:
    """The batches and metrics of one step."""

    batches: tuple[Batch, ...]
    metrics: dict[str, float]


def take_step(
    learner: Learner,
    state: LearnerState,
    cases: Sequence[Case],
    bucket: Bucket,
    sessions: Sequence[Session],
    settings: Settings,
    *,
    seed: tuple[int, ...],
    executor: Executor,
) -> tuple[LearnerState, Step]:
    """The state after one step on ``cases``, all of ``bucket``; graph by graph in threads.

    Args:
      sessions: the environment of each case.
      seed: seed of all draws.
    """
    outputs = learner.outputs(state, cases, bucket)
    seeds = lesson_seeds(seed, len(cases), settings)

    def play_one(i: int) -> Batch:
        return play_graph(cases[i], outputs[i], sessions[i], settings, seeds[i])

    batches = tuple(executor.map(play_one, range(len(cases))))
    state, norm = learner.update(state, cases, bucket, [batch.gradient for batch in batches])
    return state, Step(batches, _metrics(batches) | {"gradient_norm": norm})


def lesson_seeds(seed: tuple[int, ...], num_graphs: int, settings: Settings) -> list[list[int]]:
    """Of each graph of a step, for each lesson."""
    rng = np.random.default_rng(seed)
    seeds: list[list[int]] = rng.integers(2**31, size=(num_graphs, len(settings.lessons))).tolist()
    return seeds


def play_graph(
    case: Case, outputs: Outputs, session: Session, settings: Settings, seeds: Sequence[int]
) -> Batch:
    """The episodes of one graph, and the gradient of their loss."""
    episodes = tuple(
        play(case, outputs, lesson, session, seed)
        for lesson, seed in zip(settings.lessons, seeds, strict=True)
    )
    log_probs, gradients = [], []
    for each in episodes:
        best = each.labels()
        if not len(best.reward):
            log_probs.append(0.0)
            continue
        log_prob, gradient = mean_log_prob(case, outputs, best)
        log_probs.append(log_prob)
        gradients.append(_of_norm_one(gradient))
    nothing = Outputs(*(np.zeros_like(output) for output in outputs))
    loss = Outputs(*(-np.sum(parts, axis=0) for parts in zip(nothing, *gradients, strict=True)))
    return Batch(case, episodes, tuple(log_probs), loss)


def _of_norm_one(gradient: Outputs) -> Outputs:
    """With the network's part scaled; the walk scales its own."""
    of_network = gradient[2:]
    norm = np.sqrt(sum(float((part**2).sum()) for part in of_network))
    return Outputs(*gradient[:2], *(part / max(norm, 1e-30) for part in of_network))


def _metrics(batches: Sequence[Batch]) -> dict[str, float]:
    """Rewards, the labels' chance and what the solver had to do, by lesson."""
    metrics = {"reward": float(np.mean([each.reward.mean() for batch in batches for each in batch.episodes]))}
    for i, lesson in enumerate(batches[0].episodes):
        name = lesson.lesson.name
        played = [batch.episodes[i] for batch in batches]
        metrics[f"reward/{name}"] = float(np.mean([each.reward.mean() for each in played]))
        metrics[f"best_reward/{name}"] = float(np.mean([each.reward.max() for each in played]))
        metrics[f"label_log_prob/{name}"] = float(np.mean([batch.label_log_prob[i] for batch in batches]))
        metrics[f"invalid_share/{name}"] = float(np.mean([np.isinf(e.interval_s).mean() for e in played]))
        metrics[f"repaired_share/{name}"] = float(np.mean([d.is_repaired for e in played for d in e.decoded]))
    return metrics


# Design section 7: ``log p(keys) + log p(placement | order, kernels)``. Tasks that the lesson does
# not include do not contribute.


def mean_log_prob(case: Case, outputs: Outputs, episodes: Episodes) -> tuple[float, Outputs]:
    """The mean log-probability of ``episodes`` under ``outputs``, and its gradient by ``outputs``."""
    lesson, count = episodes.lesson, len(episodes.reward)
    weight = np.full(count, 1.0 / count)
    total, gradient = 0.0, Outputs(*(np.zeros_like(output) for output in outputs))
    drawn = (
        ("schedule", outputs.schedule_key, episodes.schedule_key, gradient.schedule_key),
        ("fusion", outputs.fusion_key, episodes.fusion_key, gradient.fusion_key),
    )
    for row, (task, mean, keys, to_mean) in enumerate(drawn):
        if task in lesson.tasks:
            density = key_density(case.key_space, mean, outputs.exploration_log_std[row], keys)
            total += float(density.log_density.mean())
            to_mean += weight @ density.to_mean
            gradient.exploration_log_std[row] += weight @ density.to_log_std
    for walk in filter(None, (each.walk for each in episodes.decoded)):
        of_walk = walk.case.gradient(outputs.walk_weights, outputs.walk_head, walk.is_cut[None])
        total += float(of_walk.log_prob[0]) / count
        gradient.walk_weights[:] += of_walk.weights / count
        gradient.walk_head[:] += of_walk.head / count
    return total, gradient
