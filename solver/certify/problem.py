"""The problem that certificates solve: units with additive seconds on identical chips along a ring.

A placement with ``f(u) <= f(v)`` for every edge is a chain of down-sets
``{} = I_0 <= I_1 <= … <= I_D = all`` (a down-set holds the ancestors of what it holds): chip d
runs ``I_{d+1} - I_d``, and link d - 1, which enters chip d, carries ``cut(I_d)``, the bytes of
tensors produced in ``I_d`` and read outside. The time of a chip is

* with overlap: ``max(work, cut(I_d) / rate, cut(I_{d+1}) / rate)``, and the host's links;
* without overlap: ``work + (cut(I_d) + cut(I_{d+1})) / rate + its inputs and outputs``.

Relayed tensors add their copies to the work of every chip they pass. The main graph ignores
memory, so bounds stay sound and plans must be checked. A second graph, ``tight``
(:mod:`go_opt.solver.certify.build`), counts memory if the first does not settle the problem.

With replication open, segments are stages, and r chips divide the work of their stage by r; links
inside a stage never carry more than its borders. Memory then counts from the start, since each chip of a
stage holds what the stage's units need: without memory, one stage of all chips would be best.

Each stage may stream all bytes of the host's link within the interval except the inputs, plus the
bytes that its chips can forward. If k chips forward F bytes and each gets D from the host,
``D + F / k`` cross the host's link and ``F / k`` cross each link inside. So ``D + F`` is at
most the capacity of the host's link plus k - 1 times the capacity of a link.

Axes: ``U`` units in a topological order, ``K`` tensors, ``D`` chips. Bounds count in ticks,
seconds rounded down to a tiny unit, so that sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from go_opt.common.arrays import FloatArray, IntArray, LongArray
from go_opt.common.compiling import int64, uncounted_inner
from go_opt.env.cost.tables import CostTables
from go_opt.solver.certify.bounds import Bound

NEVER_FITS: Final = -1


class ChipMemory(NamedTuple):
    """The memory of a chip, and what its streamed weights cost."""

    sram_bytes: int = 0
    stream_buffer_bytes: int = 0  # reserved on a chip that streams
    reserved_bytes: int = 0  # cross the host's link in every interval, for any placement
    stream_bytes_per_tick: float = 0.0  # with overlap: the rate of the host's link
    forward_bytes_per_tick: float = 0.0  # rate from each chip of a stage to the next
    stream_ticks_per_byte: float = 0.0  # without overlap: chip time of a streamed byte


def chip_memory(tables: CostTables, reserved_bytes: int, tick_s: float, *, forwards: bool) -> ChipMemory:
    """Returns the largest memory and the fastest links of any chip."""
    pays = bool(tables.pays_transfers.all())  # otherwise a chip may stream at no cost
    return ChipMemory(
        int(tables.sram_bytes.max()),
        int(tables.stream_buffer_bytes.min()),
        reserved_bytes,
        tick_s / tables.host_in_s_per_byte if tables.overlap else 0.0,
        tick_s / float(tables.link_s_per_byte.min()) if forwards else 0.0,
        tables.host_in_s_per_byte / tick_s if pays and not tables.overlap else 0.0,
    )


@uncounted_inner
def spare_bytes(chip: ChipMemory, ticks: int) -> int:
    """Returns the bytes that the host's link may stream in an interval of ``ticks``."""
    if chip.stream_bytes_per_tick == 0:
        return int64(2) ** 60
    spare = chip.stream_bytes_per_tick * (ticks + 1.0) * (1.0 + 1e-12) - chip.reserved_bytes
    return int64(min(max(spare, 0.0), 2.0**60))


@uncounted_inner
def forwarded_bytes(chip: ChipMemory, ticks: int) -> int:
    """Returns the bytes that each chip of a stage but the first adds to :func:`spare_bytes`."""
    return int64(min(chip.forward_bytes_per_tick * (ticks + 1.0) * (1.0 + 1e-12), 2.0**50))


# One chip that runs everything takes this many ticks: rounding costs less than 1e-9 at 1e5 units.
TOTAL_TICKS: Final = 2**50
MOST_TICKS: Final = 2**55  # stands for any time that is too long in any case


