"""The processes of a pipeline, and what they share: memory, and pipes that wake them."""

from __future__ import annotations

import json
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from go_opt.common.units import format_bytes
from go_opt.errors import EnvironmentFailedError
from go_opt.run.pipeline.layout import HOST
from go_opt.run.processes import Processes

_MOST_BYTES: Final = 1 << 16  # of wakeups that are discarded at once


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
            "go_opt.run.pipeline.worker",
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
