"""The layout of a pipeline's tensors in shared memory, with the writer and readers of each.

A tensor has a ring of slots; inference ``i`` is in slot ``i % slots``. Each unit has a counter of the
inferences it has done. A unit is a stage on one of its chips; the host feeds inputs and collects outputs.

Inference ``i`` is one of sequence ``i % sequences``, and begins when that sequence's last one has ended.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import FloatArray, LongArray
from go_opt.errors import ModelError
from go_opt.run.manifest import Manifest
from go_opt.run.pipeline.sessions import BFLOAT16

if TYPE_CHECKING:
    from go_opt.env.target import Target


HOST: Final = -1  # in place of a stage number
NOT_LOADED: Final = -1  # counter of a unit whose model is not loaded
_TYPES: Final = frozenset(  # that arrays support
    (
        "bool",
        BFLOAT16.name,
        *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)),
    )
) - {"float8"}
_ALIGNMENT_BYTES: Final = 64  # of a cache line


class Ring(NamedTuple):
    """The slots of a tensor."""

    tensor: str
    dtype: np.dtype
    shape: tuple[int, ...]
    writer: int  # stage
    readers: tuple[int, ...]  # stages
    slots: int
    offset: int
    slot_bytes: int


class Unit(NamedTuple):
    """A stage on one of its chips, which runs every inference of which it is the turn.

    Chips take turns in rounds: of one inference each, or of one for each sequence, if some chips have more
    sequences than others (design section 12).
    """

    stage: int
    chip: int
    turn: int
    turns: int  # chips of the stage
    round: int  # inferences

    def after(self, inference: int) -> int:
        """The inference that the unit runs after this one of its own."""
        following = inference + self.turns
        begun = inference - inference % self.round
        return following if following < begun + self.round else begun + self.round + self.turn

    def before(self, inference: int) -> int:
        """How many inferences the unit runs before this one of its own."""
        rounds, place = divmod(inference, self.round)
        return rounds * -((self.turn - self.round) // self.turns) + place // self.turns


@dataclass(frozen=True)
class Layout:
    """The layout, which all processes derive from the same manifest."""

    manifest: Manifest
    inferences: int

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The units of the stages in order, then the host as feeder and as collector."""
        kept = self.manifest.sequences or 0
        stages = (
            Unit(
                stage.stage, chip, turn, stage.replication,
                kept if kept % stage.replication else stage.replication,
            )
            for stage in self.manifest.stages
            for turn, chip in enumerate(stage.chips)
        )  # fmt: skip
        return (*stages, Unit(HOST, HOST, 0, 1, 1), Unit(HOST, HOST, 0, 1, 1))

    def unit_of(self, stage: int, inference: int) -> int:
        """Index of the unit that runs an inference of a stage."""
        first = self._first_unit[stage]
        unit = self.units[first]
        return first + inference % unit.round % unit.turns

    @cached_property
    def _first_unit(self) -> tuple[int, ...]:
        return tuple(accumulate((stage.replication for stage in self.manifest.stages), initial=0))

    @property
    def sequences(self) -> int:
        """Sequences in flight; without states, each inference is a sequence."""
        return self.manifest.sequences or self.inferences

    @property
    def feeder(self) -> int:
        """Index of the unit for the host feeding inputs."""
        return len(self.units) - 2

    @property
    def collector(self) -> int:
        """Index of the unit for the host collecting outputs."""
        return len(self.units) - 1

    @cached_property
    def chips(self) -> tuple[int, ...]:
        """The chips in ascending order; each is one process."""
        return tuple(sorted({unit.chip for unit in self.units if unit.chip != HOST}))

    @cached_property
    def rings(self) -> tuple[Ring, ...]:
        """A ring for each tensor that enters or leaves a stage."""
        readers: dict[str, list[int]] = {}
        writer = dict.fromkeys(self.manifest.inputs, HOST)
        for stage in self.manifest.stages:
            writer |= {row.tensor: stage.stage for row in stage.outputs}
            for given in stage.inputs:
                readers.setdefault(given.tensor, []).append(stage.stage)
        for tensor in self.manifest.collected:
            readers.setdefault(tensor, []).append(HOST)
        rings, offset = [], self.tables[-1][-1]
        for tensor, stages in readers.items():
            dtype, shape = self._type(tensor)
            size = _aligned(max(math.prod(shape) * dtype.itemsize, 1))
            slots = self._slots(writer[tensor], stages)
            rings.append(Ring(tensor, dtype, shape, writer[tensor], tuple(stages), slots, offset, size))
            offset += size * slots
        return tuple(rings)

    @property
    def size_bytes(self) -> int:
        """Size of the whole shared memory."""
        last = self.rings[-1]
        return last.offset + last.slots * last.slot_bytes

    @cached_property
    def tables(self) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        """Type, shape and offset of the counters, the seconds, the memory, and the arrival times of slots."""
        rows, offset = [], 0
        stages, tensors = len(self.manifest.stages), len(self.manifest.tensors)
        most_slots = 2 + sum(stage.replication for stage in self.manifest.stages)
        for dtype, shape in (
            ("int64", (len(self.units),)),
            ("float64", (stages, self.inferences, 2)),
            ("int64", (len(self.units),)),
            ("float64", (tensors, most_slots)),
        ):
            rows.append((dtype, shape, offset))
            offset = _aligned(offset + 8 * math.prod(shape))
        return (*rows, ("uint8", (0,), offset))

    @cached_property
    def _depth(self) -> tuple[int, ...]:
        """Of each stage: the most inferences in flight up to its end."""
        depth: list[int] = []
        for stage in self.manifest.stages:
            before = (depth[row.source] for row in stage.inputs if row.source is not None)
            depth.append(max(before, default=0) + stage.replication)
        return tuple(depth)

    def _slots(self, writer: int, readers: Iterable[int]) -> int:
        """Enough slots to keep the longest path from the writer to a reader busy, plus one to write to."""
        start = 0 if writer == HOST else self._depth[writer]
        return max(max(self._depth) + 1 if r == HOST else self._depth[r] for r in readers) - start + 1

    def _type(self, tensor: str) -> tuple[np.dtype, tuple[int, ...]]:
        fact = self.manifest.tensor(tensor)
        if fact.dtype not in _TYPES:
            raise ModelError(
                f"tensor {tensor!r} is of type {fact.dtype}, which cannot go from one process to another."
            )
        return np.dtype(fact.dtype), fact.shape


