"""Parts that fit the chips: into how many each block is divided, stages and cuts, decided together.

The smaller the pieces, the more equal the loads of chips, but each part costs kernels of its own. So blocks
are divided where stages end, each as the stages around it ask for (:mod:`go_opt.solver.slicing.divided`).
What the pieces of a block in so many parts take is that in a graph in which all blocks have as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from go_opt.env import CostTables, Target, cost_tables, fused_within_chips, loop_roles
from go_opt.env.copies.splits import split_graph_and_parts
from go_opt.env.cost.tables import transfer_s
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.kernels.schedule import list_schedule
from go_opt.env.peak_memory import op_activation_bytes
from go_opt.model.graph import WEIGHT, Graph, with_sequences
from go_opt.model.plan import Split
from go_opt.model.start import OpStart, Start
from go_opt.result import Request
from go_opt.search.methods.events import may_replicate
from go_opt.search.splits.block_ways import PARTS, is_open, splits_of_blocks, start_in_turn
from go_opt.search.splits.rows import split_along, steps_of
from go_opt.search.splits.ways import heavy_ops, open_blocks
from go_opt.solver.problem.op_constraints import op_constraints
from go_opt.solver.problem.sequence import kernel_sequence
from go_opt.solver.slicing.divided import DividedSlicing, Pieces, Room, slice_divided

METHOD: Final = "parts that fit the chips"
CLOSE: Final = 1 / 200  # relative difference of intervals that count as equal
STEPS: Final = (0, 8, 8, 4, 2, 1)  # between numbers of sequences
MOST_REPLICAS: Final = 2  # of a stage, each of which has all its weights
FILLED: Final = 1.06  # times an equal share of the work: what one, two or three parts of a heavy op take

_OTHERS: Final = -1  # the owner of kernels that are not divided


class Fitted(NamedTuple):
    """Splits, and the stages of their parts and of all other ops."""

    sequences: int
    way: tuple[Split, ...]
    start: Start
    slicing: DividedSlicing


class _Block(NamedTuple):
    ops: tuple[int, ...]
    ways: tuple[tuple[Split, ...], ...]  # one for each of PARTS, () where it stays whole


class _Kernel(NamedTuple):
    owner: int  # the block of its first op, or _OTHERS
    work_s: float
    weight_bytes: int
    state_bytes: int
    activation_bytes: int
    sent_s: float  # of a link if a stage ends before it; infinite: none may
    ops: tuple[str, ...]


class _Option(NamedTuple):
    way: tuple[Split, ...]
    kernels: tuple[_Kernel, ...]


class FittedParts:
    """The ways to divide the blocks of a graph, each into as many parts as fit the chips.

    Args:
      is_late: numbers of parts that are not looked at before are left out.

    Raises:
      PlanError: the blocks cannot be divided together.
    """

    def __init__(
        self, graph: Graph, target: Target, request: Request, is_late: Callable[[], bool] = lambda: False
    ) -> None:
        graph = with_sequences(graph, 1)
        tables = cost_tables(graph, target)
        self._num_chips = target.num_chips
        self._replicas = MOST_REPLICAS if may_replicate(target, request) else 1
        self._chip_bytes = float(tables.sram_bytes.min() - tables.stream_buffer_bytes.max())
        blocks = _blocks(graph, target, request)
        self._options = _options_in_order(graph, target, blocks, is_late) if blocks else []
        self._pieces, self._kernels = _pieces(self._options)

    @property
    def is_open(self) -> bool:
        """Whether there is anything to decide."""
        return any(len(options) > 1 for options in self._options)

    def best(
        self, number: int, numbers: range, limits_s: tuple[float, float], latency_scale: float
    ) -> Fitted | None:
        """The parts with the least interval over some numbers of sequences, from one number on.

        Args:
          limits_s: of the interval.
          latency_scale: see :meth:`fitted`.
        """
        best, tried = None, set[int]()
        (lower_s, upper_s), at = limits_s, number
        for step in STEPS:
            for other in (at - step, at + step):
                if other in tried or other not in numbers:
                    continue
                tried.add(other)
                found = self.fitted(other, lower_s, upper_s, latency_scale)
                if found is not None:
                    best, at, upper_s = found, other, found.slicing.interval_s * (1.0 - CLOSE)
        return best

    def fitted(self, sequences: int, lower_s: float, upper_s: float, latency_scale: float) -> Fitted | None:
        """The parts for so many sequences, with an interval between two; None if none are found.

        Args:
          latency_scale: the latency of a plan over that of its slicing.
        """
        room = Room(self._num_chips, self._chip_bytes, sequences, self._replicas, latency_scale)
        slicing = slice_divided(self._pieces, room, lower_s, upper_s)
        if slicing is None:
            return None
        ops, number = dict[str, OpStart](), 0
        for piece, chip, replicas in zip(slicing.piece, slicing.first_chip, slicing.replicas, strict=True):
            for kernel in self._kernels[piece]:
                for name in kernel.ops:
                    ops[name] = OpStart(int(chip), int(replicas), number, len(ops))
                number += 1
        options = [option for options in self._options for option in options]
        way = tuple(split for i in slicing.option.tolist() for split in options[i].way)
        return Fitted(sequences, way, Start(ops, method=METHOD), slicing)


def _blocks(graph: Graph, target: Target, request: Request) -> list[_Block]:
    """What may be divided, in as many ways as there are PARTS: blocks, and heavy ops outside of them."""
    found = []
    for block in open_blocks(graph, target, request):
        in_parts = [[block] * is_open(graph, block, parts) for parts in PARTS]
        splits = (splits_of_blocks(graph, *one) for one in zip(in_parts, PARTS, strict=True))
        found.append(_Block(tuple(op for op, _ in block), tuple(map(tuple, splits))))
    in_blocks = {op for block in found for op in block.ops}
    tables = cost_tables(graph, target)
    work_s, overhead_s = tables.kernel_floor_s().min(axis=0), float(tables.kernel_overhead_s.max())
    filled_s = FILLED * float(work_s.sum()) / target.num_chips
    heavy = heavy_ops(graph, target, request) if found else {}
    weights = [k for op in heavy for k, _ in graph.reads_of(op) if graph.tensor_kind[k] == WEIGHT]
    for op, factor in heavy.items():
        is_shared = any(weights.count(k) > 1 for k, _ in graph.reads_of(op))
        if op in in_blocks or is_shared:
            continue
        ways = []
        for together in range(1, len(PARTS) + 1):  # parts that fill a chip
            parts = together * work_s[op] / max(filled_s - together * overhead_s, overhead_s)
            parts = min(math.ceil(parts), steps_of(graph, op, factor))
            ways.append((split_along(graph, op, factor, parts),) if parts > 1 else ())
        found.append(_Block((op,), tuple(ways)))
    return found


def _options_in_order(
    graph: Graph, target: Target, blocks: list[_Block], is_late: Callable[[], bool]
) -> list[list[_Option]]:
    """The segments of a sample in order, each with its options.

    Empty unless each block is one segment, whatever its parts.
    """
    found: list[list[_Option]] = []
    for i in (0, -1, *range(1, len(PARTS))):  # -1: whole blocks
        if is_late():
            break
        way = tuple(split for block in blocks for split in block.ways[i]) if i >= 0 else ()
        segments = _segments(graph, target, blocks, way)
        owners = [owner for owner, _ in segments]
        if i == 0:
            first = owners
            inside = [owner for owner in owners if owner != _OTHERS]
            if len(inside) != len(set(inside)):
                return []
            found = [[] for _ in owners]
        for at, (owner, kernels) in enumerate(segments if owners == first else ()):
            divided = blocks[owner].ways[i] if owner != _OTHERS and i >= 0 else ()
            if divided or not (found[at] if owner == _OTHERS else i >= 0):
                found[at].append(_Option(divided, kernels))
    return found if all(found) else []


def _segments(
    graph: Graph, target: Target, blocks: list[_Block], way: tuple[Split, ...]
) -> list[tuple[int, tuple[_Kernel, ...]]]:
    """The kernels of the graph with the parts of ``way`` by their owners, in the order of parts in turn."""
    kernels = _kernels_in_order(graph, target, blocks, way)
    return [(owner, tuple(of)) for owner, of in groupby(kernels, key=lambda kernel: kernel.owner)]


def _kernels_in_order(
    graph: Graph, target: Target, blocks: list[_Block], way: tuple[Split, ...]
) -> Iterator[_Kernel]:
    split, parts, _ = split_graph_and_parts(graph, way)
    tables, alone = cost_tables(split, target), np.zeros(split.num_ops, np.int32)
    *_, rank = start_in_turn(graph, way).on(split)
    order = list_schedule(split, np.arange(split.num_ops, dtype=np.int32), -rank.astype(np.float64))
    group = fused_within_chips(loop_roles(split, target.kernel_patterns), order, alone)
    order = op_constraints(split, target, ()).contiguous(order, group)
    kernel_of = number_kernels(order, group)
    work_s = kernel_seconds(tables, kernel_of)[tables.chip_kind[0]]
    block_of = {op: i for i, block in enumerate(blocks) for op in block.ops}
    owner = np.full(split.num_ops, len(blocks))
    readers_ptr, readers = split.successors
    for op in reversed(range(split.num_ops)):  # what takes or adds pieces goes with its first reader
        name = split.op_names[op]
        whole = parts[name].op if name in parts else graph.op_index.get(name)
        if whole is not None:
            owner[op] = block_of.get(whole, _OTHERS)
        else:
            owner[op] = owner[readers[readers_ptr[op] : readers_ptr[op + 1]]].min()
    weight_bytes, state_bytes = _held_bytes(split, tables, order, kernel_of)
    activation_bytes = op_activation_bytes(split, target)
    sent_s = _sent_s(split, tables, order, group, kernel_of)
    by_kernel: list[list[int]] = [[] for _ in work_s]
    for op in order.tolist():
        by_kernel[kernel_of[op]].append(op)
    for kernel, ops in enumerate(by_kernel):
        names = tuple(split.op_names[op] for op in ops)
        held = int(weight_bytes[kernel]), int(state_bytes[kernel]), int(activation_bytes[ops].max())
        yield _Kernel(int(owner[ops[0]]), float(work_s[kernel]), *held, float(sent_s[kernel]), names)


def _held_bytes(
    graph: Graph, tables: CostTables, order: np.ndarray, kernel_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of weights and of states [M] that no kernel before reads; none of weights beyond a memory."""
    weight_bytes, state_bytes = np.zeros((2, int(kernel_of.max()) + 1), np.int64)
    seen = set[int]()
    for op in order.tolist():
        for k, _ in graph.reads_of(op):
            if (
                k in seen
                or tables.tensor_kind[k] != WEIGHT
                or tables.stored_bytes[k] > tables.sram_bytes.max()
            ):
                continue
            seen.add(k)
            (state_bytes if tables.is_state[k] else weight_bytes)[kernel_of[op]] += tables.stored_bytes[k]
    return weight_bytes, state_bytes


