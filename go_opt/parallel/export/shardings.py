"""How a planned training step lies on devices: the mesh of a pipeline rank, and the spec of each array.

A spec names for each dimension of an array the axes of the mesh that divide it, the major one first, as
JAX's ``PartitionSpec`` does. Exports print these specs, and runs read what is exported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from go_opt.parallel import Configuration, Transformer
from go_opt.parallel.configuration import RECOMPUTE
from go_opt.parallel.schedule import chunk_layers
from go_opt.parallel.step import Step

Axes = tuple[str, ...]
Spec = tuple[Axes, ...]


@dataclass(frozen=True)
class Parameter:
    """An array that is trained, and how it lies: kept, read in a pass, its gradient and its moments."""

    shape: tuple[int, ...]
    weight: Spec
    read: Spec
    gradient: Spec
    moments: Spec


@dataclass(frozen=True)
class Stage:
    """A stage of the model, in the order of the model."""

    rank: int
    layers: Mapping[int, str]  # by its number in the model: what is computed again


@dataclass(frozen=True)
class Shardings:
    """Where the arrays of a step lie."""

    step: Step

    @property
    def model(self) -> Transformer:
        return self.step.case.model

    @property
    def chosen(self) -> Configuration:
        return self.step.chosen

    @cached_property
    def mesh(self) -> dict[str, int]:
        """The axes of the devices of a pipeline rank, the last one of neighbours.

        ``groups`` divides the heads of keys and values where there are fewer of them than tensor ranks; the
        ranks of ``tensor`` in it then have the same keys and values.
        """
        chosen = self.chosen
        groups = math.gcd(chosen.tensor, self.model.kv_heads)
        above = {"data": chosen.data, "expert": chosen.expert}
        if groups == chosen.tensor:
            return {**above, "tensor": chosen.tensor}
        return {**above, "groups": groups, "tensor": chosen.tensor // groups}

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the table of tokens: up to a multiple of the tensor ranks."""
        t = self.chosen.tensor
        return -(-self.model.vocabulary // t) * t

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        counts = chunk_layers(self.step)  # [P, V, 3]
        found: list[Stage] = []
        begin = 0
        for chunk in range(counts.shape[1]):
            for rank in range(counts.shape[0]):
                kinds = [
                    name
                    for name, n in zip(RECOMPUTE, counts[rank, chunk].tolist(), strict=True)
                    for _ in range(n)
                ]
                found.append(Stage(rank, dict(enumerate(kinds, begin))))
                begin += len(kinds)
        return tuple(found)

    @cached_property
    def activations(self) -> dict[str, Spec]:
        """By name the specs of arrays of a pass, [batch, sequence, …] unless it says otherwise."""
        replicas, tensor = self._axes("data", "expert"), self._tensor
        along = tensor if self.chosen.sequence_parallel else ()
        found: dict[str, Spec] = {
            "tokens": (replicas, ()),
            "hidden": (replicas, along, ()),  # between layers, and behind attention and MLP
            "inputs": (replicas, (), ()),  # what the products of a layer read
            "queries": (replicas, (), tensor, ()),  # heads
            "keys": (replicas, (), self._groups, ()),
            "columns": (replicas, (), tensor),
            "logits": (replicas, (), tensor),
        }
        if self.model.experts == 1:
            return found
        expert, data = self._axes("expert"), self._axes("data")
        del found["columns"]
        return found | {  # [experts, batch, tokens of an expert, …]
            "expert_tokens": ((), replicas, (), ()),  # before they are sent, and when they are back
            "expert_inputs": (expert, data, (), ()),
            "expert_columns": (expert, data, (), tensor),
        }

    @cached_property
    def of_layer(self) -> dict[str, Parameter]:
        """The parameters of a layer by name."""
        model, tensor = self.model, self._tensor
        hidden, depth = model.hidden, model.hidden // model.heads
        keys = (hidden, model.kv_heads, depth), ((), self._groups, ())
        found: dict[str, tuple[tuple[int, ...], Spec]] = {
            "attention_norm": ((hidden,), ((),)),
            "query": ((hidden, model.heads, depth), ((), tensor, ())),
            "key": keys,
            "value": keys,
            "attention_out": ((model.heads, depth, hidden), (tensor, (), ())),
            "mlp_norm": ((hidden,), ((),)),
        }
        columns: tuple[tuple[int, ...], Spec] = (hidden, model.mlp), ((), tensor)
        rows: tuple[tuple[int, ...], Spec] = (model.mlp, hidden), (tensor, ())
        if model.experts > 1:
            found["router"] = (hidden, model.experts), ((), ())
            expert = self._axes("expert")
            columns = (model.experts, *columns[0]), (expert, *columns[1])
            rows = (model.experts, *rows[0]), (expert, *rows[1])
        if model.gated:
            found["gate"] = columns
        found |= {"up": columns, "down": rows}
        return {name: self._parameter(shape, spec) for name, (shape, spec) in found.items()}

    @cached_property
    def of_ends(self) -> dict[str, Parameter]:
        """The parameters of the first and the last stage by name; both have the table of tokens."""
        table = self._parameter((self.vocabulary, self.model.hidden), (self._tensor, ()))
        return {"table": table, "final_norm": self._parameter((self.model.hidden,), ((),))}

    @property
    def notes(self) -> list[str]:
        """What ZeRO does not divide, since no dimension is a multiple of the replicas."""
        replicas = set(self._axes("data", "expert")) if self.chosen.zero else set()
        return [
            f"{name} of {list(one.shape)} is not divided among all replicas."
            for name, one in (self.of_ends | self.of_layer).items()
            if not replicas <= {axis for axes in one.moments for axis in axes}
        ]

    @property
    def _tensor(self) -> Axes:
        return self._axes("groups", "tensor")

    @property
    def _groups(self) -> Axes:
        """The axes that divide the heads of keys and values."""
        return self._axes("groups") if "groups" in self.mesh else self._axes("tensor")

    def _axes(self, *names: str) -> Axes:
        """Those that have more than one device."""
        return tuple(name for name in names if self.mesh.get(name, 1) > 1)

    def _parameter(self, shape: tuple[int, ...], spec: Spec) -> Parameter:
        used, zero = {axis for axes in spec for axis in axes}, self.chosen.zero
        replicas = [axis for axis in self._axes("data", "expert") if axis not in used]
        divided = self._divided(shape, spec, replicas)
        return Parameter(
            shape,
            weight=divided if zero == 3 else spec,
            read=spec,
            gradient=divided if zero else spec,
            moments=divided if zero else spec,
        )

    def _divided(self, shape: tuple[int, ...], spec: Spec, replicas: list[str]) -> Spec:
        """The spec with each axis of replicas at the first dimension that is a multiple of all its axes."""
        found = list(spec)
        for axis in replicas:
            for k, axes in enumerate(found):
                if shape[k] % math.prod(self.mesh[name] for name in (*axes, axis)) == 0:
                    found[k] = (*axes, axis)
                    break
        return tuple(found)
