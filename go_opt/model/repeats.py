"""Repeated structure: maximal runs of identical consecutive blocks of a graph.

Op ``i`` matches op ``i + p`` where both are of the same type, class, work and types and
read alike: each tensor of the one is as large as its counterpart of the other and comes
from as many ops back, or it is the very same tensor. A stretch of matches of at least ``p``
ops is a run of period ``p``: the blocks are equal up to the weights they hold. (Who reads
the results of a block is seen at those readers; behind the last block they may differ.)

Periods to try are voted for by distances between equal n-grams of op labels, as in the
search for tandem repeats by seeds (Benson, 1999); every candidate is then checked op by op.
Time and memory are O(N log N + R) and O(N + R) a period, of which at most ``MOST_PERIODS``
are tried. Axes: ``N`` ops, ``K`` tensors, ``R`` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, LongArray, WordArray
from go_opt.model.graph import NO_PRODUCER, WEIGHT, Graph

MOST_PERIODS: Final = 64
_GRAM_DOUBLINGS: Final = (0, 2, 4)  # n-grams of 1, 4 and 16 ops
_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Repeat:
    """``blocks`` identical blocks one after another along the ops as the graph stores them."""

    first_op: int
    ops_per_block: int
    blocks: int

    @property
    def end(self) -> int:
        """The op behind the last block."""
        return self.first_op + self.ops_per_block * self.blocks

    def block(self, b: int) -> range:
        """The ops of block ``b``; the same place in two blocks is the same op of both."""
        start = self.first_op + b * self.ops_per_block
        return range(start, start + self.ops_per_block)


class _Reads(NamedTuple):
    """Reads by op, and within an op in an order that all matching ops share."""

    ptr: LongArray  # [N + 1]
    label: WordArray  # [R] what is read, wherever it comes from
    tensor: LongArray  # [R]
    hops: LongArray  # [R] ops back to the producer; to the first reader where there is none


@lru_cache(maxsize=16)
def find_repeats(graph: Graph) -> tuple[Repeat, ...]:
    """The runs of identical blocks, none overlapping, by first op.

    The run that covers most ops goes first, and the smallest block of those; a longer
    period, such as two layers for one, is never reported. Where a run could begin at
    several ops, its blocks are cut where the fewest elements cross.
    """
    reads = _reads(graph)
    labels = _op_labels(graph, reads)
    open_runs = [
        (start, end + period, period)
        for period in _candidate_periods(labels)
        for start, end in _stretches(labels, reads, period)
    ]
    crossing = _crossing_elements(graph)
    found = []
    while open_runs:
        start, end, period = min(open_runs, key=lambda run: (-_covered(*run), run[2], run[0]))
        repeat = _cut(start, end, period, crossing)
        found.append(repeat)
        open_runs = [piece for run in open_runs for piece in _outside(run, repeat)]
    return tuple(sorted(found, key=lambda repeat: repeat.first_op))


def _covered(start: int, end: int, period: int) -> int:
    return (end - start) // period * period


def _cut(start: int, end: int, period: int, crossing: LongArray) -> Repeat:
    spare = (end - start) % period
    # The border behind the first block stands for all: they are alike. Of equal ones the last,
    # so that an op whose result is all that crosses ends a block rather than begins one.
    borders = crossing[start + period : start + period + spare + 1]
    return Repeat(start + spare - int(np.argmin(borders[::-1])), period, (end - start) // period)


def _outside(run: tuple[int, int, int], taken: Repeat) -> Iterator[tuple[int, int, int]]:
    """What is left of a run beside ``taken``, where two blocks still fit."""
    start, end, period = run
    pieces = ((start, min(end, taken.first_op)), (max(start, taken.end), end))
    return ((a, b, period) for a, b in pieces if b - a >= 2 * period)


def _candidate_periods(labels: WordArray) -> list[int]:
    """Distances between an n-gram and its next occurrence, those seen most often first."""
    distances = []
    gram = labels
    for doubling in range(max(_GRAM_DOUBLINGS) + 1):
        if doubling in _GRAM_DOUBLINGS:
            by_gram = np.argsort(gram, kind="stable")
            is_again = gram[by_gram[1:]] == gram[by_gram[:-1]]
            distances.append(np.diff(by_gram)[is_again])
        half = 2**doubling
        if len(gram) <= half:
            break
        gram = _mixed(_mixed(gram[:-half]) + gram[half:])
    periods, votes = np.unique(np.concatenate(distances), return_counts=True)
    most = np.argsort(-votes, kind="stable")[:MOST_PERIODS]
    return [int(period) for period in periods[most]]


def _stretches(labels: WordArray, reads: _Reads, period: int) -> Iterator[tuple[int, int]]:
    """Maximal stretches [start, end) of at least ``period`` ops that match the op a period on."""
    alike = labels[:-period] == labels[period:]
    for start, end in _runs(alike, period):
        # Equal labels mean equally many reads, so those of both stretches stand side by side.
        here = slice(int(reads.ptr[start]), int(reads.ptr[end]))
        there = slice(int(reads.ptr[start + period]), int(reads.ptr[end + period]))
        same = reads.hops[here] == reads.hops[there]
        same |= reads.tensor[here] == reads.tensor[there]
        reader = np.repeat(np.arange(end - start), np.diff(reads.ptr[start : end + 1]))
        matches = np.ones(end - start, dtype=np.bool_)
        matches[reader[~same]] = False
        yield from ((start + a, start + b) for a, b in _runs(matches, period))


def _runs(flags: BoolArray, shortest: int) -> list[tuple[int, int]]:
    """Maximal runs [start, end) of True of at least ``shortest``."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    starts, ends = edges[::2], edges[1::2]
    is_long = ends - starts >= shortest
    return list(zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True))


