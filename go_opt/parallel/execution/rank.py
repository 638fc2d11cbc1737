"""One pipeline rank of a run: it follows its actions, step by step, and measures what it keeps.

Messages between ranks go over gloo: each device sends its part to its peer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from go_opt.parallel import Configuration, Transformer
from go_opt.parallel.execution.decoder import Array, StageOf, Weights, adam, first_weight, names_of, run_stage
from go_opt.parallel.execution.processes import Action

Exported = Mapping[str, Any]  # the names of an exported module of shardings


@dataclass(frozen=True)
class Meshed:
    """Arrays lie as an exported module says, on the mesh of one rank."""

    exported: Exported
    rank: int

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        mesh: jax.sharding.Mesh = self.exported["mesh"](self.rank)
        return mesh

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def spec(self, name: str, which: str) -> PartitionSpec:
        """Of a parameter: of its ``weight``, or what of it is ``read``, its ``gradient`` or ``moments``."""
        row = self.exported["ENDS"].get(name) or self.exported["LAYER"][name.rpartition(".")[2]]
        spec: PartitionSpec = getattr(row, which)
        return spec

    def activation(self, name: str) -> NamedSharding:
        """Of [D, sequences, …], or of the [D] losses of replicas."""
        within = () if name == "loss" else without_data(self.exported["ACTIVATIONS"][name])
        return self.sharding(PartitionSpec("data", *within))

    def put(self, name: str, array: np.ndarray) -> Array:
        """An activation, [D, sequences, …], on the devices."""
        return jax.device_put(array, self.activation(name))

    def sums(self, name: str, zero: int) -> NamedSharding:
        """Of the sum of a parameter's gradients within a step: of each replica, or with ZeRO 2 of all."""
        if zero >= 2:
            return self.sharding(self.spec(name, "gradient"))
        return self.sharding(PartitionSpec("data", *self.spec(name, "read")))

    def place(self, name: str, array: Array) -> Array:
        spec = self.sharding(without_data(self.exported["ACTIVATIONS"][name]))
        return jax.lax.with_sharding_constraint(array, spec)

    def read(
        self, name: str, function: Callable[[Array, Array], Array], array: Array, weight: Array
    ) -> Array:
        """Weights that are divided among replicas are gathered in each pass, and not kept between them."""
        if self.spec(name, "weight") == self.spec(name, "read"):
            return function(array, weight)
        gathered = self.sharding(self.spec(name, "read"))

        @jax.custom_vjp
        def call(array: Array, weight: Array) -> Array:
            return function(array, jax.lax.with_sharding_constraint(weight, gathered))

        def forward(array: Array, weight: Array) -> Any:
            return call(array, weight), (array, weight)

        def backward(kept: Any, given: Array) -> Any:
            array, weight = kept
            return jax.vjp(function, array, jax.lax.with_sharding_constraint(weight, gathered))[1](given)

        call.defvjp(forward, backward)
        return call(array, weight)


def without_data(spec: PartitionSpec) -> PartitionSpec:
    """A spec without the axis ``data``."""
    axes = [(one,) if isinstance(one, str) else one or () for one in spec]
    return PartitionSpec(*(tuple(name for name in one if name != "data") or None for one in axes))


