"""A service under requests that no client would make: what it answers, and whether it stays well.

Run: PYTHONPATH=. python tests/benchmarks/fuzz_service.py [--seconds 60] [--seed 0] [--method PART]

Prints for every method how many calls ended with which status, and the memory of the service
before and after. Ends with exit code 1 at a status, a field, a delay or a file that must not
be; the requests of that call are printed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter, deque

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.service.fuzz.fuzzer import Case, Fuzzer, FuzzError
from tests.service.fuzz.methods import METHODS
from tests.service.fuzz.process import FuzzedProcess, fuzzed_process

_ROUND = 100  # calls between two looks at the memory
_WARM_ROUNDS = 3
_MOST_GROWTH_BYTES = 512 * 2**20  # caches hold the tables of 16 targets, of up to 30 MiB each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="", help="of methods whose name has this in it")
    parser.add_argument(
        "--keep-going", action="store_true", help="count violations, do not end with the first"
    )
    options = parser.parse_args()
    with fuzzed_process() as service:
        fuzzer = Fuzzer(service)
        found = fuzz(fuzzer, service, options)
        report(fuzzer, service)
        fuzzer.close()
    if found:
        sys.exit(1)


def fuzz(fuzzer: Fuzzer, service: FuzzedProcess, options: argparse.Namespace) -> Counter[str]:
    """Violations by sentence."""
    names = [name for name in METHODS if options.method in name]
    strategy = st.sampled_from(names).flatmap(fuzzer.cases)
    found: Counter[str] = Counter()
    end_s = time.monotonic() + options.seconds
    warm_bytes = 0
    recent: deque[int] = deque(maxlen=_WARM_ROUNDS)
    for number in itertools.count():
        if time.monotonic() > end_s:
            break

        @seed(options.seed * 1_000_003 + number)
        @settings(
            max_examples=_ROUND,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def one_round(case: Case) -> None:
            if time.monotonic() > end_s:
                return
            try:
                fuzzer.run(case)
            except FuzzError as error:
                if not options.keep_going:
                    raise
                sentence = str(error)
                key = sentence.splitlines()[0][:120]
                if not found[key]:
                    print(sentence[:1500], flush=True)
                found[key] += 1

        try:
            one_round()
            fuzzer.check_is_well()
        except FuzzError as error:
            print(f"violation: {error}", flush=True)
            found[str(error)] += 1
            break
        resident = service.resident_bytes()
        children = service.children_bytes()
        print(
            f"round {number}: service {resident / 2**20:.0f} MiB and {service.num_open_files()} files, "
            f"{len(children)} children, the largest {max(children, default=0) / 2**20:.0f} MiB",
            flush=True,
        )
        # The least of some rounds: a message of 200 MiB is part of what is held for a moment.
        recent.append(resident)
        if number == _WARM_ROUNDS:
            warm_bytes = min(recent)
        if warm_bytes and min(recent) - warm_bytes > _MOST_GROWTH_BYTES:
            print(f"violation: {min(recent) - warm_bytes} bytes more than after {_WARM_ROUNDS} rounds")
            found["memory grows"] += 1
            break
    return found


def report(fuzzer: Fuzzer, service: FuzzedProcess) -> None:
    """Print what became of the calls."""
    by_method: dict[str, Counter[str]] = {}
    for (path, code), count in fuzzer.counts.items():
        by_method.setdefault(path, Counter())[code] += count
    for path, codes in sorted(by_method.items()):
        shown = ", ".join(f"{code} {count}" for code, count in codes.most_common())
        print(f"{path.removeprefix('/')}: {shown}")
    print(
        f"{sum(fuzzer.counts.values())} calls; the service holds {service.resident_bytes() / 2**20:.0f} MiB."
    )


if __name__ == "__main__":
    main()