def _op_labels(graph: Graph, reads: _Reads) -> WordArray:
    """[N] what an op computes and how large what it reads and writes is."""
    _, type_code = np.unique(graph.op_types, return_inverse=True)
    columns: list[NDArray] = [type_code, graph.op_class, graph.op_dtype, graph.op_flops.view(np.int64)]
    columns += [graph.measured_s[kind].view(np.int64) for kind in sorted(graph.measured_s)]
    columns += [graph.excluded[kind] for kind in sorted(graph.excluded)]
    label = _hashed(columns)
    # Sums of hashes are hashes of multisets.
    produced = graph.tensor_producer != NO_PRODUCER
    np.add.at(label, graph.tensor_producer[produced], _mixed(_tensor_labels(graph)[produced]))
    reader = np.repeat(np.arange(graph.num_ops), np.diff(reads.ptr))
    np.add.at(label, reader, _mixed(reads.label + _PRIME))
    return label


def _reads(graph: Graph) -> _Reads:
    tensor = graph.reader_tensor.astype(np.int64)
    label = _hashed([_tensor_labels(graph)[tensor].view(np.int64), graph.reader_elements])
    source = graph.tensor_producer.astype(np.int64)
    given = (source == NO_PRODUCER) & (np.diff(graph.reader_ptr) > 0)
    source[given] = graph.reader_op[graph.reader_ptr[:-1][given]]
    hops = graph.reader_op - source[tensor]
    by_op = np.lexsort((tensor, hops, label, graph.reader_op))
    return _Reads(graph.op_reads[0], label[by_op], tensor[by_op], hops[by_op])


def _tensor_labels(graph: Graph) -> WordArray:
    """[K] size, type, kind, and which of its producer's results a tensor is."""
    out_ptr, outputs = graph.op_outputs
    slot = np.full(graph.num_tensors, -1)
    slot[outputs] = np.arange(len(outputs)) - out_ptr[graph.tensor_producer[outputs]]
    columns = [slot, graph.tensor_elements, graph.tensor_dtype, graph.tensor_kind, graph.tensor_is_output]
    return _hashed(columns)


def _crossing_elements(graph: Graph) -> LongArray:
    """[N + 1] elements of activations produced before op i and read by it or a later one."""
    has_reader = np.diff(graph.reader_ptr) > 0
    crosses = (graph.tensor_kind != WEIGHT) & (graph.tensor_producer != NO_PRODUCER) & has_reader
    last_reader = graph.reader_op[graph.reader_ptr[1:][crosses] - 1]
    change = np.zeros(graph.num_ops + 2, dtype=np.int64)
    np.add.at(change, graph.tensor_producer[crosses] + 1, graph.tensor_elements[crosses])
    np.add.at(change, last_reader + 1, -graph.tensor_elements[crosses])
    return np.cumsum(change)[: graph.num_ops + 1]


def _hashed(columns: list[NDArray]) -> WordArray:
    state = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        state = _mixed(state + _PRIME + column.astype(np.int64).view(np.uint64))
    return state


def _mixed(value: WordArray) -> WordArray:
    """The finaliser of splitmix64: a bijection that spreads every bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
