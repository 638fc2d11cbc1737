"""A service under more load than it can take, for two minutes.

Run: PYTHONPATH=. python tests/benchmarks/bench_service_load.py [--seconds S]

64 clients, in one process, with a connection and a name each, ask ``go-opt serve`` on the
loopback for plans, streams of plans, metrics and batches of rewards (``load_mix.py``), for
graphs of 100 to 5,000 ops. 63 have one call open at a time, one is greedy and has 32; that
is more than may wait, so some are refused and ask again when they are told to. Another
process asks for the health 20 times a second. Asserts that no call ends but with OK or
RESOURCE_EXHAUSTED with a time to try again, that health answers within 50 ms at p99, that
memory does not grow, that the greedy client gains little and nobody goes without, and
verifies a sample of the answers. Then the same messages go through a bare ``grpc.aio``
server, the limit of what gRPC allows. Clients, prober and service share the CPUs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from load_clients import CLIENTS, ECHO_S
from load_mix import KINDS, SIZES
from load_watch import PROBES_PER_S, Watch, probed
from measuring import header

from go_opt.service.transport.credentials import MESSAGE_OPTIONS

WARM_S = 20.0  # caches fill, policies load
GREEDY_CALLS = 32
MAX_WAITING = 64
WORKERS = 2
START_S = 120.0
MOST_HEALTH_S = 0.05
MOST_GROWTH = 0.1  # of memory, from the first third to the last
MOST_GAIN = 2.0  # of the greedy client, against the median of the others


@contextmanager
def service(folder: Path, tokens: Path) -> Iterator[tuple[int, str, str]]:
    """``go-opt serve`` in a process of its own: its process id, its address, that of its metrics."""
    log = folder / "log"
    options = f"--address 127.0.0.1:0 --metrics 127.0.0.1:0 --workers {WORKERS} --max-waiting {MAX_WAITING}"
    command = [sys.executable, "-m", "go_opt.cli", "serve", *options.split(), "--tokens", str(tokens)]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        address, metrics = (_told(log, words) for words in ("listening on ", "metrics on "))
        _told(log, "ready.")
        yield process.pid, address, metrics.rstrip(".")
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def _told(log: Path, words: str) -> str:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        for line in log.read_text().splitlines():
            if words in line:
                return line.partition(words)[2].strip()
        time.sleep(0.05)
    raise SystemExit(f"the service did not start: {log.read_text()}")


@contextmanager
def echo() -> Iterator[tuple[int, str]]:
    """A bare server in a process of its own, which answers as many bytes as it is asked for."""
    process = subprocess.Popen([sys.executable, __file__, "--echo"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


async def _serve_echo() -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        return bytes(int(dict(context.invocation_metadata())["answer-bytes"]))

    server = grpc.aio.server(options=MESSAGE_OPTIONS)
    method = {"Ask": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", method),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


def print_answers(told: dict[str, Any], seconds: float) -> None:
    header(["", "answers", "a second", "p50, s", "p99, s", "p50 alone, s"])
    rows: dict[str, Callable[[dict[str, Any]], bool]] = {"all": lambda answer: True}
    rows |= {f"{size} ops": lambda answer, size=size: answer["size"] == size for size in SIZES}
    rows |= {kind: lambda answer, kind=kind: answer["kind"] == kind for kind in KINDS}
    for name, belongs in rows.items():
        took_s, alone_s = (
            [answer["end_s"] - answer["start_s"] for answer in told[which] if belongs(answer)]
            for which in ("answers", "alone")
        )
        p50, p99 = np.quantile(took_s or [np.nan], [0.5, 0.99])
        alone = np.median(alone_s or [np.nan])
        print(
            f"| {name} | {len(took_s):,} | {len(took_s) / seconds:.1f} "
            f"| {p50:.2f} | {p99:.2f} | {alone:.2f} |"
        )


def print_fairness(answers: list[dict[str, Any]]) -> None:
    counts = Counter(answer["client"] for answer in answers)
    others = np.array([counts[client] for client in range(1, CLIENTS)])
    jain = others.sum() ** 2 / (len(others) * (others**2).sum())
    print(
        f"- answers of a client: {others.min()} to {others.max()}, median {np.median(others):g}, "
        f"Jain's index {jain:.3f}; of the greedy one {counts[0]}"
    )
    assert others.min() > 0, "a client goes without"
    assert counts[0] <= MOST_GAIN * np.median(others), "greed pays"


def print_health(took_s: list[float], seconds: float) -> None:
    p50, p99, most = 1e3 * np.quantile(took_s, [0.5, 0.99, 1.0])
    print(f"- health, {len(took_s):,} checks: p50 {p50:.1f} ms, p99 {p99:.1f} ms, at most {most:.1f} ms")
    assert len(took_s) >= 0.9 * PROBES_PER_S * seconds
    assert p99 <= 1e3 * MOST_HEALTH_S, "health takes too long"


def print_memory(watch: Watch, seconds: float) -> None:
    for role in ("front", "workers", "policy"):
        times_s, megabytes = watch.series(role, WARM_S, seconds)
        first, _, last = (third.mean() for third in np.array_split(megabytes, 3))
        slope = np.polyfit(times_s, megabytes, 1)[0] * 60
        print(
            f"- memory, {role}: {first:.0f} MB in the first third, {last:.0f} MB in the last, "
            f"{slope:+.1f} MB a minute, at most {megabytes.max():.0f} MB"
        )
        assert last <= first * (1 + MOST_GROWTH), "memory grows"


def print_readings(metrics: str) -> None:
    values = [line.split() for line in metrics.splitlines() if line.startswith("go_opt_optimizer_")]
    print(f"- {', '.join(f'{name} {float(value):g}' for name, value in values)}")


def run(seconds: float) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text("".join(f"client-{i} {secrets.token_hex(16)}\n" for i in range(CLIENTS)))
        pid, address, metrics = stack.enter_context(service(folder, tokens))
        echo_pid, echo_address = stack.enter_context(echo())
        command = f"--service {address} --echo {echo_address} --greedy-calls {GREEDY_CALLS}"
        clients = stack.enter_context(
            subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("load_clients.py")),
                    *command.split(),
                    "--tokens",
                    str(tokens),
                    "--seconds",
                    str(seconds),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(clients.kill)
        assert clients.stdin is not None
        assert clients.stdout is not None
        assert clients.stdout.readline() == "ready\n"
        with Watch(pid) as watch, probed(address) as health_s:
            print("go", file=clients.stdin, flush=True)
            assert clients.stdout.readline() == "loaded\n"
        readings = urllib.request.urlopen(f"http://{metrics}/metrics").read().decode()
        with Watch(echo_pid) as echo_watch:
            print("go", file=clients.stdin, flush=True)
            told = json.loads(clients.stdout.readline())
    report(told, watch, echo_watch, seconds)
    print_readings(readings)
    print_health(health_s, seconds)
    print_memory(watch, seconds)


def report(told: dict[str, Any], watch: Watch, echo_watch: Watch, seconds: float) -> None:
    calls = len(told["answers"])
    answers = told["answers"] = [answer for answer in told["answers"] if answer["end_s"] <= seconds]
    print_answers(told, seconds)
    print()
    statuses = told["statuses"]
    print(f"- statuses: {', '.join(f'{count:,} {code}' for code, count in statuses.items())}")
    print(f"- {told['verified']} answers of a sample verified")
    cpu_s = {**watch.cpu_s(), "clients": told["cpu_s"]}
    print(f"- CPUs at work: {', '.join(f'{s / watch.times_s[-1]:.2f} {who}' for who, s in cpu_s.items())}")
    front_ms = 1e3 * cpu_s["front"] / calls
    echo_ms = 1e3 * echo_watch.cpu_s()["front"] / told["echoes"]
    ratio = told["echoes"] / ECHO_S * seconds / len(answers)
    print(
        f"- echo: {told['echoes'] / ECHO_S:,.0f} answers a second, {ratio:.0f} times the service's; "
        f"an answer takes {echo_ms:.2f} ms of a CPU there, {front_ms:.1f} ms of the service's front"
    )
    assert set(statuses) <= {"OK", "RESOURCE_EXHAUSTED"}
    assert not told["unexplained"], "a refusal does not say when to ask again"
    print_fairness(answers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        asyncio.run(_serve_echo())
    else:
        run(options.seconds)


if __name__ == "__main__":
    main()
