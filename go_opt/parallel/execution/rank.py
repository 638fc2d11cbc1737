"""One pipeline rank of a run: it follows its actions, step by step, and measures what it keeps.

Messages between ranks go over gloo: each device sends its part to its peer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from go_opt.parallel import Configuration, Transformer
from go_opt.parallel.execution.decoder import Array, StageOf, first_weight, names_of
from go_opt.parallel.execution.passes import Exported, Meshed, Passes, State
from go_opt.parallel.execution.processes import Action


class Messages:
    """What a rank calls together with one other rank, which waits for it."""

    def __init__(self, layout: Meshed) -> None:
        self._layout = layout

    def send(self, array: Array, peer: int) -> None:
        """Give an array to a peer, which receives it."""
        self._together(array, peer, "send")

    def receive(self, like: Array, peer: int) -> Array:
        """The array that a peer sends, which lies like ``like``."""
        return self._together(like, peer, "receive")

    def add(self, array: Array, peer: int) -> Array:
        """The sum of both ranks' arrays."""
        return self._together(array, peer, "add")

    def _together(self, array: Array, peer: int, what: str) -> Array:
        rank = self._layout.rank
        low, high = sorted((rank, peer))
        spec = PartitionSpec("pair", *array.sharding.spec)
        mesh = _pair_mesh(self._layout.exported["mesh"], low, high)
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
        self._messages = Messages(self._layout)
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
            gradients["table"] = self._messages.add(gradients["table"], ends[self._rank == 0])
        self._state.update(gradients, number)
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
            self._messages.add(self._hidden, peer)

    def _act(self, action: Action) -> float:
        """Run a pass, or take part in a message; returns the loss of a micro-batch, zero of other actions."""
        key = action.stage, action.micro_batch, action.is_backward
        if action.kind == "send":
            self._messages.send(self._given.pop(key), action.peer)
        elif action.kind == "receive":
            self._given[key] = self._messages.receive(self._hidden, action.peer)
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
