"""Ops of one type and shape as a group, and how the efficiencies of groups are related before measuring.

The logarithm of a group's factor is normal. Half of its variance is shared by all ops of the type, the other
half by products of similar shapes of any type (a Gaussian process: Rasmussen and Williams, 2006).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray
from go_opt.env.cost.shapes import product_shapes
from go_opt.env.target.simulator_parameters import OpFactor
from go_opt.model.graph import MATRIX, Graph

_TYPE_SHARE: Final = 0.5  # of the variance
_ALIKE: Final = 2.0  # standard deviations of similar shapes, in powers of two
_LEAST_FACTOR: Final = 0.005  # logarithm; smaller ones are left out


class OpGroups:
    """The groups of a graph's ops.

    Attributes:
      of_op: [N + 1] group of each op; the last is for relays, which have no work.
      root: [G, G] matrix whose square is the covariance of logarithms, for a variance of 1.
    """

    def __init__(self, graph: Graph) -> None:
        shapes = np.stack(product_shapes(graph), axis=1)
        is_matrix = (graph.op_class == MATRIX).tolist()
        keys = list(zip(graph.op_types, is_matrix, map(tuple, shapes.astype(np.int64).tolist()), strict=True))
        self._keys = list(dict.fromkeys(keys))
        number = {key: i for i, key in enumerate(self._keys)}
        self.of_op: IntArray = np.array([*map(number.__getitem__, keys), 0], np.int32)
        types = np.array([op_type for op_type, _, _ in self._keys])
        of_class = np.array([is_matrix for _, is_matrix, _ in self._keys])
        place = np.log2(np.array([shape for _, _, shape in self._keys], np.float64))
        apart = ((place[:, None] - place[None]) ** 2).sum(axis=2)
        near = np.exp(-apart / (2 * _ALIKE**2)) * (of_class[:, None] == of_class[None])
        covariance = _TYPE_SHARE * (types[:, None] == types[None]) + (1 - _TYPE_SHARE) * near
        values, vectors = np.linalg.eigh(covariance)
        self.root: FloatArray = vectors * np.sqrt(np.fmax(values, 0.0))

    def __len__(self) -> int:
        return len(self._keys)

    def factors(self, logs: FloatArray) -> tuple[OpFactor, ...]:
        """The factors with these logarithms [G]; for other shapes of a type, the mean of its groups."""
        by_type: dict[str, list[float]] = {}
        for (op_type, _, _), log in zip(self._keys, logs.tolist(), strict=True):
            by_type.setdefault(op_type, []).append(log)
        rows = [(op_type, float(np.mean(values)), ()) for op_type, values in by_type.items()]
        rows += [
            (op_type, log, shape)
            for (op_type, is_matrix, shape), log in zip(self._keys, logs.tolist(), strict=True)
            if is_matrix and len(by_type[op_type]) > 1
        ]
        if np.abs(logs).max() <= _LEAST_FACTOR:
            return ()
        return tuple(
            OpFactor(op_type, float(np.exp(log)), shape)
            for op_type, log, shape in rows
            if abs(log) > _LEAST_FACTOR or shape
        )
