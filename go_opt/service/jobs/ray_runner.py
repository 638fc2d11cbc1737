"""Runs each job on a Ray cluster: an actor starts the job process on a node that Ray chooses."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.longrunning import operations_pb2

from go_opt.errors import InvalidInputError
from go_opt.service.jobs.job import NewJob, OnProgress, last_message
from go_opt.service.jobs.job_process import COMMAND, JobProcess, LocalRunner

_METHODS_AT_ONCE: Final = 4  # of an actor, so that stop can run while next_message waits


class RayRunner(LocalRunner):
    """Starts an actor per job; the actor starts the same process as ``LocalRunner``.

    Jobs write their files to the data directory, so all nodes must see it under the same path, and
    have go-opt installed. An actor and its job process end with the service's process. The cluster is
    that of ``RAY_ADDRESS``, else one on this machine.

    Args:
      command: as of ``LocalRunner``.
      num_cpus: what Ray reserves for each job.

    Raises:
      InvalidInputError: Ray is not installed, or its cluster cannot be used.
    """

    def __init__(self, command: Sequence[str] = COMMAND, *, num_cpus: float = 1) -> None:
        super().__init__(tuple(command))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
        try:
            import ray
        except ImportError:
            raise InvalidInputError(
                "the Ray runner needs Ray; install it with: pip install 'go-opt[ray]'.", field="runner"
            ) from None
        self._ray: Any = ray
        try:
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as cause:
            reason = " ".join(str(cause).split()).rstrip(".")[:300]
            raise InvalidInputError(f"no Ray cluster can be used: {reason}.", field="runner") from None
        self._actor = self._ray.remote(num_cpus=num_cpus, max_restarts=0, max_concurrency=_METHODS_AT_ONCE)(
            _RayJob
        )

    def start(self, new: NewJob, folder: Path) -> _RayAttempt:
        return _RayAttempt(self._ray, self._actor.remote(self._command, new, folder))

    def close(self) -> None:
        self._ray.shutdown()


class _RayJob(JobProcess):
    """The actor, which owns the job process on its node."""

    def __init__(self, command: Sequence[str], new: NewJob, folder: Path) -> None:
        super().__init__(command, new, folder)
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._pass_on, name="messages", daemon=True).start()

    def next_message(self) -> bytes | None:
        """Waits for the next message of the process; None once the process has ended."""
        return self._messages.get()

    def _pass_on(self) -> None:
        for message in self.messages():
            self._messages.put(message)
        self._messages.put(None)


@dataclass(frozen=True, eq=False)
class _RayAttempt:
    """A job, seen from the service."""

    ray: Any
    actor: Any

    def wait(self, on_progress: OnProgress) -> operations_pb2.Operation | None:
        try:
            return last_message(iter(self._next_message, None), on_progress)
        except self.ray.exceptions.RayError:  # the actor, or its node, is lost
            return None
        finally:
            self.ray.kill(self.actor)

    def stop(self) -> None:
        self.actor.stop.remote()

    def kill(self) -> None:
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(self.actor)  # the process ends with it

    def _next_message(self) -> Any:
        return self.ray.get(self.actor.next_message.remote())
