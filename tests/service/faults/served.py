"""``go-opt serve`` in a process of its own, to be killed, filled up and looked into."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from go_opt.service.client.client import Client
from go_opt.service.client.operation import Operation
from go_opt.service.transport.retry import Retry
from tests.service.jobs.conftest import eventually

# Of a service of which only the jobs are looked at: processes that search would load kernels for nothing.
NO_WORKERS: Final = {"GO_OPT_TEST_NO_WORKERS": "1"}
ROOT: Final = Path(__file__).parents[3]
HERE: Final = Path(__file__).parent
FAKE_JOB: Final = ROOT / "tests/service/jobs/fake_job.py"
START_S: Final = 120.0  # far more than a service needs on a busy machine
PATIENCE_S: Final = 400.0  # a process that trains takes seconds, and minutes on a busy machine
_MARK: Final = "GO_OPT_TEST_SERVICE"  # in the environment of a service, which its processes inherit


class Served:
    """A service and all processes it starts.

    Args:
      data: its data directory; it takes no jobs without one.
      job: the program that stands in for a job's process.
      options: of ``go-opt serve``.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        data: Path | None = None,
        job: Path = FAKE_JOB,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.mark = secrets.token_hex(8)
        self._log = folder / f"log-{self.mark}.txt"
        self.data = data
        on_data = () if data is None else ("--data-dir", str(data))
        command = (str(HERE / "serve.py"), str(job), "serve", "--address", "127.0.0.1:0", "--workers", "1")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *command, "--metrics", "127.0.0.1:0", *on_data, *options],
                cwd=folder,
                stderr=log,
                stdout=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), _MARK: self.mark, **(env or {})},
            )
        self.address, self._metrics = "", ""

    def wait_until_it_listens(self) -> None:
        """Raises where it ends before it does."""

        def is_decided() -> bool:
            return "listening on " in self.log() or self.process.poll() is not None

        eventually(is_decided, START_S)
        assert self.process.poll() is None, self.log()
        eventually(lambda: "metrics on " in self.log())
        self.address, self._metrics = self._said("listening on"), self._said("metrics on").rstrip(".")

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text("utf-8", "replace")

    def client(self, **options: Any) -> Client:
        """A client that does not try again."""
        return Client(self.address, **{"retry": Retry(tries=1), **options})

    def reading(self, name: str, **labels: str) -> float:
        """A metric, the sum of all its labels that are not given."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        found = [
            float(line.rpartition(" ")[2])
            for line in lines
            if re.match(rf"go_opt_{name}[ {{]", line)
            and all(f'{key}="{value}"' in line for key, value in labels.items())
        ]
        return sum(found)

    def processes(self, words: str = "") -> list[int]:
        """Those that live of the service's, itself among them; what compiles kernels goes on without it."""
        found = _marked(self.mark).items()
        return [pid for pid, command in found if words in command and "compile_kernels" not in command]

    def _said(self, words: str) -> str:
        (place,) = re.findall(rf"{words} (\S+)", self.log())
        return str(place)

    def kill(self) -> None:
        """As a power cut would, but for the machine; all its processes end by themselves."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        eventually(lambda: not self.processes(), START_S)

    def ends_within_s(self) -> float:
        """How long it takes to end after SIGTERM."""
        start_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log()
        return time.monotonic() - start_s


def _marked(mark: str) -> dict[int, str]:
    """Command lines of the processes with the mark."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if f"{_MARK}={mark}".encode() in environment.split(b"\0"):
            found[int(folder.name)] = command.replace(b"\0", b" ").decode("utf-8", "replace")
    return found


def folder_of(data: Path, job: Operation) -> Path:
    """Where the job leaves its files."""
    return data / "jobs" / job.name.removeprefix("operations/")


@contextmanager
def serving(folder: Path, *options: str, **more: Any) -> Iterator[Served]:
    """A service for the block; nothing of it is left after that."""
    served = Served(folder, *options, **more)
    try:
        served.wait_until_it_listens()
        yield served
    finally:
        served.kill()
