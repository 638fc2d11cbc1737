"""Coarsening: units contracted along chains until few are left, for rivals that scale badly.

Contracting an edge whose source has no other reader, or whose reader reads nothing else,
leaves a DAG acyclic: a second path between the two would start, or end, with that very edge.
"""

from __future__ import annotations

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.solver import PlacementProblem


def coarsened(units: PlacementProblem, seconds: FloatArray, most_units: int, most_s: float) -> IntArray:
    """[N] block of each op: at most ``most_units`` blocks, or as few as chains allow.

    The lightest pair goes first. Blocks stay within ``most_s`` [s] as long as that leaves
    pairs to contract; the limit doubles where it does not.

    Args:
      seconds: [U] of each unit.
    """
    block, num_blocks = np.arange(units.num_units), units.num_units
    weight = seconds.copy()
    while num_blocks > most_units:
        source, reader = _contractible(units, block)
        if len(source) == 0:
            break
        pair_s = weight[source] + weight[reader]
        light = np.flatnonzero(pair_s <= most_s)
        if len(light) == 0:
            most_s *= 2.0
            continue
        # Pairs that share no block: contracting one leaves the others as they are.
        taken = np.zeros(units.num_units, np.bool_)
        for i in light[np.argsort(pair_s[light], kind="stable")]:
            a, b = source[i], reader[i]
            if taken[a] or taken[b] or num_blocks <= most_units:
                continue
            taken[[a, b]] = True
            block[block == b] = a
            weight[a] += weight[b]
            num_blocks -= 1
    return block[units.unit_of_op].astype(np.int32)


def _contractible(units: PlacementProblem, block: LongArray) -> tuple[LongArray, LongArray]:
    """Edges between blocks with one way out of the source, or one way into the reader."""
    source = block[np.repeat(np.arange(units.num_units), np.diff(units.successor_ptr))]
    reader = block[units.successor]
    edges = np.unique(np.stack([source, reader], axis=1)[source != reader], axis=0).reshape(-1, 2)
    num_out = np.bincount(edges[:, 0], minlength=units.num_units)
    num_in = np.bincount(edges[:, 1], minlength=units.num_units)
    is_chain = (num_out[edges[:, 0]] == 1) | (num_in[edges[:, 1]] == 1)
    return edges[is_chain, 0], edges[is_chain, 1]
