"""METIS with repair: converts a balanced partition with a small cut to a pipeline.

The default kernels are vertices weighted by seconds; edges carry bytes. METIS ignores edge
directions and does not order its parts. So parts are numbered by the mean position of their
kernels and made valid in two ways. FIX repairs the part numbers to a placement. List scheduling
with the part numbers as priorities gives an order to slice. Karypis and Kumar, "A fast and high
quality multilevel scheme for partitioning irregular graphs", SIAM J. Sci. Comput. 1998.
"""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any, Final

import numpy as np

from go_opt.bench.rivals.searches import evaluate_units, slice_along
from go_opt.bench.rivals.trial import Trial, unit_problem
from go_opt.common.arrays import FloatArray, IntArray, LongArray, row_pointers
from go_opt.env import list_schedule
from go_opt.model.graph import NO_PRODUCER
from go_opt.solver import PlacementProblem
from tests.benchmarks.rival_units import repaired, unit_seconds, unit_tensors

SHARES: Final = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15)  # of the chips: the numbers of parts to try
# Parts may exceed the mean weight by this many thousandths; each seed takes the next value.
IMBALANCES: Final = (30, 200, 1000)
_MOST_WEIGHT: Final = 10**9  # sum over all vertices or edges: METIS may count in 32 bits


def metis(trial: Trial, seed: int) -> None:
    """Tries numbers of parts, seeds and imbalances in turn, and repairs each partition in both ways."""
    pymetis: Any = import_module("pymetis")
    problem = trial.problem
    units = unit_problem(problem)
    neighbours, edge_weight, vertex_weight = _weighted_graph(trial, units)
    parts = sorted({max(2, round(share * units.num_chips)) for share in SHARES}, reverse=True)
    parts = [count for count in parts if count <= min(units.num_chips, units.num_units)]
    for turn in itertools.count():
        options = pymetis.Options(seed=seed + turn, ufactor=IMBALANCES[turn % len(IMBALANCES)])
        for count in parts or [1]:
            part = np.zeros(units.num_units, np.int64)
            if count > 1 and len(edge_weight):
                _, found = pymetis.part_graph(
                    count,
                    pymetis.CSRAdjacency(*neighbours),
                    vweights=vertex_weight,
                    eweights=edge_weight,
                    options=options,
                )
                part = np.asarray(found)
            chip = _numbered(units, part)
            evaluate_units(trial, units, repaired(trial, units, chip, seed + turn))
            priority = -chip.astype(np.float64)
            slice_along(trial, list_schedule(problem.graph, units.unit_of_op, priority))


def _weighted_graph(
    trial: Trial, units: PlacementProblem
) -> tuple[tuple[LongArray, LongArray], LongArray, LongArray]:
    """The CSR form of the undirected graph, its edge weights and its vertex weights.

    A tensor's bytes are divided among the edges to its readers.
    """
    problem = trial.problem
    ends, weights = [], []
    for tensor in unit_tensors(problem.instance.tables, units.unit_of_op):
        if tensor.home != NO_PRODUCER:
            ends += [(tensor.home, reader) for reader in tensor.readers]
            weights += [tensor.num_bytes / len(tensor.readers)] * len(tensor.readers)
    pairs, inverse = np.unique(np.array(ends).reshape(-1, 2), axis=0, return_inverse=True)
    shared = np.bincount(inverse.ravel(), weights=np.array(weights), minlength=len(pairs))
    weight = _whole(shared.astype(np.float64))
    pairs = np.concatenate([pairs, pairs[:, ::-1]]).astype(np.int64)
    by_source = np.argsort(pairs[:, 0], kind="stable")
    xadj = row_pointers(pairs[:, 0], units.num_units)
    seconds = unit_seconds(problem, units.unit_of_op).mean(axis=0)
    return (xadj, pairs[by_source, 1]), np.tile(weight, 2)[by_source], _whole(seconds)


def _whole(weights: FloatArray) -> LongArray:
    """Scales weights to integers of at least 1."""
    total = float(weights.sum())
    shares = weights / total if total > 0 else weights
    return np.maximum(1, (shares * _MOST_WEIGHT).astype(np.int64))


def _numbered(units: PlacementProblem, part: LongArray) -> IntArray:
    """[U] parts numbered by the mean position of their units in the topological order."""
    place = np.empty(units.num_units)
    place[units.topological] = np.arange(units.num_units)
    _, part = np.unique(part, return_inverse=True)
    mean_place = np.bincount(part, weights=place) / np.bincount(part)
    rank = np.empty(len(mean_place), dtype=np.int32)
    rank[np.argsort(mean_place, kind="stable")] = np.arange(len(mean_place), dtype=np.int32)
    return rank[part]


def coarsened(units: PlacementProblem, seconds: FloatArray, most_units: int, most_s: float) -> IntArray:
    """[N] block of each op: at most ``most_units`` blocks if the chains allow it.

    Contracts the lightest pairs first. Blocks stay within ``most_s`` [s]; the limit doubles when
    no pair fits it.

    Args:
      seconds: [U] time of each unit.
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
        # Contract pairs that share no block, so that each contraction leaves the other pairs valid.
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
    """Edges between blocks that are the only edge out of the source or into the reader."""
    source = block[np.repeat(np.arange(units.num_units), np.diff(units.successor_ptr))]
    reader = block[units.successor]
    edges = np.unique(np.stack([source, reader], axis=1)[source != reader], axis=0).reshape(-1, 2)
    num_out = np.bincount(edges[:, 0], minlength=units.num_units)
    num_in = np.bincount(edges[:, 1], minlength=units.num_units)
    is_chain = (num_out[edges[:, 0]] == 1) | (num_in[edges[:, 1]] == 1)
    return edges[is_chain, 0], edges[is_chain, 1]
