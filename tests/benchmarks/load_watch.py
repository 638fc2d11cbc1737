"""What is watched of a loaded service: its health, and the memory and processor time of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from go_opt.common.arrays import FloatArray

PROBES_PER_S = 20
LOOK_S = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ROLES = {"process_optimizer": "workers"}


class Watch:
    """Looks at a process and all below it, twice a second, in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu_s: dict[tuple[str, int], float] = {}
        self._first_cpu_s: dict[tuple[str, int], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._since_s = time.monotonic()
        self.times_s: list[float] = []
        self.rss_bytes: list[dict[str, int]] = []  # by role

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_s(self) -> dict[str, float]:
        """Processor time by role, that of processes that ended included."""
        total: dict[str, float] = defaultdict(float)
        for (role, pid), seconds in self._cpu_s.items():
            total[role] += seconds - self._first_cpu_s[role, pid]
        return dict(total)

    def series(self, role: str, from_s: float, to_s: float) -> tuple[FloatArray, FloatArray]:
        """Seconds and MB of all processes of a role."""
        times_s = np.array(self.times_s)
        megabytes = np.array([look.get(role, 0) for look in self.rss_bytes]) / 1e6
        looks = (from_s <= times_s) & (times_s <= to_s)
        return times_s[looks], megabytes[looks]

    def _run(self) -> None:
        while True:
            self._look()
            if self._ended.wait(LOOK_S):
                break

    def _look(self) -> None:
        is_first = not self.times_s
        resident: dict[str, int] = defaultdict(int)
        for pid in _below(self._pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text()
                role = next((role for name, role in _ROLES.items() if name in command), "front")
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                resident[role] += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
            except OSError:  # it has just ended
                continue
            seconds = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
            self._first_cpu_s.setdefault((role, pid), seconds if is_first else 0.0)
            self._cpu_s[role, pid] = seconds
        self.times_s.append(time.monotonic() - self._since_s)
        self.rss_bytes.append(dict(resident))


def _below(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _below(int(child))
    except OSError:
        return


@contextmanager
def probed(address: str) -> Iterator[list[float]]:
    """Asks for the health from a process of its own; gives the seconds it took once the block ends.

    A probe counts from when it was due, so one that is held up cannot hide those behind it.
    """
    took_s: list[float] = []
    process = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield took_s
        output, _ = process.communicate("stop\n", timeout=60)
        took_s += [float(line) for line in output.split()]
    finally:
        process.kill()
        process.wait()


def _probe(address: str) -> None:
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopping.set()), daemon=True).start()
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        due_s = time.monotonic()
        while not stopping.wait(max(due_s - time.monotonic(), 0.0)):
            answer = check(health_pb2.HealthCheckRequest(), timeout=10)
            took_s = time.monotonic() - due_s
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            print(took_s)
            due_s += 1 / PROBES_PER_S


if __name__ == "__main__":
    _probe(sys.argv[1])
