"""Time to load the graphs of the zoo: unpack, parse, validate.

Run: python tests/benchmarks/bench_zoo_load.py [NAME ...]

Asserts that each graph has the fingerprint the index gives. In a fresh process: what
importing the zoo and the wire format take before the first graph, and the first load of
the graph nearest to 1,000 ops. Then each graph: processor time, best of five, which on an
idle machine is what passes. Target: 50 ms at 1,000 ops.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from functools import partial

from measuring import best_s

from go_opt.env.zoo import ZooEntry, load_zoo, zoo_entries

FRESH_PROCESS = """
import time
started = time.perf_counter()
from go_opt.env.zoo import load_zoo, zoo_entries
entries = zoo_entries()
listed = time.perf_counter()
from go_opt.proto import graph_pb2
from go_opt.model.codecs.wire import graph_from_proto
imported = time.perf_counter()
name = min(entries, key=lambda entry: abs(entry.ops - 1000)).name
graph = load_zoo(name)
loaded = time.perf_counter()
print(
    f"fresh process: zoo imported and listed {(listed - started) * 1e3:.0f} ms, wire format "
    f"{(imported - listed) * 1e3:.0f} ms, {name} ({graph.num_ops} ops) {(loaded - imported) * 1e3:.1f} ms"
)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    subprocess.run([sys.executable, "-c", FRESH_PROCESS], check=True)
    print(f"{'graph':<32} {'ops':>6} {'ms':>8} {'ms per 1,000 ops':>17}")
    for entry in zoo_entries():
        if not names or entry.name in names:
            load_ms = best_load_s(entry) * 1e3
            print(f"{entry.name:<32} {entry.ops:6d} {load_ms:8.1f} {load_ms / entry.ops * 1e3:17.1f}")


def best_load_s(entry: ZooEntry) -> float:
    """Best of five; the fingerprint is no part of loading."""
    seconds, graph = best_s(partial(load_zoo, entry.name), 5, time.process_time)
    assert graph.fingerprint == entry.fingerprint, entry.name
    return seconds


if __name__ == "__main__":
    main()
