"""HDP: a grouper and a placer of groups, trained together by REINFORCE on one graph.

Mirhoseini et al., "A hierarchical model for device placement", ICLR 2018. The grouper is a
feed-forward network that draws a group for each kernel; the placer a sequence-to-sequence LSTM with
attention that reads what the groups hold and draws a device for each. Both are moved by the policy
gradient of ``-sqrt(makespan)`` over a moving average, with ``PLACEMENTS`` of each grouping (the
paper's m = 1, k = 4), Adam, clipped gradients and logits ``C tanh(x / T)``. The number of groups is
that of the authors' published code, 20 a device and 256 at most. Ours is that kernels are what is
grouped, that the grouper is told their place in waves, and a width and a learning rate for seconds.

Axes: ``M`` kernels, ``E`` pairs of kernels, ``G`` groups, ``P`` placements of a grouping, ``D`` devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from go_opt.common.arrays import row_pointers
from go_opt.env.cost.tables import standardise
from tests.benchmarks.go_table_kernels import Best, Kernels

PLACEMENTS: Final = 4
MOST_GROUPS: Final = 256
GROUPS_A_DEVICE: Final = 20
WAVES: Final = 8  # that tell a kernel's place, so that neighbours are grouped from the first draw on
WAVES_SCALE: Final = 4.0
NEIGHBOURS: Final = 4  # that a kernel's features name, of those it reads and of its readers
DECAY: Final = 0.9  # of the baseline
MOST_NORM: Final = 1.0  # of a gradient


@dataclass(frozen=True)
class Settings:
    """The paper's, but for width and learning rate: with its own, seconds end before it learns."""

    hidden: int = 64  # of the placer; the paper has 512
    grouper_hidden: int = 64
    learning_rate: float = 0.01  # the paper has 0.1
    tanh_constant: float = 5.0
    temperature: float = 10.0


class Inputs(NamedTuple):
    """What the networks are told of a graph."""

    features: jax.Array  # [M, F] of the grouper
    held: jax.Array  # [M, H] that groups add up: kernels by op type, and bytes they send
    source: jax.Array  # [E]
    reader: jax.Array  # [E]


