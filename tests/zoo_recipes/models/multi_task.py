"""Several goals at once: experts that the goals share, each goal with gates of its own."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx

from tests.zoo_recipes.models.tables import Mlp, Tables

# Distinct values of the 18 single-valued columns of Ali-CCP, as the authors of AITM count them.
ALI_CCP: Final = (
    238635, 98, 14, 3, 8, 4, 4, 3, 5, 467298, 6929, 263942, 106399, 5888, 104830, 51878, 37148, 4,
)  # fmt: skip
_WIDTH: Final = 32  # of a table
_TASKS: Final = 2  # click, conversion
_TOWER: Final = (128, 64)


def _mixed(gate: nnx.Linear, x: jax.Array, outputs: list[jax.Array]) -> jax.Array:
    shares = jnp.split(nnx.softmax(gate(x)), len(outputs), axis=-1)
    return reduce(add, (share * output for share, output in zip(shares, outputs, strict=True)))


class Towers(nnx.Module):
    """A stack of dense layers and a probability for each task."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.towers = nnx.List([Mlp(width, *_TOWER, rngs=rngs) for _ in range(_TASKS)])
        self.heads = nnx.List([nnx.Linear(_TOWER[-1], 1, rngs=rngs) for _ in range(_TASKS)])

    def __call__(self, columns: list[jax.Array]) -> list[jax.Array]:
        return [
            nnx.sigmoid(head(tower(x)))
            for head, tower, x in zip(self.heads, self.towers, columns, strict=True)
        ]


class Mmoe(nnx.Module):
    """Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts".

    Its eight experts; their widths (512-256) are ours, its data is not public.
    """

    _EXPERTS = 8
    _EXPERT = (512, 256)

    def __init__(self, rngs: nnx.Rngs) -> None:
        width = len(ALI_CCP) * _WIDTH
        self.tables = Tables(ALI_CCP, _WIDTH, rngs)
        self.experts = nnx.List([Mlp(width, *self._EXPERT, rngs=rngs) for _ in range(self._EXPERTS)])
        self.gates = nnx.List([nnx.Linear(width, self._EXPERTS, rngs=rngs) for _ in range(_TASKS)])
        self.towers = Towers(self._EXPERT[-1], rngs)

    def __call__(self, *ids: jax.Array) -> list[jax.Array]:
        x = jnp.concatenate(self.tables(ids), axis=-1)
        outputs = [expert(x) for expert in self.experts]
        return self.towers([_mixed(gate, x, outputs) for gate in self.gates])


class Extraction(nnx.Module):
    """One level of PLE: experts of each task and shared ones; a gate for each of them."""

    def __init__(
        self, width: int, expert: tuple[int, ...], own: int, shared: int, *, last: bool, rngs: nnx.Rngs
    ) -> None:
        groups = [own] * _TASKS + [shared]
        self.experts = nnx.List(
            [nnx.List([Mlp(width, *expert, rngs=rngs) for _ in range(count)]) for count in groups]
        )
        self.gates = nnx.List([nnx.Linear(width, own + shared, rngs=rngs) for _ in range(_TASKS)])
        # Nothing reads the shared column behind the last level.
        self.shared_gate = None if last else nnx.Linear(width, sum(groups), rngs=rngs)

    def __call__(self, columns: list[jax.Array]) -> list[jax.Array]:
        """A column for each task and the shared one, in and out."""
        outputs = [
            [expert(x) for expert in experts] for experts, x in zip(self.experts, columns, strict=True)
        ]
        *own, shared = outputs
        mixed = [
            _mixed(gate, x, [*task, *shared]) for gate, x, task in zip(self.gates, columns, own, strict=False)
        ]
        if self.shared_gate is None:
            return mixed
        return [
            *mixed,
            _mixed(self.shared_gate, columns[-1], [output for group in outputs for output in group]),
        ]


class Ple(nnx.Module):
    """Tang et al., "Progressive Layered Extraction": two levels; the widths are ours."""

    _OWN, _SHARED = 3, 2
    _EXPERT = (256, 128)

    def __init__(self, rngs: nnx.Rngs) -> None:
        width, inner = len(ALI_CCP) * _WIDTH, self._EXPERT[-1]
        self.tables = Tables(ALI_CCP, _WIDTH, rngs)
        self.first = Extraction(width, self._EXPERT, self._OWN, self._SHARED, last=False, rngs=rngs)
        self.second = Extraction(inner, self._EXPERT, self._OWN, self._SHARED, last=True, rngs=rngs)
        self.towers = Towers(inner, rngs)

    def __call__(self, *ids: jax.Array) -> list[jax.Array]:
        x = jnp.concatenate(self.tables(ids), axis=-1)
        return self.towers(self.second(self.first([x] * (_TASKS + 1))))