def _sent_s(
    graph: Graph, tables: CostTables, order: np.ndarray, group: np.ndarray, kernel_of: np.ndarray
) -> np.ndarray:
    """[M] the seconds of the link for what crosses a cut before each kernel; infinite inside of a state."""
    crossing = kernel_sequence(tables, order, group, adjacent=False).crossing_bytes[:-1]
    sent_s = np.array([transfer_s(tables, 0, 1, int(size)) for size in crossing])
    for state in graph.states:
        at = kernel_of[list(graph.readers_of(state.read))]
        if len(at):
            sent_s[at.min() + 1 : at.max() + 1] = math.inf
    return sent_s


def _pieces(segments: Sequence[Sequence[_Option]]) -> tuple[Pieces, list[list[_Kernel]]]:
    """The options of all segments as arrays, and the kernels of each piece: no stage ends between them."""
    option_ptr, piece_ptr, kernels = [0], [0], list[list[_Kernel]]()
    for options in segments:
        for option in options:
            begun = len(kernels)
            for kernel in option.kernels:
                if math.isinf(kernel.sent_s) and len(kernels) > begun:
                    kernels[-1].append(kernel)
                else:
                    kernels.append([kernel])
            piece_ptr.append(len(kernels))
        option_ptr.append(len(piece_ptr) - 1)
    held = [(one.work_s, one.weight_bytes, one.state_bytes) for of in kernels for one in of]
    begins = np.cumsum([0, *map(len, kernels)])[:-1]
    work_s, weight_bytes, state_bytes = np.add.reduceat(
        np.array(held, np.float64).reshape(-1, 3), begins
    ).T.copy()
    return Pieces(
        np.array(option_ptr),
        np.array(piece_ptr),
        np.array([bool(option.way) for options in segments for option in options]),
        work_s,
        weight_bytes,
        state_bytes,
        np.array([max(one.activation_bytes for one in of) for of in kernels], np.float64),
        np.array([of[0].sent_s for of in kernels]),
    ), kernels