class Grouper(nnx.Module):
    """Logits of groups."""

    def __init__(self, num_features: int, num_groups: int, settings: Settings, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(num_features, settings.grouper_hidden, rngs=rngs)
        self.second = nnx.Linear(settings.grouper_hidden, num_groups, rngs=rngs)

    def __call__(self, features: jax.Array) -> jax.Array:
        """[M, G] of features [M, F]."""
        return self.second(nnx.relu(self.first(features)))


class Placer(nnx.Module):
    """Devices of groups, one after the other."""

    def __init__(self, num_inputs: int, num_devices: int, settings: Settings, rngs: nnx.Rngs) -> None:
        hidden, half = settings.hidden, settings.hidden // 2
        self.settings = settings
        self.forward = nnx.OptimizedLSTMCell(num_inputs, half, rngs=rngs)
        self.backward = nnx.OptimizedLSTMCell(num_inputs, half, rngs=rngs)
        self.decoder = nnx.OptimizedLSTMCell(hidden, hidden, rngs=rngs)
        self.devices = nnx.Embed(num_devices + 1, hidden, rngs=rngs)  # the last one starts a sequence
        self.memory = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.query = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.score = nnx.Linear(hidden, 1, use_bias=False, rngs=rngs)
        self.logits = nnx.Linear(2 * hidden, num_devices, use_bias=False, rngs=rngs)

    def __call__(self, groups: jax.Array, keys: jax.Array, given: jax.Array | None) -> tuple[jax.Array, ...]:
        """``(devices [P, G], log-probability [P])`` of groups [G, I], drawn by keys [P] or given [P, G]."""
        states, last = self._encoded(groups)
        memory = self.memory(states)
        if given is None:
            return jax.vmap(lambda key: self._decoded(states, memory, last, key, None))(keys)
        return jax.vmap(lambda devices: self._decoded(states, memory, last, keys[0], devices))(given)

    def _encoded(self, groups: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """``(states [G, hidden], last state)`` of both directions."""
        zeros = jnp.zeros(self.settings.hidden // 2)
        there, ahead = jax.lax.scan(self.forward, (zeros, zeros), groups)
        back, behind = jax.lax.scan(self.backward, (zeros, zeros), groups, reverse=True)
        states = jnp.concatenate([ahead, behind], axis=-1)
        return states, tuple(jnp.concatenate(pair) for pair in zip(there, back, strict=True))

    def _decoded(
        self,
        states: jax.Array,
        memory: jax.Array,
        last: tuple[jax.Array, jax.Array],
        key: jax.Array,
        given: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        def step(carry: Any, of_step: tuple[jax.Array, jax.Array]) -> Any:
            state, before = carry
            drawing, chosen = of_step
            state, output = self.decoder(state, self.devices(before))
            weight = jax.nn.softmax(self.score(jnp.tanh(memory + self.query(output)))[:, 0])
            logits = self.logits(jnp.concatenate([output, weight @ states]))
            logits = self.settings.tanh_constant * jnp.tanh(logits / self.settings.temperature)
            device = jax.random.categorical(drawing, logits) if given is None else chosen
            return (state, device), (device, jax.nn.log_softmax(logits)[device])

        num_groups = len(states)
        chosen = jnp.zeros(num_groups, jnp.int32) if given is None else given
        first = (last, jnp.asarray(self.devices.num_embeddings - 1))
        _, (devices, log_p) = jax.lax.scan(step, first, (jax.random.split(key, num_groups), chosen))
        return devices, log_p.sum()


class Networks(nnx.Module):
    """Both, with what lies between them."""

    def __init__(self, inputs: Inputs, num_devices: int, settings: Settings, rngs: nnx.Rngs) -> None:
        self.num_groups = min(MOST_GROUPS, GROUPS_A_DEVICE * num_devices)
        self.grouper = Grouper(inputs.features.shape[1], self.num_groups, settings, rngs)
        self.placer = Placer(inputs.held.shape[1] + 2 * self.num_groups, num_devices, settings, rngs)

    def draw(self, inputs: Inputs, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``(group [M], devices [P, G])``."""
        of_group, of_devices = jax.random.split(key)
        group = jax.random.categorical(of_group, self.grouper(inputs.features))
        keys = jax.random.split(of_devices, PLACEMENTS)
        return group, self.placer(self._held(inputs, group), keys, None)[0]

    def log_probability(self, inputs: Inputs, group: jax.Array, devices: jax.Array) -> jax.Array:
        """[P] of a grouping [M] and placements [P, G] of its groups."""
        log_p = jax.nn.log_softmax(self.grouper(inputs.features))
        of_groups = jnp.take_along_axis(log_p, group[:, None], axis=1).sum()
        unused = jax.random.split(jax.random.key(0), 1)
        return of_groups + self.placer(self._held(inputs, group), unused, devices)[1]

    def _held(self, inputs: Inputs, group: jax.Array) -> jax.Array:
        """[G, H + 2 G] what groups hold and which groups they send to and read from, scaled to one."""
        held = jax.ops.segment_sum(inputs.held, group, self.num_groups)
        sent = jnp.zeros((self.num_groups, self.num_groups))
        sent = sent.at[group[inputs.source], group[inputs.reader]].add(1.0)
        everything = jnp.concatenate([sent, sent.T, held], axis=1)
        return everything / (everything.max(axis=1, keepdims=True) + 1.0)


def inputs_of(kernels: Kernels) -> Inputs:
    """As in section 2 of the paper op types, sizes of outputs, places of neighbours; and the own place."""
    types, of_op = np.unique(kernels.graph.op_types, return_inverse=True)
    by_type = np.zeros((kernels.num_kernels, len(types)))
    np.add.at(by_type, (kernels.kernel_of, of_op.ravel()), 1.0)
    num_bytes = np.bincount(kernels.source, weights=kernels.num_bytes, minlength=kernels.num_kernels)
    sizes = np.log1p(num_bytes)[:, None]
    around = [
        _around(kernels, kernels.reader, kernels.source),
        _around(kernels, kernels.source, kernels.reader),
    ]
    place = np.arange(kernels.num_kernels)[:, None]
    features, *_ = standardise(np.concatenate([by_type, sizes, place, *around], axis=1))
    angle = np.pi * place / kernels.num_kernels * np.arange(1, WAVES + 1)
    waves = WAVES_SCALE * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    held = np.concatenate([by_type, sizes / max(sizes.max(), 1e-9)], axis=1)
    arrays = (jnp.asarray(array, jnp.float32) for array in (np.concatenate([features, waves], axis=1), held))
    return Inputs(*arrays, jnp.asarray(kernels.source), jnp.asarray(kernels.reader))


def _around(kernels: Kernels, of: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[M, NEIGHBOURS] places of the first ``other`` ends of its pairs, its own where there are fewer."""
    places = np.tile(np.arange(kernels.num_kernels)[:, None], (1, NEIGHBOURS))
    by_kernel = np.argsort(of, kind="stable")
    rank = np.arange(len(of)) - row_pointers(of, kernels.num_kernels)[of[by_kernel]]
    few = by_kernel[rank < NEIGHBOURS]
    places[of[few], rank[rank < NEIGHBOURS]] = other[few]
    return places


def train(
    kernels: Kernels, best: Best, seed: int, left_s: Callable[[], float], settings: Settings | None = None
) -> None:
    """Draw, evaluate and update while seconds are left; :func:`compiled_steps` first is on no clock."""
    inputs, networks, optimizer, draw, update = compiled_steps(kernels, seed, settings or Settings())
    key, baseline = jax.random.key(seed), None
    unit_s = best.add_scheduled(kernels, np.zeros(kernels.num_kernels, np.int32), "hdp")
    for turn in itertools.count():
        if left_s() <= 0:
            return
        group, devices = draw(networks, inputs, jax.random.fold_in(key, turn))
        placements = np.asarray(devices)[:, np.asarray(group)].astype(np.int32)
        makespans_s = [best.add_scheduled(kernels, placement, "hdp") for placement in placements]
        reward = -np.sqrt(np.array(makespans_s) / unit_s)
        baseline = reward.mean() if baseline is None else baseline
        update(networks, optimizer, inputs, group, devices, jnp.asarray(reward - baseline, jnp.float32))
        baseline = DECAY * baseline + (1.0 - DECAY) * reward.mean()


def compiled_steps(kernels: Kernels, seed: int, settings: Settings) -> tuple[Any, ...]:
    """``(inputs, networks, optimizer, draw, update)``, fresh, with both steps compiled."""
    inputs = inputs_of(kernels)
    networks = Networks(inputs, kernels.num_devices, settings, nnx.Rngs(seed))
    optimizer = nnx.Optimizer(networks, _clipped_adam(settings.learning_rate), wrt=nnx.Param)
    group, devices = _draw(networks, inputs, jax.random.key(seed))
    _update(networks, optimizer, inputs, group, devices, jnp.zeros(PLACEMENTS))  # moves nothing
    return inputs, networks, optimizer, _draw, _update


@cache  # a step is compiled once for each of them
def _clipped_adam(learning_rate: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(MOST_NORM), optax.adam(learning_rate))


@nnx.jit
def _draw(networks: Networks, inputs: Inputs, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return networks.draw(inputs, key)


@nnx.jit
def _update(
    networks: Networks,
    optimizer: nnx.Optimizer,
    inputs: Inputs,
    group: jax.Array,
    devices: jax.Array,
    advantage: jax.Array,
) -> None:
    def loss(networks: Networks) -> jax.Array:
        return -(advantage * networks.log_probability(inputs, group, devices)).mean()

    optimizer.update(networks, nnx.grad(loss)(networks))
