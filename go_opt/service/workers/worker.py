"""The service's handle to a worker process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from go_opt.common.processes import module_command, module_environment
from go_opt.errors import ServiceError

FRAME_S: Final = 10.0  # for a frame to arrive once it has begun
_NICE: Final = 10
_OOM_SCORE: Final = "500"


@dataclass(frozen=True)
class Frame:
    """A message between service and worker; the kinds, in the order of a call:

    ``ready``       worker: it has loaded everything and accepts requests
    ``optimize``    service: a request; ``call`` numbers it, ``policy``, ``deadline_s``, ``improvements``
    ``evaluate``    service: a request; ``call`` numbers it; likewise ``verify``, ``explain``
    ``improvement`` worker: the best answer so far
    ``stop``        service: end the call of this number
    ``answer``      worker: the answer; ``is_whole`` as of :class:`go_opt.service.workers.optimizer.Answer`
    ``refused``     worker: the call's status
    ``failed``      worker: a defect, as a traceback

    The last three end the call; ``retires`` is true if the worker accepts no further call.
    """

    kind: str
    body: bytes = b""
    values: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return (self.values or {}).get(name)


def send(connection: Connection, kind: str, body: bytes = b"", **values: Any) -> None:
    """Send a complete frame."""
    connection.send_bytes(json.dumps({"kind": kind, **values}).encode())
    connection.send_bytes(body)


def receive(connection: Connection) -> Frame:
    """Receives the next frame.

    Raises:
      EOFError, OSError: the other process has ended.
    """
    values = json.loads(connection.recv_bytes())
    return Frame(values.pop("kind"), connection.recv_bytes(), values)


class Worker:
    """A process of :mod:`go_opt.service.workers.optimizer_process`; used by one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                module_command("go_opt.service.workers.optimizer_process"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=module_environment(),
                start_new_session=True,  # Ctrl-C is for the service, which ends its workers
            )
        _put_behind_service(self._process.pid)
        self._connection = Connection(ours.detach())
        self.has_loaded = False  # as far as the service knows
        self.is_free = True  # accepts a call, now or once it is ready
        self.is_hung = False  # did not stop a search in time

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def is_ready(self, timeout_s: float = 0.0) -> bool:
        """Whether the worker has loaded everything; a call waits until then.

        Raises:
          ServiceError: the process has ended.
        """
        if not self.has_loaded:
            self.has_loaded = self.receive(timeout_s) is not None
        return self.has_loaded

    def send(self, kind: str, body: bytes = b"", **values: Any) -> None:
        """Send a frame; ServiceError if the process has ended."""
        try:
            send(self._connection, kind, body, **values)
        except OSError:
            raise self._ended() from None

    def receive(self, timeout_s: float) -> Frame | None:
        """The next frame, or None if none starts in time; an incomplete frame kills the process.

        Raises:
          ServiceError: the process ended.
        """
        frozen = threading.Timer(FRAME_S, self.end)
        try:
            if not self._connection.poll(timeout_s):
                return None
            frozen.start()
            return receive(self._connection)
        except (EOFError, OSError):
            raise self._ended() from None
        finally:
            frozen.cancel()

    def end(self) -> None:
        """Kill the process at once."""
        self.is_free = False
        self._process.kill()

    def close(self) -> None:
        """Kill the process and free its resources."""
        self.end()
        self._process.wait()
        self._connection.close()

    def _ended(self) -> ServiceError:
        self.end()
        status = self._process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
        return ServiceError(f"the process of this call ended {how}; it is started anew, try again.")


def _put_behind_service(pid: int) -> None:
    """Lowers the worker's CPU priority, and makes it an earlier target of the OOM killer."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(_OOM_SCORE, "ascii")
