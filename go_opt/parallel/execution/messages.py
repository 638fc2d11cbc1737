"""Messages between the processes of pipeline ranks, over gloo: each device sends its part to its peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from go_opt.parallel.execution.decoder import Array
from go_opt.parallel.execution.passes import Meshed


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