class UnitGraph(NamedTuple):
    """Units, the tensors between them, their costs and what they hold, as flat arrays for compiled code.

    Axes besides those above: ``R`` reads of the tensors, ``I`` inputs, ``G`` weights.
    """

    unit_ticks: LongArray  # [U] work; without overlap: plus outputs and shares of inputs
    successor_ptr: LongArray  # [U + 1]
    successor: IntArray  # units that read unit u, each once
    predecessor_ptr: LongArray  # [U + 1]
    predecessor: IntArray  # units that unit u reads, each once
    next_ptr: LongArray  # [U + 1]
    next: IntArray  # adjacent rule: successors of unit u that run on its chip or the next one
    last_ptr: LongArray  # [U + 1]
    last: IntArray  # the same backwards: predecessors of unit u on its chip or the last one
    produced_ptr: LongArray  # [U + 1] tensors that unit u produces; tensors are sorted by producer
    read_ptr: LongArray  # [U + 1]
    read: IntArray  # tensors that unit u reads
    tensor_producer: IntArray  # [K]
    tensor_bytes: LongArray  # [K]
    reader_ptr: LongArray  # [K + 1]
    reader: IntArray  # units that read tensor k, ascending, never its producer
    relay_ticks: LongArray  # [K] time of a copy of the tensor; 0 if it passes at no cost
    input_reader_ptr: LongArray  # [I + 1] inputs that several units read; empty with overlap
    input_reader: IntArray
    input_ticks: LongArray  # [I]
    ticks_per_byte: float  # over a link
    num_chips: int
    forwarding: int
    overlap: bool
    replicates: bool  # whether a stage may take several chips
    output_bytes: LongArray  # [U] double buffers of outputs, and states
    enter_bytes: LongArray  # [K] double buffer on a chip that the tensor enters
    leave_bytes: LongArray  # [K] double buffer on a chip that it leaves; without output_bytes
    made_bytes: LongArray  # [K] alive while its producer runs, if it does not leave
    read_bytes: LongArray  # [R] alive while the reader runs, if it does not enter
    across_bytes: LongArray  # [K] alive across units between, if it neither enters nor leaves
    across_ptr: LongArray  # [U + 1]
    across: IntArray  # [P] tensors produced before the unit and read after it …
    across_reader: IntArray  # [P] … by this unit
    input_ptr: LongArray  # [U + 1]
    input: IntArray
    input_bytes: LongArray  # [I] double buffer of each
    weight_ptr: LongArray  # [U + 1]
    weight: IntArray  # numbered in streaming order
    stored_bytes: LongArray  # [G]; 0: it streams wherever it is read
    touched_bytes: LongArray  # [G]; 0: unknown, counts as free
    chip: ChipMemory
    is_in_order: bool  # a chip runs its units in ascending order of their numbers
    is_full: bool  # with overlap: weights exceed FULL of all memory, so resident weights are summed
    counts_memory: bool  # in tight graphs, and if stages may be replicated; or else the rest is empty

    @property
    def num_units(self) -> int:
        return len(self.unit_ticks)


def nothing_held() -> dict[str, Any]:
    """Returns the fields of :class:`UnitGraph` from ``output_bytes`` on for problems without memory."""
    none, nobody, pointers = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(1, np.int64)
    values = (
        none, none, none, none, none, none, pointers, nobody, nobody,
        pointers, nobody, none, pointers, nobody, none, none,
        ChipMemory(), False, False, False,
    )  # fmt: skip
    return dict(zip(UnitGraph._fields[-len(values) :], values, strict=True))


@dataclass(frozen=True, eq=False)
class RefinementProblem:
    """A :class:`UnitGraph` with the names and seconds that certificates report."""

    units: UnitGraph
    tight: UnitGraph | None  # the units with memory; None if memory is ignored
    unit_of_op: IntArray  # [N]
    unit_s: FloatArray  # [U] work
    own_s: FloatArray  # [U] without overlap: host transfers of its outputs and of inputs only it reads
    relay_s: FloatArray  # [K]
    input_s: FloatArray  # [I]
    link_s_per_byte: float
    floor_s: float  # lower bound from the host's links; 0 without overlap
    floor_reason: str
    tick_s: float
    op_names: tuple[str, ...]  # [N]

    def name_of(self, unit: int) -> str:
        """Returns the name of the first op of ``unit``."""
        return self.op_names[int(np.argmax(self.unit_of_op == unit))]


def trivial_bound(problem: RefinementProblem) -> Bound:
    """Returns the largest bound of total work, the longest unit and the host's links."""
    replicates = problem.units.replicates
    chips = problem.units.num_chips if replicates else min(problem.units.num_chips, problem.units.num_units)
    work_s = problem.unit_s + problem.own_s
    total_s = float(work_s.sum() + problem.input_s.sum())
    longest = int(np.argmax(work_s))
    bounds = [
        Bound(total_s / chips, f"{total_s * 1e6:.4g} us of work share {chips} chips"),
        Bound(problem.floor_s, problem.floor_reason),
    ]
    if not replicates:
        reason = f"op {problem.name_of(longest)!r} takes {work_s[longest] * 1e6:.4g} us"
        bounds.insert(1, Bound(float(work_s[longest]), reason))
    return max(bounds, key=lambda bound: bound.seconds)
