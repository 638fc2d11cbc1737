"""The processes of a pipeline, seen from both sides, and what they share: memory, and pipes that wake them.

A process runs the stages of one chip in ONNX Runtime, on one thread. It is this module with a JSON object as
argument. Jobs come through its standard input: a line of JSON each. It ends when its parent process ends.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from go_opt.common.units import format_bytes, visible
from go_opt.errors import EnvironmentFailedError
from go_opt.run.manifest import Stage, load_manifest
from go_opt.run.pipeline.layout import HOST, Layout, Links, State, Unit
from go_opt.run.pipeline.sessions import HeldState, first_values, session, value_of
from go_opt.run.processes import Processes

if TYPE_CHECKING:
    from onnxruntime import OrtValue


_MOST_BYTES: Final = 1 << 16  # of wakeups that are discarded at once
_JOBS: Final = 0  # descriptor of a process's standard input


class Wakeup(NamedTuple):
    """The two ends of a pipe that never blocks."""

    read_fd: int
    write_fd: int


class Workers(Processes):
    """The running processes of a pipeline, one for each chip.

    Args:
      memory: descriptor of the memory that they share.
      wakeups: of each chip and of the host.
    """

    def __init__(self, memory: int, wakeups: Mapping[int, Wakeup]) -> None:
        super().__init__()
        self._memory, self._wakeups = memory, wakeups
        self.watch(wakeups[HOST].read_fd)

    def add(self, chip: int) -> None:
        """Start the process of a chip."""
        write_fds = {to: wakeup.write_fd for to, wakeup in self._wakeups.items()}
        wakeup = self._wakeups[chip].read_fd
        given = {"chip": chip, "wakeup": wakeup, "write_fds": write_fds, "memory": self._memory}
        self.start(
            _name(chip),
            "go_opt.run.pipeline.workers",
            json.dumps(given),
            pass_fds=(self._memory, wakeup, *write_fds.values()),
        )

    def give(self, chips: Sequence[int], folder: Path, inferences: int) -> None:
        """Have the processes of ``chips`` run the stages in a folder in the memory that they share."""
        job = json.dumps({"folder": str(folder), "inferences": inferences}).encode() + b"\n"
        for chip in chips:
            with suppress(OSError, KeyError):  # of a process that has ended, about which `wait` says more
                os.write(self.running[_name(chip)].stdin.fileno(), job)  # type: ignore[union-attr]

    def shared(self, size_bytes: int) -> memoryview:
        """The memory that all processes share, filled with zeros.

        Raises:
          EnvironmentFailedError: there is not enough memory.
        """
        try:
            for size in (0, size_bytes):
                os.ftruncate(self._memory, size)
            if hasattr(os, "posix_fallocate"):
                # Without this, a write to a page that cannot be allocated would kill the process.
                os.posix_fallocate(self._memory, 0, size_bytes)
            return opened(self._memory)
        except OSError as error:
            raise EnvironmentFailedError(
                f"the tensors between the stages need {format_bytes(size_bytes)} of shared memory, which "
                f"cannot be had: {error.strerror or error}."
            ) from None

    def wake(self) -> None:
        """Wake all processes."""
        for chip, wakeup in self._wakeups.items():
            if chip != HOST:
                notify(wakeup.write_fd)

    def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until a process has woken the host, or as :meth:`Processes.wait`."""
        super().wait(timeout_s)
        drain(self._wakeups[HOST].read_fd)


def _name(chip: int) -> str:
    return f"the worker of chip {chip}"


@contextmanager
def started(chips: Sequence[int]) -> Iterator[Workers]:
    """Run a process for each chip, and end all of them afterwards.

    Raises:
      EnvironmentFailedError: a process cannot be started.
    """
    with ExitStack() as stack:
        try:
            memory = _memory()
            stack.callback(os.close, memory)  # mappings live on until the last array that uses them
            wakeups = {}
            for chip in (HOST, *chips):
                wakeups[chip] = Wakeup(*os.pipe())
                for end in wakeups[chip]:
                    os.set_blocking(end, False)
                    stack.callback(os.close, end)
            workers = Workers(memory, wakeups)
            stack.callback(workers.end)
            for chip in chips:
                workers.add(chip)
        except OSError as error:
            raise EnvironmentFailedError(
                f"{len(chips)} workers cannot be started: {error.strerror or error}."
            ) from None
        yield workers


def _memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("go-opt")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def opened(descriptor: int) -> memoryview:
    """The memory behind an inherited descriptor."""
    return memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))


def own_bytes() -> int:
    """Bytes of this process that it shares with no file or other process; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)
    except OSError:
        return 0


def notify(write_fd: int) -> None:
    """Wake the process at the other end; does nothing if the pipe is full or has no reader."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(write_fd, b"\0")


def drain(read_fd: int) -> None:
    """Discard all wakeups so far."""
    with suppress(BlockingIOError):
        os.read(read_fd, _MOST_BYTES)


class _UnitWork:
    """A unit: a stage with its model, the tensors it waits for, and the states that it touches."""

    def __init__(
        self,
        layout: Layout,
        state: State,
        links: Links,
        folder: Path,
        number: int,
        held: dict[str, HeldState],
        before_bytes: int,
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
        self._held, self._before_bytes = held, before_bytes
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
    def neighbours(self) -> list[int]:
        """Chips that wait for this one, which write its inputs and read its outputs, and the host."""
        rings = [self._layout.rings[i] for i in (*self._inputs.values(), *self._outputs.values())]
        stages = {stage for ring in rings for stage in (ring.writer, *ring.readers)} - {HOST}
        chips = {chip for stage in stages for chip in self._layout.manifest.stages[stage].chips}
        return [*sorted(chips), HOST]

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
            own = room.get(one.next)
            array = own.array if own else self._state.slot(self._outputs[one.next], self.next)
            self._held[one.read].after(self.next, array, own)
        for ring in self._outputs.values():
            self._send(ring, now_s)
        self.next = self.unit.after(self.next)
        if self.next >= self._layout.inferences:
            self._state.memory_bytes[self._number] = own_bytes() - self._before_bytes
        self._state.counters[self._number] += 1

    def _slots(self, rings: Mapping[str, int]) -> dict[str, OrtValue]:
        slots = {tensor: self._values[ring] for tensor, ring in rings.items()}
        return {tensor: values[self.next % len(values)] for tensor, values in slots.items()}

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

    held, before_bytes = dict[str, HeldState](), own_bytes()  # states of all units by name; before models
    works = [
        _UnitWork(layout, state, links, folder, number, held, before_bytes)
        for number, unit in enumerate(layout.units)
        if unit.chip == given["chip"]
    ]
    works.reverse()  # stages nearest to the output first
    write_fds = {int(chip): wakeup for chip, wakeup in given["write_fds"].items()}
    wakes = {work.unit.stage: [write_fds[chip] for chip in work.neighbours] for work in works}
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
