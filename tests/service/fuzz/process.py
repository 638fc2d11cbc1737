"""A service in a process of its own, with files beside it that no message may reach."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from tests.service.fuzz.messages import BOMB_FILE

SECRET: Final = "canary-7f3a"  # stands in every file that must not be read
FILES: Final = ("canary.toml", "canary", "canary.safetensors", "gpu-2")
FIFO: Final = "fifo.toml"
_ROOT: Final = Path(__file__).parents[3]
_END_S: Final = 20.0


@dataclass(frozen=True)
class FuzzedProcess:
    """The process, where it listens and the folder it works in."""

    process: subprocess.Popen[str]
    address: str
    folder: Path
    log: Path

    def resident_bytes(self) -> int:
        """Of the service alone: its workers are replaced as they grow."""
        return _resident_bytes(self.process.pid)

    def children_bytes(self) -> list[int]:
        """The resident memory of each of its workers and jobs."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        sizes = []
        for pid in [pid for task in tasks for pid in task.read_text("ascii").split()]:
            with suppress(OSError):  # it has just ended
                sizes.append(_resident_bytes(pid))
        return sizes

    def num_open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def was_reached(self) -> str:
        """What a message did to the files; empty where nothing."""
        if (self.folder / BOMB_FILE).exists():
            return "a pickle was loaded"
        try:
            os.close(os.open(self.folder / FIFO, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody has it open for reading
            return ""
        return "a file named by a message was opened"


@contextmanager
def fuzzed_process() -> Iterator[FuzzedProcess]:
    """A service that runs until the end of the context."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        folder.mkdir()
        text = (files("go_opt.env.targets") / "gpu-2.toml").read_text("utf-8")
        for file in FILES:
            (folder / file).write_text(text.replace('name = "gpu-2"', f'name = "{SECRET}"'), "utf-8")
        os.mkfifo(folder / FIFO)
        log = Path(name) / "log"
        with log.open("w", encoding="utf-8") as lines:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.service.fuzz.server", str(Path(name) / "data")],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)])},
                stderr=lines,
                text=True,
            )
        try:
            yield FuzzedProcess(process, _address(process, log), folder, log)
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            finally:
                process.kill()


def _resident_bytes(pid: int | str) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _address(process: subprocess.Popen[str], log: Path) -> str:
    while process.poll() is None:
        for line in log.read_text("utf-8").splitlines(keepends=True):
            if line.startswith("listening on ") and line.endswith("\n"):
                return line.removeprefix("listening on ").strip()
    raise RuntimeError(log.read_text("utf-8"))