@dataclass
class Passes:
    """A stage's passes. What the backward pass needs beside weights is a list of arrays."""

    stage: StageOf
    layout: Meshed
    chosen: Configuration
    _tree: Any = field(default=None, init=False)  # of what the backward pass needs
    _weight_at: list[int | None] = field(default_factory=list, init=False)  # which of it are weights

    @cached_property
    def forward(self) -> Callable[..., tuple[Array, list[Array]]]:
        """Of weights, [D, …] input and tokens: what the stage gives, and what is kept of each replica."""
        mapped = jax.vmap(self._forward, in_axes=(None, 0, 0), spmd_axis_name="data")
        given = self.layout.activation("loss" if self.stage.is_last else "hidden")
        return jax.jit(mapped, out_shardings=(given, None))

    @cached_property
    def backward(self) -> Callable[..., tuple[dict[str, Array], Array]]:
        """Of weights, what is kept, the gradient of what the stage gave and the sum of gradients so far."""
        mapped = jax.vmap(self._backward, in_axes=(None, 0, 0), spmd_axis_name="data")

        def run(weights: Weights, kept: list[Array], given: Array, sums: Weights) -> Any:
            gradients, back = mapped(weights, kept, given)
            if self.chosen.zero >= 2:
                gradients = {name: one.sum(0) for name, one in gradients.items()}
            return {name: sums[name] + one for name, one in gradients.items()}, back

        names = names_of(self.stage, self.layout.exported["LAYER"])
        sums = {name: self.layout.sums(name, self.chosen.zero) for name in names}
        hidden = None if self.stage.is_first else self.layout.activation("hidden")
        return jax.jit(run, out_shardings=(sums, hidden))

    def _forward(self, weights: Weights, given: Array, tokens: Array) -> Any:
        def run(weights: Weights, given: Array) -> Array:
            return run_stage(self.stage, self.layout, weights, given, tokens)

        result, pull = jax.vjp(run, weights, given)
        leaves, self._tree = jax.tree.flatten(pull)
        places = {id(leaf): i for i, leaf in enumerate(jax.tree.leaves(weights))}
        self._weight_at = [places.get(id(leaf)) for leaf in leaves]
        return result, [leaf for leaf in leaves if id(leaf) not in places]

    def _backward(self, weights: Weights, kept: list[Array], given: Array) -> Any:
        own, others = jax.tree.leaves(weights), iter(kept)
        leaves = [next(others) if place is None else own[place] for place in self._weight_at]
        return jax.tree.unflatten(self._tree, leaves)(given)


@dataclass
class State:
    """The weights and moments of a rank, and what is done with them once a step."""

    layout: Meshed
    chosen: Configuration
    weights: dict[str, Array]
    moments: dict[str, tuple[Array, Array]]

    @classmethod
    def begin(cls, layout: Meshed, chosen: Configuration, values: Mapping[str, np.ndarray]) -> State:
        """From the values of weights before the first step."""
        weights = {
            name: jax.device_put(value, layout.sharding(layout.spec(name, "weight")))
            for name, value in values.items()
        }
        moments = {}
        for name, value in values.items():
            zeros = jax.device_put(np.zeros_like(value), layout.sharding(layout.spec(name, "moments")))
            moments[name] = zeros, zeros
        return cls(layout, chosen, weights, moments)

    def sums(self, names: list[str]) -> dict[str, Array]:
        """Zeros for the gradients of these weights: of each replica, unless they are summed in each pass."""
        ahead = (self.chosen.data,) if self.chosen.zero < 2 else ()
        return {
            name: jax.device_put(
                np.zeros((*ahead, *self.weights[name].shape)), self.layout.sums(name, self.chosen.zero)
            )
            for name in names
        }

    def summed(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """The gradients of the whole batch."""
        if self.chosen.zero >= 2:
            return gradients
        return self._sum(gradients)

    @cached_property
    def _sum(self) -> Callable[[dict[str, Array]], dict[str, Array]]:
        spec = {name: self.layout.sharding(self.layout.spec(name, "gradient")) for name in self.weights}
        return jax.jit(
            lambda gradients: {name: one.sum(0) for name, one in gradients.items()}, out_shardings=spec
        )

    def updated(self, gradients: dict[str, Array], step: int) -> Any:
        """The weights and moments behind step ``step`` of Adam, which counts from one."""
        return self._update(self.weights, gradients, self.moments, float(step))

    @cached_property
    def _update(self) -> Callable[..., Any]:
        def all_of(weights: Weights, gradients: Weights, moments: Any, step: Array) -> Any:
            found = {name: adam(weights[name], gradients[name], moments[name], step) for name in weights}
            return tuple({name: one[k] for name, one in found.items()} for k in range(2))

        def shardings(which: str) -> dict[str, NamedSharding]:
            return {name: self.layout.sharding(self.layout.spec(name, which)) for name in self.weights}

        moments = {name: (one, one) for name, one in shardings("moments").items()}
        return jax.jit(all_of, out_shardings=(shardings("weight"), moments))


def _together(layout: Meshed, array: Array, peer: int, what: str) -> Array:
    """A call that a rank makes together with a peer, which waits for it.

    Args:
      array: what to ``send`` or ``add``; to ``receive``, one that lies like it.

    Returns:
      What the peer sends, or the sum of both ranks' arrays.
    """
    rank = layout.rank
    low, high = sorted((rank, peer))
    spec = PartitionSpec("pair", *array.sharding.spec)
    mesh = _pair_mesh(layout.exported["mesh"], low, high)
    parts = [_put(np.asarray(shard.data)[None], shard) for shard in array.addressable_shards]
    both = jax.make_array_from_single_device_arrays((2, *array.shape), NamedSharding(mesh, spec), parts)
    sender = rank if what == "send" else peer
    got = _call(mesh, spec, "add" if what == "add" else sender == low)(both)
    found = [_put(np.asarray(shard.data)[0], shard) for shard in got.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, found)


def _put(values: np.ndarray, like: Any) -> Array:
    """Values on the device of a shard."""
    return jax.device_put(values, like.device)


@cache
def _pair_mesh(mesh_of: Callable[[int], Mesh], low: int, high: int) -> Mesh:
    meshes = [mesh_of(low), mesh_of(high)]
    return Mesh(np.array([one.devices for one in meshes]), ("pair", *meshes[0].axis_names))


@cache
def _call(mesh: Mesh, spec: PartitionSpec, what: Any) -> Callable[[Array], Array]:
    """``what``: ``add``, or whether the first of both sends."""

    def body(array: Array) -> Array:
        if what == "add":
            return jax.lax.psum(array, "pair")
        return jax.lax.ppermute(array, "pair", [(0, 1) if what else (1, 0)])

    out = PartitionSpec(None, *spec[1:]) if what == "add" else spec
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(spec,), out_specs=out))


