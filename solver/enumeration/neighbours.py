"""Placements near a given one: the moves of a local search.

Single ops seldom move alone: an op that goes to a later chip takes its descendants along, to an earlier chip
its ancestors. Under the triangle rule whole chips have to change: a weak component of a chip's ops, the parts
that no dependency joins there, gets a chip of its own or goes to another one, or two neighbouring chips
become one. Two ops, or all ops of two chips, are exchanged, where each alone has no better place to go.
Axes: ``B`` placements, ``N`` ops.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import BoolArray, IntArray
from go_opt.model.graph import Graph

MOST_OPS: Final = 2048  # sets of descendants take N^2 bytes


class Neighbourhood:
    """The neighbours of placements of one graph on ``num_chips`` chips."""

    def __init__(self, graph: Graph, num_chips: int, *, is_ring: bool) -> None:
        """Prepare; along a ring (``is_ring``) results go to no lower chip."""
        self._num_chips, self._is_ring = num_chips, is_ring
        self._source, self._reader = graph.edge_src, graph.edge_dst
        num_ops, (ptr, source) = graph.num_ops, graph.predecessors
        self._ancestors = np.zeros((num_ops, num_ops), np.bool_)  # [N, N] of each op, itself included
        for op in range(num_ops):
            self._ancestors[op, op] = True
            for i in range(ptr[op], ptr[op + 1]):
                self._ancestors[op] |= self._ancestors[source[i]]

    def draw(self, placement: IntArray, rng: np.random.Generator, count: int) -> IntArray:
        """Returns up to ``count`` placements [B, N]; which rules they keep is to be checked."""
        moves = (self._with_closure, self._with_closure, self._component, self._merged, self._exchanged)
        rows = [moves[int(rng.integers(len(moves)))](placement, rng) for _ in range(count)]
        return np.stack(rows).astype(np.int32)

    def _with_closure(self, placement: IntArray, rng: np.random.Generator) -> IntArray:
        """Moves an op, most often by one chip, and along a ring what must go with it."""
        row, op = placement.copy(), int(rng.integers(len(placement)))
        by = int(rng.integers(1, 3)) if rng.random() < 0.2 else 1
        chip = row[op] + (by if rng.random() < 0.5 else -by)
        if not self._is_ring and rng.random() < 0.5:
            chip = int(rng.integers(self._num_chips))
        self._move(row, op, min(max(chip, 0), self._num_chips - 1))
        return row

    def _move(self, row: IntArray, op: int, chip: int) -> None:
        if not self._is_ring:
            row[op] = chip
        elif chip > row[op]:
            row[self._ancestors[:, op] & (row < chip)] = chip
        else:
            row[self._ancestors[op] & (row > chip)] = chip

    def _component(self, placement: IntArray, rng: np.random.Generator) -> IntArray:
        """Moves a weak component of a chip's ops to a new chip behind or before it, or to another chip."""
        row = placement.copy()
        chip = int(row[rng.integers(len(row))])
        inside = self._component_of(row == chip, rng)
        has_room = row.max() + 1 < self._num_chips
        if has_room and rng.random() < 0.5:
            row[row > chip] += 1
            row[inside if rng.random() < 0.5 else (placement == chip) & ~inside] += 1
            return row
        row[inside] = int(rng.integers(row.max() + 1)) if rng.random() < 0.5 else max(chip - 1, 0)
        return row

    def _component_of(self, on_chip: BoolArray, rng: np.random.Generator) -> BoolArray:
        """Returns the weak component [N] of one of the ops ``on_chip``."""
        ops = np.flatnonzero(on_chip)
        inside = np.zeros(len(on_chip), np.bool_)
        inside[ops[int(rng.integers(len(ops)))]] = True
        joins = on_chip[self._source] & on_chip[self._reader]
        source, reader = self._source[joins], self._reader[joins]
        while True:
            before = np.count_nonzero(inside)
            inside[reader[inside[source]]] = True
            inside[source[inside[reader]]] = True
            if np.count_nonzero(inside) == before:
                return inside

    def _merged(self, placement: IntArray, rng: np.random.Generator) -> IntArray:
        """Makes two neighbouring chips one; later chips move up."""
        row = placement.copy()
        if row.max() > 0:
            row[row > int(rng.integers(row.max()))] -= 1
        return row

    def _exchanged(self, placement: IntArray, rng: np.random.Generator) -> IntArray:
        """Exchanges the chips of two ops, with what must go with each, or all ops of their chips."""
        row, (one, other) = placement.copy(), rng.integers(len(placement), size=2).tolist()
        if rng.random() < 0.5:
            self._move(row, one, placement[other])
            self._move(row, other, placement[one])
        else:
            row[placement == placement[one]] = placement[other]
            row[placement == placement[other]] = placement[one]
        return row
