"""A process that runs the stages of one chip in ONNX Runtime, on one thread.

:mod:`go_opt.run.pipeline.workers` starts ``python -m go_opt.run.pipeline.worker`` with a JSON object as
argument, and writes jobs to its standard input: a line of JSON each. The process ends when its parent process
ends.
"""

from __future__ import annotations

import json
import math
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from numpy.typing import NDArray

from go_opt.common.units import visible
from go_opt.run.manifest import Stage, load_manifest
from go_opt.run.pipeline.layout import HOST, Layout, Links, State, Unit
from go_opt.run.pipeline.sessions import HeldState, first_values, session, value_of
from go_opt.run.pipeline.workers import drain, notify, opened, own_bytes

if TYPE_CHECKING:
    from onnxruntime import OrtValue

_JOBS: Final = 0  # descriptor of standard input


class _Held(NamedTuple):
    """What all units of a process share."""

    states: dict[str, HeldState]  # by name
    before_bytes: int  # of memory, before a model is loaded


class _UnitWork:
    """A unit: a stage with its model, the tensors it waits for, and the states that it touches."""

    def __init__(
        self,
        layout: Layout,
        state: State,
        links: Links,
        folder: Path,
        number: int,
        held: _Held,
    ) -> None:
        self.unit: Unit = layout.units[number]
        self._number, self._state, self._links = number, state, links
        self._layout = layout
        stage: Stage = layout.manifest.stages[self.unit.stage]
        self._session = session(folder / stage.file)
        ring_of = {ring.tensor: i for i, ring in enumerate(layout.rings)}
        self._inputs = {row.tensor: ring_of[row.tensor] for row in stage.inputs}
        self._outputs = {row.tensor: ring_of[row.tensor] for row in stage.outputs}
        used = {*self._inputs.values(), *self._outputs.values()}
        self._values = {ring: [value_of(slot) for slot in state.slots[ring]] for ring in used}
        self._held, self._before_bytes = held.states, held.before_bytes
        states = [one for one in layout.manifest.states if self.unit.stage in one.stages]
        first = first_values(layout.manifest, states, folder / stage.file)
        self._held.update(
            (one.read, HeldState(layout.manifest, one, first[one.read]))
            for one in states
            if one.read in first and one.read not in self._held
        )
        self._read = [one.read for one in states if self.unit.stage in one.readers]
        self._written = [one for one in states if one.writer == self.unit.stage]
        self.next = self.unit.turn
        state.counters[number] = 0

    @property
    def neighbours(self) -> set[int]:
        """Stages that wait for this one: writers of its inputs and readers of its outputs."""
        rings = [self._layout.rings[i] for i in (*self._inputs.values(), *self._outputs.values())]
        return {stage for ring in rings for stage in (ring.writer, *ring.readers)}

    def waits_s(self, now_s: float) -> float:
        """Seconds until the next inference may run; infinite while it depends on another process."""
        if self.next >= self._layout.inferences:
            return math.inf
        if not all(self._state.is_free(ring, self.next) for ring in self._outputs.values()):
            return math.inf
        if self._state.counters[self._layout.feeder] <= self.next:  # of a stage that reads states only
            return math.inf
        waits = (self._state.waits_s(ring, self.next, now_s) for ring in self._inputs.values())
        return max(waits, default=0.0)

    def run(self) -> None:
        """Run the next inference."""
        inputs, outputs = self._slots(self._inputs), self._slots(self._outputs)
        inputs |= {name: self._held[name].before(self.next) for name in self._read}
        room = {one.next: self._held[one.read].room() for one in self._written if one.next not in outputs}
        outputs |= {name: buffer.value for name, buffer in room.items()}
        start_s, processor_s = time.monotonic(), time.process_time()
        self._session.run_in_place(inputs, outputs)
        processor_s = time.process_time() - processor_s
        now_s = time.monotonic()
        self._state.seconds[self.unit.stage, self.next] = processor_s, now_s - start_s
        for one in self._written:
            array = room[one.next].array if one.next in room else self._slot_of(one.next)
            self._held[one.read].after(self.next, array, room.get(one.next))
        for ring in self._outputs.values():
            self._send(ring, now_s)
        self.next = self.unit.after(self.next)
        if self.next >= self._layout.inferences:
            self._state.memory_bytes[self._number] = own_bytes() - self._before_bytes
        self._state.counters[self._number] += 1

    def _slots(self, rings: Mapping[str, int]) -> dict[str, OrtValue]:
        slots = {tensor: self._values[ring] for tensor, ring in rings.items()}
        return {tensor: values[self.next % len(values)] for tensor, values in slots.items()}

    def _slot_of(self, tensor: str) -> NDArray:
        return self._state.slot(self._outputs[tensor], self.next)

    def _send(self, ring: int, now_s: float) -> None:
        facts = self._layout.rings[ring]
        units, layout = self._layout.units, self._layout
        chips = [HOST if to == HOST else units[layout.unit_of(to, self.next)].chip for to in facts.readers]
        size = math.prod(facts.shape) * facts.dtype.itemsize
        arrival_s = self._links.arrival_s(self.unit.chip, chips, size, now_s)
        self._state.arrivals[ring, self.next % facts.slots] = arrival_s


def _work(given: Mapping[str, Any]) -> None:
    folder = Path(given["folder"])
    layout = Layout(load_manifest(folder), given["inferences"])
    state, links = State(layout, opened(given["memory"])), Links(folder)
    import onnxruntime  # noqa: F401, which takes memory itself

    held = _Held({}, own_bytes())
    works = [
        _UnitWork(layout, state, links, folder, number, held)
        for number, unit in enumerate(layout.units)
        if unit.chip == given["chip"]
    ]
    works.reverse()  # stages nearest to the output first
    write_fds = {int(chip): wakeup for chip, wakeup in given["write_fds"].items()}
    wakes = {work.unit.stage: _wakes(layout, work.neighbours, write_fds) for work in works}
    poll = select.poll()
    poll.register(given["wakeup"], select.POLLIN)
    poll.register(_JOBS, 0)  # only that the process at the other end has ended
    notify(write_fds[HOST])
    while any(work.next < layout.inferences for work in works):
        now_s = time.monotonic()
        waits = [work.waits_s(now_s) for work in works]
        ready = next((work for work, wait_s in zip(works, waits, strict=True) if wait_s <= 0), None)
        if ready is None:
            wait_s = min(waits)
            events = poll.poll(None if math.isinf(wait_s) else 1e3 * wait_s)
            if any(descriptor == _JOBS for descriptor, _ in events):
                return
            drain(given["wakeup"])
            continue
        ready.run()
        for wakeup in wakes[ready.unit.stage]:
            notify(wakeup)


def _wakes(layout: Layout, stages: set[int], write_fds: Mapping[int, int]) -> list[int]:
    chips = {chip for s in stages if s != HOST for chip in layout.manifest.stages[s].chips}
    return [write_fds[chip] for chip in (*sorted(chips), HOST)]


def main() -> None:
    given = json.loads(sys.argv[1])
    try:
        for job in sys.stdin:
            _work(given | json.loads(job))
    except Exception as error:  # the parent process turns this into an error message
        print(visible(f"{type(error).__name__}: {error}"), file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
