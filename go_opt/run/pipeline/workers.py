"""Starts and watches the processes of a pipeline, and always ends them."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from go_opt.common.processes import module_command, module_environment
from go_opt.errors import EnvironmentFailedError
from go_opt.run.pipeline.layout import HOST
from go_opt.run.pipeline.memory import Wakeup, drain, notify

_MOST_OUTPUT: Final = 4000  # bytes kept of a process's stderr


class Workers:
    """The running processes of a pipeline, by chip."""

    def __init__(self, wakeups: Mapping[int, Wakeup]) -> None:
        self._wakeups = wakeups
        self._processes: dict[int, subprocess.Popen] = {}
        self._jobs: dict[int, socket.socket] = {}
        self._said: dict[int, bytes] = {}
        self._poll = select.poll()
        self._poll.register(wakeups[HOST].read_fd, select.POLLIN)

    def add(self, chip: int, process: subprocess.Popen, jobs: socket.socket) -> None:
        """Watch a process, which takes ``jobs``; its stderr closes when it ends."""
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        self._processes[chip], self._jobs[chip] = process, jobs
        self._said[chip] = b""
        self._poll.register(process.stderr, select.POLLIN)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of all processes, in the order of chips."""
        return tuple(process.pid for process in self._processes.values())

    def give(self, chips: Sequence[int], folder: Path, inferences: int, memory: int) -> None:
        """Have the processes of ``chips`` run the stages in a folder, as a descriptor's memory lays out."""
        job = json.dumps({"folder": str(folder), "inferences": inferences}).encode()
        for chip in chips:
            with suppress(OSError):  # of a process that has ended, about which `wait` says more
                socket.send_fds(self._jobs[chip], [job], [memory])

    def wake(self) -> None:
        """Wake all processes."""
        for chip in self._processes:
            notify(self._wakeups[chip].write_fd)

    def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until a process has woken the host, or the timeout has passed.

        Raises:
          EnvironmentFailedError: a process ended early; the message says which, and why.
        """
        seen = {
            descriptor
            for descriptor, _ in self._poll.poll(None if math.isinf(timeout_s) else 1e3 * timeout_s)
        }
        for chip, process in self._processes.items():
            if process.stderr is not None and process.stderr.fileno() in seen:
                self._hear(chip, process)
        drain(self._wakeups[HOST].read_fd)

    def end(self) -> None:
        """End all processes, which own nothing that others need."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
        for jobs in self._jobs.values():
            jobs.close()

    def _hear(self, chip: int, process: subprocess.Popen) -> None:
        assert process.stderr is not None
        text = os.read(process.stderr.fileno(), _MOST_OUTPUT)
        self._said[chip] = (self._said[chip] + text)[-_MOST_OUTPUT:]
        if text:
            return
        self._poll.unregister(process.stderr)
        code = process.wait()
        if code < 0:
            raise EnvironmentFailedError(
                f"the worker of chip {chip} (process {process.pid}) was ended by "
                f"{signal.Signals(-code).name}."
            )
        if code > 0:
            lines = self._said[chip].decode("utf-8", "replace").strip().splitlines() or ["it gave no reason"]
            raise EnvironmentFailedError(f"the worker of chip {chip} failed: {lines[-1].rstrip('.')}.")


@contextmanager
def started(chips: Sequence[int]) -> Iterator[Workers]:
    """Run a process for each chip, and end all of them afterwards.

    Raises:
      EnvironmentFailedError: a process cannot be started.
    """
    with ExitStack() as stack:
        try:
            wakeups = {}
            for chip in (HOST, *chips):
                wakeups[chip] = Wakeup.create()
                stack.callback(wakeups[chip].close)
            workers = Workers(wakeups)
            stack.callback(workers.end)
            write_fds = {to: wakeup.write_fd for to, wakeup in wakeups.items()}
            for chip in chips:
                given = {"chip": chip, "wakeup": wakeups[chip].read_fd, "write_fds": write_fds}
                ours, theirs = socket.socketpair()
                with theirs:
                    process = _process(
                        json.dumps(given), theirs, (wakeups[chip].read_fd, *write_fds.values())
                    )
                workers.add(chip, process, ours)
        except OSError as error:
            raise EnvironmentFailedError(
                f"{len(chips)} workers cannot be started: {error.strerror or error}."
            ) from None
        yield workers


def _process(argument: str, jobs: socket.socket, passed: tuple[int, ...]) -> subprocess.Popen:
    return subprocess.Popen(
        module_command("go_opt.run.pipeline.worker", argument),
        pass_fds=passed,
        stdin=jobs.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in a terminal reaches only this process
        env=module_environment(),
    )
