"""Emulates a target's links between the processes of a pipeline: tensors arrive with the links' delay.

Each link carries one transfer at a time: a transfer starts when the previous one ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from go_opt.run.pipeline.layout import HOST

if TYPE_CHECKING:
    from go_opt.env.target import Target

LINKS: Final = "links.json"
_BYTES_OF_TIME: Final = 8


def write_links(target: Target, chips: Iterable[int], folder: Path) -> None:
    """Write seconds per byte and latencies of all links, and the routes between ``chips`` and the host."""
    topology = target.topology
    ends = sorted(chips)
    host_in, host_out = topology.num_links, topology.num_links + 1
    routes = {f"{a},{b}": topology.route(a, b) for a in ends for b in ends if a != b}
    routes |= {f"{HOST},{chip}": [host_in] for chip in ends} | {f"{chip},{HOST}": [host_out] for chip in ends}
    rates = [*topology.rate_bytes_per_s, target.host_in_bytes_per_s, target.host_out_bytes_per_s]
    facts = {
        "s_per_byte": [1 / rate for rate in rates],
        "latency_s": [*topology.latency_s.tolist(), 0.0, 0.0],
        "routes": routes,
    }
    (folder / LINKS).write_text(json.dumps(facts), "utf-8")
    (folder / f"{LINKS}.times").write_bytes(bytes(_BYTES_OF_TIME * len(rates)))


class Links:
    """Arrival times of transfers; without a file of links, transfers take no time."""

    def __init__(self, folder: Path) -> None:
        path = folder / LINKS
        self._facts = json.loads(path.read_text("utf-8")) if path.exists() else None
        self._times = folder / f"{LINKS}.times"

    def arrival_s(self, source: int, readers: Iterable[int], size_bytes: int, now_s: float) -> float:
        """When a tensor sent from ``source`` now reaches all its readers; each link carries it once."""
        if self._facts is None:
            return 0.0
        arrival_s, carried = now_s, dict[int, float]()
        with self._free_s() as free_s:
            for reader in readers:
                at_s = now_s
                for link in self._facts["routes"].get(f"{source},{reader}", ()):
                    if link not in carried:
                        start_s = max(at_s, free_s[link])
                        free_s[link] = start_s + size_bytes * self._facts["s_per_byte"][link]
                        carried[link] = free_s[link] + self._facts["latency_s"][link]
                    at_s = carried[link]
                arrival_s = max(arrival_s, at_s)
        return arrival_s

    @contextmanager
    def _free_s(self) -> Iterator[np.ndarray]:
        """[links] when each is free again; locked against other processes."""
        with self._times.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            free_s = np.frombuffer(file.read(), np.float64).copy()
            yield free_s
            os.pwrite(file.fileno(), free_s.tobytes(), 0)