class State:
    """The shared memory as arrays."""

    def __init__(self, layout: Layout, memory: memoryview) -> None:
        counters, seconds, memory_bytes, arrivals = (
            np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
            for dtype, shape, offset in layout.tables[:-1]
        )
        self.counters: LongArray = counters  # [U] inferences done
        self.seconds: FloatArray = seconds  # [S, I, 2] of the processor and by the clock
        self.memory_bytes: LongArray = memory_bytes  # [U] of the unit's process at its last inference
        self.arrivals: FloatArray = arrivals  # [K, slots] on the monotonic clock
        self._layout = layout
        self.slots = [  # [K] arrays of each tensor
            [
                np.frombuffer(
                    memory, ring.dtype, math.prod(ring.shape), ring.offset + slot * ring.slot_bytes
                ).reshape(ring.shape)
                for slot in range(ring.slots)
            ]
            for ring in layout.rings
        ]

    def slot(self, ring: int, inference: int) -> NDArray:
        """The array of a tensor for one inference."""
        return self.slots[ring][inference % len(self.slots[ring])]

    def is_done(self, stage: int, inference: int, host_unit: int) -> bool:
        """Whether a stage, or the host as unit ``host_unit``, has done an inference."""
        if inference < 0:
            return True
        if stage == HOST:
            return bool(self.counters[host_unit] > inference)
        unit = self._layout.unit_of(stage, inference)
        return bool(self.counters[unit] > self._layout.units[unit].before(inference))

    def waits_s(self, ring: int, inference: int, now_s: float) -> float:
        """Seconds until a reader may read; infinite until the tensor is written."""
        facts = self._layout.rings[ring]
        if not self.is_done(facts.writer, inference, self._layout.feeder):
            return math.inf
        return max(float(self.arrivals[ring, inference % facts.slots]) - now_s, 0.0)

    def is_free(self, ring: int, inference: int) -> bool:
        """Whether all readers have finished with the previous tensor in the slot."""
        facts = self._layout.rings[ring]
        before = inference - facts.slots
        return all(self.is_done(reader, before, self._layout.collector) for reader in facts.readers)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


LINKS: Final = "links.json"
_BYTES_OF_TIME: Final = 8


def write_links(target: Target, chips: Iterable[int], folder: Path) -> None:
    """Write seconds per byte and latencies of all links, and the routes between ``chips`` and the host."""
    topology = target.topology
    ends = sorted(chips)
    host_in, host_out = topology.num_links, topology.num_links + 1
    routes = {f"{a},{b}": topology.route(a, b) for a in ends for b in ends if a != b}
    routes |= {f"{HOST},{chip}": [host_in] for chip in ends} | {f"{chip},{HOST}": [host_out] for chip in ends}
    rates = [*topology.rate_bytes_per_s, target.host_in_bytes_per_s, target.host_out_bytes_per_s]
    facts = {
        "s_per_byte": [1 / rate for rate in rates],
        "latency_s": [*topology.latency_s.tolist(), 0.0, 0.0],
        "routes": routes,
    }
    (folder / LINKS).write_text(json.dumps(facts), "utf-8")
    (folder / f"{LINKS}.times").write_bytes(bytes(_BYTES_OF_TIME * len(rates)))


class Links:
    """Arrival times of transfers; without a file of links, transfers take no time."""

    def __init__(self, folder: Path) -> None:
        path = folder / LINKS
        self._facts = json.loads(path.read_text("utf-8")) if path.exists() else None
        self._times = folder / f"{LINKS}.times"

    def arrival_s(self, source: int, readers: Iterable[int], size_bytes: int, now_s: float) -> float:
        """When a tensor sent from ``source`` now reaches all its readers; each link carries it once."""
        if self._facts is None:
            return 0.0
        arrival_s, carried = now_s, dict[int, float]()
        with self._free_s() as free_s:
            for reader in readers:
                at_s = now_s
                for link in self._facts["routes"].get(f"{source},{reader}", ()):
                    if link not in carried:
                        start_s = max(at_s, free_s[link])
                        free_s[link] = start_s + size_bytes * self._facts["s_per_byte"][link]
                        carried[link] = free_s[link] + self._facts["latency_s"][link]
                    at_s = carried[link]
                arrival_s = max(arrival_s, at_s)
        return arrival_s

    @contextmanager
    def _free_s(self) -> Iterator[np.ndarray]:
        """[links] when each is free again; locked against other processes."""
        with self._times.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            free_s = np.frombuffer(file.read(), np.float64).copy()
            yield free_s
            os.pwrite(file.fileno(), free_s.tobytes(), 0)
