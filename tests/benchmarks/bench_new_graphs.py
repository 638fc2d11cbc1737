"""Memory of a service that is asked about new graphs only.

Run: PYTHONPATH=. python tests/benchmarks/bench_new_graphs.py [--seconds S]

4 clients ask ``go-opt serve`` on the loopback for plans of generated graphs of 100 to 600
ops, none of them twice, with 2 s each. Prints how much the service and its workers hold in the
mean of the first third of the time and of the last, and their growth.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from bench_service_load import service
from load_watch import Watch

import go_opt
from go_opt.agents.generator import generate_graph

CLIENTS = 4
TOKEN = "0123456789abcdef"
WARM_S = 20.0
BUDGET_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=180.0)
    seconds = parser.parse_args().seconds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = folder / "tokens"
        tokens.write_text(f"load {TOKEN}\n")
        tokens.chmod(0o600)
        pid, address, _ = stack.enter_context(service(folder, tokens))
        watch = stack.enter_context(Watch(pid))
        numbers, end_s = itertools.count(), time.monotonic() + WARM_S + seconds

        def ask() -> None:
            with go_opt.Client(address, credentials=go_opt.Credentials(token=TOKEN)) as client:
                while time.monotonic() < end_s:
                    number = next(numbers)
                    client.optimize(
                        generate_graph(number, num_ops=100 + number * 97 % 500), budget_s=BUDGET_S
                    )

        threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"{next(numbers)} graphs in {WARM_S + seconds:g} s; MB in the first and the last third:")
    for role in ("front", "workers"):
        first = watch.series(role, WARM_S, WARM_S + seconds / 3)[1].mean()
        last = watch.series(role, WARM_S + 2 * seconds / 3, WARM_S + seconds)[1].mean()
        print(f"{role:8} {first:6.0f} {last:6.0f} ({last / first - 1:+.1%})")


if __name__ == "__main__":
    main()
