"""Chains of units that may trade places: an order among them that costs no placement.

Let ``u_1 … u_m`` and ``v_1 … v_m`` be chains, each unit read by the next one alone and that one
reading nothing else, that cost the same unit by unit and begin with the same reads. If every
reader of ``v_m`` descends from (or is) a reader of ``u_m``, and every reader of ``u_m`` leads to
(or is) one of ``v_m``, then

    f'(u_i) = min(f(u_i), f(v_i)),    f'(v_i) = max(f(u_i), f(v_i))

keeps every edge and every span of at most one chip. Chips do the same work, links carry the
same bytes (each tensor of a pair starts and ends where one of them did), and no tensor
passes more chips. So ``u_i`` before ``v_i`` may be demanded, for every pair of neighbours of a
sorted group at once: projections of one tensor for many layers, weights transposed at the
start and read much later, have one order instead of exponentially many.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Readers are compared by search; groups that are left when all this is spent get no order.
MOST_STEPS: Final = 1_000_000


class Interchange:
    """Finds the edges; the arrays are those of the unit graph that is being built."""

    def __init__(
        self,
        unit_cost: NDArray[np.int64],
        tensor_cost: NDArray[np.int64],
        producer: NDArray[np.int32],
        reader_ptr: NDArray[np.int64],
        reader: NDArray[np.int32],
    ) -> None:
        """``unit_cost`` [U, …] and ``tensor_cost`` [K, …] are equal where units and tensors are alike."""
        self.num_units = len(unit_cost)
        self.unit_cost = [row.tobytes() for row in unit_cost]
        self.tensor_cost = [row.tobytes() for row in tensor_cost]
        self.readers = [reader[reader_ptr[k] : reader_ptr[k + 1]].tolist() for k in range(len(producer))]
        self.produced: list[list[int]] = [[] for _ in range(self.num_units)]
        self.read: list[list[int]] = [[] for _ in range(self.num_units)]
        for k, unit in enumerate(producer.tolist()):
            self.produced[unit].append(k)
            for after in self.readers[k]:
                self.read[after].append(k)
        self.producer = producer.tolist()
        self.steps = 0

    def edges(self) -> list[tuple[int, int]]:
        """Pairs of units, the first of which may be demanded to stand before the second."""
        groups: dict[tuple[object, ...], list[list[int]]] = {}
        for chain in self._chains():
            groups.setdefault(self._signature(chain), []).append(chain)
        found = []
        for chains in groups.values():
            chains.sort(key=lambda chain: (min(self._readers(chain), default=self.num_units), chain[0]))
            for before, after in itertools.pairwise(chains):
                is_forward = all(u < v for u, v in zip(before, after, strict=True))
                if is_forward and self._is_due_before(self._readers(before), self._readers(after)):
                    found += list(zip(before, after, strict=True))
        return found

    def _chains(self) -> list[list[int]]:
        """Longest chains of units; every unit is in one."""
        following = [-1] * self.num_units
        for unit in range(self.num_units):
            if len(self.read[unit]) == 1 and self._is_private(self.read[unit][0]):
                following[self.producer[self.read[unit][0]]] = unit
        is_first = [True] * self.num_units
        for after in following:
            if after >= 0:
                is_first[after] = False
        chains = []
        for unit in range(self.num_units):
            if is_first[unit] and len(self.produced[unit]) <= 1:
                chain = [unit]
                while following[chain[-1]] >= 0 and len(self.produced[following[chain[-1]]]) <= 1:
                    chain.append(following[chain[-1]])
                chains.append(chain)
        return chains

    def _is_private(self, k: int) -> bool:
        return len(self.readers[k]) == 1 and len(self.produced[self.producer[k]]) == 1

    def _signature(self, chain: list[int]) -> tuple[object, ...]:
        parts: list[object] = []
        inner = -1
        for unit in chain:
            parts.append(self.unit_cost[unit])
            parts.append(tuple(k for k in self.read[unit] if k != inner))
            inner = self.produced[unit][0] if self.produced[unit] else -1
            parts.append(self.tensor_cost[inner] if inner >= 0 else b"")
        return tuple(parts)

    def _readers(self, chain: list[int]) -> list[int]:
        return self.readers[self.produced[chain[-1]][0]] if self.produced[chain[-1]] else []

    def _is_due_before(self, readers: list[int], later: list[int]) -> bool:
        if readers == later:
            return True
        if not readers or self.steps > MOST_STEPS:
            return False
        return self._all_reached(readers, later, forward=True) and self._all_reached(
            later, readers, forward=False
        )

    def _all_reached(self, sources: list[int], wanted: list[int], *, forward: bool) -> bool:
        """Whether every one of ``wanted`` is one of ``sources`` or reached from one."""
        last = max(wanted, default=0) if forward else min(wanted, default=0)
        seen = set(sources)
        stack = list(sources)
        missing = set(wanted) - seen
        while stack and missing:
            unit = stack.pop()
            self.steps += 1
            if forward:
                near = [after for k in self.produced[unit] for after in self.readers[k] if after <= last]
            else:
                near = [self.producer[k] for k in self.read[unit] if self.producer[k] >= last]
            for other in near:
                if other not in seen:
                    seen.add(other)
                    missing.discard(other)
                    stack.append(other)
        return not missing
