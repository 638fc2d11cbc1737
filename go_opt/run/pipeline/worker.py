"""A process that runs the stages of one chip in ONNX Runtime, on one thread.

:mod:`go_opt.run.pipeline.workers` starts ``python -m go_opt.run.pipeline.worker`` with a JSON object as
argument, and sends jobs to its standard input, which is a socket: a JSON object and the descriptor of
shared memory each. The process ends when its parent process ends.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from go_opt.common.units import visible
from go_opt.run.manifest import Stage, load_manifest
from go_opt.run.pipeline.layout import HOST, Layout, State, Unit
from go_opt.run.pipeline.links import Links
from go_opt.run.pipeline.memory import opened
from go_opt.run.pipeline.sessions import session, value_of
from go_opt.run.pipeline.wakeup import drain, notify

if TYPE_CHECKING:
    from onnxruntime import OrtValue

_JOBS: Final = 0  # descriptor of standard input
_MOST_BYTES: Final = 1 << 16  # of a job


class _UnitWork:
    """A unit: a stage with its model, and the tensors it waits for."""

    def __init__(self, layout: Layout, state: State, links: Links, folder: Path, number: int) -> None:
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
        waits = (self._state.waits_s(ring, self.next, now_s) for ring in self._inputs.values())
        return max(waits, default=0.0)

    def run(self) -> None:
        """Run the next inference."""
        start_s, processor_s = time.monotonic(), time.process_time()
        self._session.run_in_place(self._slots(self._inputs), self._slots(self._outputs))
        processor_s = time.process_time() - processor_s
        now_s = time.monotonic()
        self._state.seconds[self.unit.stage, self.next] = processor_s, now_s - start_s
        for ring in self._outputs.values():
            self._send(ring, now_s)
        self.next += self.unit.turns
        self._state.counters[self._number] += 1

    def _slots(self, rings: Mapping[str, int]) -> dict[str, OrtValue]:
        slots = {tensor: self._values[ring] for tensor, ring in rings.items()}
        return {tensor: values[self.next % len(values)] for tensor, values in slots.items()}

    def _send(self, ring: int, now_s: float) -> None:
        facts = self._layout.rings[ring]
        chips = [self._chip(reader) for reader in facts.readers]
        size = math.prod(facts.shape) * facts.dtype.itemsize
        arrival_s = self._links.arrival_s(self.unit.chip, chips, size, now_s)
        self._state.arrivals[ring, self.next % facts.slots] = arrival_s

    def _chip(self, stage: int) -> int:
        chips = (HOST,) if stage == HOST else self._layout.manifest.stages[stage].chips
        return chips[self.next % len(chips)]


def _work(given: Mapping[str, Any], memory: int) -> None:
    folder = Path(given["folder"])
    layout = Layout(load_manifest(folder), given["inferences"])
    state, links = State(layout, opened(memory)), Links(folder)
    works = [
        _UnitWork(layout, state, links, folder, number)
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
        with socket.socket(fileno=_JOBS) as jobs:
            while True:
                job, descriptors, _, _ = socket.recv_fds(jobs, _MOST_BYTES, 1)
                if not job:
                    return
                _work(given | json.loads(job), descriptors[0])
                os.close(descriptors[0])
    except Exception as error:  # the parent process turns this into an error message
        print(visible(f"{type(error).__name__}: {error}"), file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
