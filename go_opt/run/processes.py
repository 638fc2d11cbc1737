"""The processes of a run: started by name, watched, and always ended."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from go_opt.common.processes import module_command, module_environment
from go_opt.errors import EnvironmentFailedError

_MOST_OUTPUT: Final = 4000  # bytes kept of a process's stderr


class Processes:
    """Processes by name. Each must end when its standard input closes, as it does when this process ends."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._said: dict[str, bytes] = {}
        self._poll = select.poll()

    def start(
        self,
        name: str,
        module: str,
        argument: str,
        *,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run a module; an error is one of the operating system."""
        process = subprocess.Popen(
            module_command(module, argument),
            bufsize=0,
            pass_fds=pass_fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # which closes when it ends
            start_new_session=True,  # Ctrl-C in a terminal reaches only this process
            env={**module_environment(), **(environment or {})},
        )
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        self._started.append(process)
        self.running[name], self._said[name] = process, b""
        self.watch(process.stderr.fileno())

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of all that were started, in that order."""
        return tuple(process.pid for process in self._started)

    def watch(self, descriptor: int) -> None:
        """Let :meth:`wait` end when this can be read."""
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until something can be read, a process has ended, or the timeout has passed.

        Raises:
          EnvironmentFailedError: a process failed; the message says which, and its last words.
        """
        events = self._poll.poll(None if math.isinf(timeout_s) else 1e3 * timeout_s)
        seen = {descriptor for descriptor, _ in events}
        for name, process in list(self.running.items()):
            if process.stderr is not None and process.stderr.fileno() in seen:
                self._hear(name, process, process.stderr.fileno())

    def _hear(self, name: str, process: subprocess.Popen[bytes], stderr: int) -> None:
        text = os.read(stderr, _MOST_OUTPUT)
        self._said[name] = (self._said[name] + text)[-_MOST_OUTPUT:]
        if text:
            return
        self._poll.unregister(stderr)
        del self.running[name]
        code = process.wait()
        if code < 0:
            by = signal.Signals(-code).name
            raise EnvironmentFailedError(f"{name} (process {process.pid}) was ended by {by}.")
        if code > 0:
            lines = self._said[name].decode("utf-8", "replace").strip().splitlines() or ["it gave no reason"]
            raise EnvironmentFailedError(f"{name} failed: {lines[-1].rstrip('.')}.")

    def end(self) -> None:
        """End all processes, which own nothing that others need."""
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait()
            for pipe in (process.stdin, process.stderr):
                assert pipe is not None
                pipe.close()
