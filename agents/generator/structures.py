"""Structures of branchy graphs: which op reads which, and the octave of each result's size.

A family is a function ``(dag, rng)`` that adds blocks until the dag is full. The last block may
be cut off; :func:`draw_structure` joins the loose ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np


@dataclass
class Dag:
    """Ops in a topological order. Adding to a full dag does nothing and returns its last op."""

    num_ops: int
    parents: list[tuple[int, ...]] = field(default_factory=list)  # [N] ascending; none: reads an input
    octave: list[int] = field(default_factory=list)  # [N] the result has 2**octave times the base size
    weight_group: list[int] = field(default_factory=list)  # [N] ops of a group share weights; -1: its own

    @property
    def is_full(self) -> bool:
        return len(self.parents) >= self.num_ops

    def add(self, parents: Sequence[int] = (), octave: int = 0, weight_group: int = -1) -> int:
        if not self.is_full:
            self.parents.append(tuple(sorted(set(parents))))
            self.octave.append(octave)
            self.weight_group.append(weight_group)
        return len(self.parents) - 1

    def run(self, tail: int, length: int, octave: int = 0) -> int:
        """Add a chain of ``length`` ops after ``tail``; returns the last."""
        for _ in range(length):
            tail = self.add([tail], octave)
        return tail

    def sinks(self) -> list[int]:
        read = {parent for parents in self.parents for parent in parents}
        return [op for op in range(len(self.parents)) if op not in read]


Rng = np.random.Generator


def draw_structure(rng: Rng, family: str, num_ops: int) -> Dag:
    """A connected dag of ``num_ops`` ops with one sink."""
    dag = Dag(num_ops - 1)
    FAMILIES[family](dag, rng)
    dag.num_ops = num_ops
    dag.add(dag.sinks(), dag.octave[-1])
    return dag


def log_uniform(rng: Rng, low: float, high: float) -> int:
    """An integer from ``low`` to ``high``, drawn log-uniformly."""
    return round(low * float((high / low) ** rng.random()))


def _chain(dag: Dag, rng: Rng) -> None:
    """A chain with occasional short residual connections."""
    tail = dag.add()
    residual = rng.uniform(0.0, 0.3)
    while not dag.is_full:
        end = dag.run(tail, int(rng.integers(1, 8)))
        tail = dag.add([tail, end]) if rng.random() < residual else end


def _skips(dag: Dag, rng: Rng) -> None:
    """A chain with skip connections, whose log-uniform lengths reach up to 30 % of it."""
    dag.add()
    often = rng.uniform(0.05, 0.5)
    longest = max(3.0, dag.num_ops * rng.uniform(0.02, 0.3))
    while not dag.is_full:
        last = len(dag.parents) - 1
        skip = max(0, last - log_uniform(rng, 2, longest))
        dag.add([last, skip] if rng.random() < often else [last])


def _cells(dag: Dag, rng: Rng) -> None:
    """Random cells as in architecture search; each reads the two cells before it."""
    before, last = dag.add(), dag.add([0])
    blocks, deepest = int(rng.integers(3, 8)), int(rng.integers(2, 5))
    octave = 0
    while not dag.is_full:
        if rng.random() < 0.15:
            octave -= 1
        states = [before, last]
        used: set[int] = set()
        for _ in range(blocks):
            pair = [states[int(i)] for i in rng.choice(len(states), 2, replace=False)]
            used.update(pair)
            ends = [dag.run(state, int(rng.integers(1, deepest + 1)), octave) for state in pair]
            states.append(dag.add(ends, octave))
        loose = [state for state in states[2:] if state not in used]
        before, last = last, dag.add(loose, octave)


def _towers(dag: Dag, rng: Rng) -> None:
    """Parallel towers with own inputs or a shared stem, and occasional joins."""
    num_towers = int(rng.integers(2, 9))
    stem = [dag.add()] if rng.random() < 0.5 else []
    tails = [dag.add(stem) for _ in range(num_towers)]
    joins = rng.uniform(0.0, 0.1)
    while not dag.is_full:
        i = int(rng.integers(num_towers))
        tails[i] = dag.run(tails[i], int(rng.integers(1, 12)))
        if rng.random() < joins:
            other = int(rng.integers(num_towers))
            tails[i] = dag.add([tails[i], tails[other]])


def _unet(dag: Dag, rng: Rng) -> None:
    """Levels that halve the size and then double it, with skip connections between equal sizes."""
    tail = dag.add()
    while not dag.is_full:
        levels = int(rng.integers(2, 6))
        room = dag.num_ops - len(dag.parents)
        block = int(rng.integers(2, max(3, room // (2 * levels))))
        held = []
        for level in range(levels):
            tail = dag.run(tail, block, -level)
            held.append(tail)
        for level in reversed(range(levels)):
            tail = dag.run(dag.add([tail, held[level]], -level), block, -level)


def _encoder_decoder(dag: Dag, rng: Rng) -> None:
    """An encoder whose result every block of the decoder reads."""
    memory = dag.run(dag.add(), int(dag.num_ops * rng.uniform(0.2, 0.6)))
    octave = int(rng.integers(-2, 1))
    tail = dag.add([], octave)
    before, behind = (int(n) for n in rng.integers(1, 15, 2))
    while not dag.is_full:
        query = dag.run(tail, before, octave)
        crossed = dag.add([query, dag.run(memory, int(rng.integers(1, 4)))], octave)
        tail = dag.add([tail, dag.run(crossed, behind, octave)], octave)


def _wide(dag: Dag, rng: Rng) -> None:
    """Layers of many parallel branches."""
    tail = dag.add()
    width, length = log_uniform(rng, 4, 64), int(rng.integers(1, 7))
    while not dag.is_full:
        branches = [
            dag.run(dag.add([tail], -2), int(rng.integers(0, length)), -2)
            for _ in range(int(rng.integers(width // 2, width + 1)))
        ]
        tail = dag.add(branches)


def _recurrent(dag: Dag, rng: Rng) -> None:
    """Unrolled recurrent layers: each step reads the layer's previous step, with the same weights."""
    layers, gates = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    states: list[int | None] = [None] * layers
    while not dag.is_full:
        below = dag.add([], -2)
        for layer, state in enumerate(states):
            reads = [below] if state is None else [below, state]
            mixed = dag.add(reads, -2)
            ends = [dag.run(dag.add([mixed], -2, layer * gates + gate), 1, -2) for gate in range(gates)]
            below = states[layer] = dag.add(ends, -2)


def _mixed(dag: Dag, rng: Rng) -> None:
    """Two to four other families in sequence."""
    names = [name for name in FAMILIES if name != "mixed"]
    room = dag.num_ops
    shares = rng.dirichlet(np.full(int(rng.integers(2, 5)), 3.0))
    for end in np.cumsum(shares):
        begin = len(dag.parents)
        part = Dag(max(8, round(room * end) - begin))
        FAMILIES[names[int(rng.integers(len(names)))]](part, rng)
        tails = dag.sinks()
        for parents, octave, group in zip(part.parents, part.octave, part.weight_group, strict=True):
            own = [begin + parent for parent in parents]
            dag.add(own or tails, octave, group)


FAMILIES: Final[Mapping[str, Callable[[Dag, Rng], None]]] = MappingProxyType(
    {
        "chain": _chain,
        "skips": _skips,
        "cells": _cells,
        "towers": _towers,
        "unet": _unet,
        "encoder_decoder": _encoder_decoder,
        "wide": _wide,
        "recurrent": _recurrent,
        "mixed": _mixed,
    }
)