@dataclass
class Kept:
    """What a rank keeps at most."""

    in_flight: float = 0.0  # micro-batches between their passes, in whole ranks
    kept_bytes: int = 0  # of a device, for backward passes
    weight_elements: int = 0  # of a device
    gradient_elements: int = 0
    moment_elements: int = 0  # of one of both moments


class Rank:
    """A rank with its weights and moments, and within a step what waits for its passes."""

    def __init__(
        self, exported: Exported, model: Transformer, chosen: Configuration, rank: int, seed: int
    ) -> None:
        self._model, self._chosen, self._rank = model, chosen, rank
        self._layout = Meshed(exported, rank)
        tokens, last = exported["BATCH"] * model.sequence, len(exported["STAGES"]) - 1
        self._passes = {
            number: Passes(StageOf(model, layers, number == 0, number == last, tokens), self._layout, chosen)
            for number, (owner, layers) in enumerate(exported["STAGES"])
            if owner == rank
        }
        self._names = {n: names_of(one.stage, exported["LAYER"]) for n, one in self._passes.items()}
        names = sorted({name for of_stage in self._names.values() for name in of_stage})
        values = {name: _first_value(exported, model, name, seed) for name in names}
        self._state = State.begin(self._layout, chosen, values)
        shape = (chosen.data, chosen.expert * chosen.micro_batch, model.sequence, model.hidden)
        self._hidden = self._layout.put("hidden", np.zeros(shape))
        self._ones = self._layout.put("loss", np.ones(chosen.data))
        self.kept = Kept()
        self._tokens: list[Array] = []  # by micro-batch
        self._waiting: dict[tuple[int, int], list[Array]] = {}  # for the backward pass of a micro-batch
        self._given: dict[tuple[int, int, bool], Array] = {}  # by the pass that gave it
        self._sums: dict[int, dict[str, Array]] = {}  # of gradients, by stage

    @property
    def weights(self) -> Mapping[str, Array]:
        return self._state.weights

    def step(
        self, actions: Iterable[Action], tokens: np.ndarray, number: int
    ) -> tuple[float, Mapping[str, Array]]:
        """Run step ``number`` on [batch, s + 1] tokens: the loss, zero without the last stage; gradients."""
        d, e, b = self._chosen.data, self._chosen.expert, self._chosen.micro_batch
        divided = tokens.reshape(d, e, -1, b, tokens.shape[1])
        self._tokens = [
            self._layout.put("tokens", divided[:, :, i].reshape(d, e * b, -1))
            for i in range(divided.shape[2])
        ]
        self._sums = {stage: self._state.sums(names) for stage, names in self._names.items()}
        loss = sum(self._act(action) for action in actions)
        sums = {name: one for of_stage in self._sums.values() for name, one in of_stage.items()}
        self._measure(sums)
        gradients = self._state.summed(sums)
        ends = (0, self._chosen.pipeline - 1)
        if self._chosen.pipeline > 1 and self._rank in ends:  # both have the table of tokens
            gradients["table"] = _together(self._layout, gradients["table"], ends[self._rank == 0], "add")
        self._state.weights, self._state.moments = self._state.updated(gradients, number)
        return loss, gradients

    def compile(self) -> None:
        """Run each pass once on zeros: gloo gives up where a rank waits long for another that compiles."""
        shape = (self._chosen.data, self._chosen.expert * self._chosen.micro_batch, self._model.sequence + 1)
        tokens = self._layout.put("tokens", np.zeros(shape, np.int64))
        all_sums: dict[str, Array] = {}
        for stage, passes in self._passes.items():
            given = () if passes.stage.is_first else self._hidden
            back = self._ones if passes.stage.is_last else self._hidden
            weights, sums = self._weights(stage), self._state.sums(self._names[stage])
            _, kept = passes.forward(weights, given, tokens)
            sums, _ = passes.backward(weights, kept, back, sums)
            all_sums |= sums
        jax.block_until_ready(self._state.updated(self._state.summed(all_sums), 1))

    def connect(self, actions: Iterable[Action]) -> None:
        """Exchange one message with each peer: gloo gives up where a first one waits half a minute.

        All ranks come here together; later messages wait for as long as passes take.
        """
        ends, pipeline = (0, self._chosen.pipeline - 1), self._chosen.pipeline
        peers = {one.peer for one in actions if one.kind in ("send", "receive")}
        peers |= {ends[self._rank == 0]} if pipeline > 1 and self._rank in ends else set()
        for peer in sorted(peers):
            _together(self._layout, self._hidden, peer, "add")

    def _act(self, action: Action) -> float:
        """Run a pass, or take part in a message; returns the loss of a micro-batch, zero of other actions."""
        key = action.stage, action.micro_batch, action.is_backward
        if action.kind == "send":
            _together(self._layout, self._given.pop(key), action.peer, action.kind)
        elif action.kind == "receive":
            self._given[key] = _together(self._layout, self._hidden, action.peer, action.kind)
        elif action.is_backward:
            self._backward(action.stage, action.micro_batch)
        else:
            return self._forward(action.stage, action.micro_batch)
        return 0.0

    def _weights(self, stage: int) -> dict[str, Array]:
        return {name: self._state.weights[name] for name in self._names[stage]}

    def _forward(self, stage: int, micro_batch: int) -> float:
        passes, tokens = self._passes[stage], self._tokens[micro_batch]
        given = () if passes.stage.is_first else self._given.pop((stage - 1, micro_batch, False))
        ran = passes.forward(self._weights(stage), given, tokens)
        result, self._waiting[stage, micro_batch] = jax.block_until_ready(ran)
        most = self.kept
        most.in_flight = max(most.in_flight, len(self._waiting) / len(self._passes))
        held = sum(one.addressable_shards[0].data.nbytes for row in self._waiting.values() for one in row)
        most.kept_bytes = max(most.kept_bytes, held)
        if passes.stage.is_last:
            return float(np.asarray(result).sum())
        self._given[stage, micro_batch, False] = result
        return 0.0

    def _backward(self, stage: int, micro_batch: int) -> None:
        passes = self._passes[stage]
        given = self._ones if passes.stage.is_last else self._given.pop((stage + 1, micro_batch, True))
        waited = self._waiting.pop((stage, micro_batch))
        ran = passes.backward(self._weights(stage), waited, given, self._sums[stage])
        self._sums[stage], back = jax.block_until_ready(ran)
        if not passes.stage.is_first:
            self._given[stage, micro_batch, True] = back

    def _measure(self, sums: Mapping[str, Array]) -> None:
        def elements(arrays: Iterable[Any]) -> int:
            return sum(math.prod(one.sharding.shard_shape(one.shape)) for one in arrays)

        self.kept.weight_elements = elements(self._state.weights.values())
        self.kept.gradient_elements = elements(sums.values())
        self.kept.moment_elements = elements(one[0] for one in self._state.moments.values())


def shape_of(exported: Exported, model: Transformer, name: str) -> tuple[int, ...]:
    """Of a parameter, without the rows that only fill the table of tokens up."""
    row = exported["ENDS"].get(name) or exported["LAYER"][name.rpartition(".")[2]]
    return (model.vocabulary, model.hidden) if name == "table" else tuple(row.shape)


def _first_value(exported: Exported, model: Transformer, name: str, seed: int) -> np.ndarray:
    """What a parameter begins with; rows that fill the table up are zeros."""
    value = first_weight(name, shape_of(exported, model, name), seed)
    if name != "table":
        return value
    return np.pad(value, ((0, exported["ENDS"][name].shape[0] - len(value)), (0, 0)))
