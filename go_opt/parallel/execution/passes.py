"""The passes of a stage, compiled for the mesh of its rank, and the arrays that a rank keeps.

A pass runs a micro-batch of all replicas of ``data`` at once, as [D, sequences, …]: each has gradients of
its own, which are summed once a step, or with ZeRO 2 and 3 behind each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from go_opt.parallel import Configuration
from go_opt.parallel.execution.decoder import Array, StageOf, Weights, adam, names_of, run_stage

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
        within = [] if name == "loss" else _within_replica(self.exported["ACTIVATIONS"][name])
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
        spec = PartitionSpec(*_within_replica(self.exported["ACTIVATIONS"][name]))
        return jax.lax.with_sharding_constraint(array, self.sharding(spec))

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


def _within_replica(spec: PartitionSpec) -> list[Any]:
    """A spec without the axis ``data``, which is the first dimension's."""
    axes = [(one,) if isinstance(one, str) else one or () for one in spec]
    return [tuple(name for name in one if name != "data") or None for one in axes]


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

    def update(self, gradients: dict[str, Array], step: int) -> None:
        """Step ``step`` of Adam, which counts from one."""
        self.weights, self.moments = self.updated(gradients, step)

    def updated(self, gradients: dict[str, Array], step: int) -> Any:
        """The weights and moments behind a step."""
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
