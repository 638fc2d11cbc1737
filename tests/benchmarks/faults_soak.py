"""kill -9 of ``go-opt serve`` at random moments: nothing that was acknowledged may be lost.

``python tests/benchmarks/faults_soak.py --minutes 10``. Each round starts the service on the
same data directory, has clients create, cancel and delete jobs in it, kills it after a time
drawn at random, waits until no process of it is left, and starts the next. At the end of
each round every answer that was given is compared with what the next service knows; in the
end all jobs run out, and each policy must be that of an undisturbed job. A job that was cut
off by five kills in a row before it got anywhere is given up, and must say so.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from go_opt.errors import ExhaustedError, GoOptError, NotFoundError
from go_opt.service.client.client import Client
from go_opt.service.client.operation import Operation
from tests.service.faults.served import folder_of, serving
from tests.service.jobs import fake_job

THREADS = 4
LONGEST_S = 3.0  # from the start of listening to the kill
POLICY = b"trained from "


class Answers:
    """What the services answered; several threads write to it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.created: dict[str, str] = {}  # operation by policy
        self.cancelled: set[str] = set()  # policies
        self.deleted: set[str] = set()
        self.may_be_deleted: set[str] = set()  # asked for, without an answer
        self._numbers = iter(range(10**9))
        self._lock = threading.Lock()

    def number(self) -> int:
        with self._lock:
            return next(self._numbers)


def load(client: Client, answers: Answers, end: threading.Event, seed: int) -> None:
    """Create, cancel and delete until the service is gone."""
    draw = random.Random(seed)
    while not end.is_set():
        policy = f"p{answers.number()}"
        try:
            create(client, policy, answers)
            known = draw.choice(sorted(answers.created))
            operation = answers.created[known]
            if draw.random() < 0.6 and known not in answers.deleted:
                client.operation(operation).cancel()
                answers.cancelled.add(known)
                answers.counts["cancelled"] += 1
            if draw.random() < 0.3 and client.operation(operation).latest.is_done:
                answers.may_be_deleted.add(known)
                client.operation(operation).delete()
                answers.deleted.add(known)
                answers.counts["deleted"] += 1
        except (ExhaustedError, NotFoundError):
            answers.counts["refused"] += 1
            end.wait(0.05)
        except GoOptError:  # the service is dead
            answers.counts["without an answer"] += 1
            return


def create(client: Client, policy: str, answers: Answers) -> None:
    made = client.pretrain(
        policy, graphs=["zoo:din"], target="mcm-2x2", seed=fake_job.RUNS, request_id=f"request-{policy}"
    )
    answers.created[policy] = made.name
    answers.counts["created"] += 1


def why_failed(job: Operation) -> str:
    try:
        job.result()
    except GoOptError as error:
        return str(error)
    return ""


def losses(client: Client, answers: Answers) -> set[str]:
    """What was acknowledged and is not so."""
    known = {job.latest.policy: job for job in client.list_operations()}
    found = set()
    for policy, name in answers.created.items():
        job = known.get(policy)
        if policy in answers.deleted:
            if job is not None:
                found.add(f"{policy} was deleted and is back")
        elif job is None:
            if policy not in answers.may_be_deleted:
                found.add(f"{policy} was created and is lost")
        elif job.name != name:
            found.add(f"{policy} is another operation")
        elif policy in answers.cancelled and job.latest.state in ("QUEUED", "RUNNING"):
            found.add(f"{policy} was cancelled and is {job.latest.state}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, answers, lost, kills = random.Random(options.seed), Answers(), set(), 0
    end_s = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as name:
        folder, data = Path(name), Path(name) / "data"
        while time.monotonic() < end_s:
            with serving(folder, "--jobs", "2", data=data) as served, served.client() as client:
                lost |= losses(client, answers)
                end = threading.Event()
                with ThreadPoolExecutor(THREADS) as pool:
                    for _ in range(THREADS):
                        pool.submit(load, client, answers, end, draw.randrange(2**32))
                    time.sleep(draw.uniform(0.0, LONGEST_S))
                    served.kill()
                    end.set()
            kills += 1
        with serving(folder, "--jobs", "2", data=data) as served, served.client() as client:
            lost |= losses(client, answers)
            for job in client.list_operations():
                state = job.wait(600).state
                answers.counts[state] += 1
                policy = folder_of(data, job) / "policy.safetensors"
                if state == "SUCCEEDED" and policy.read_bytes() != POLICY:
                    lost.add(f"{job.latest.policy} made another policy")
                if state == "FAILED" and "given up after 5 starts" not in why_failed(job):
                    lost.add(f"{job.latest.policy} failed: {why_failed(job)}")
            answers.counts["more than one attempt"] = sum(
                job.latest.attempts > 1 for job in client.list_operations()
            )
            if "Traceback" in served.log():
                lost.add("a traceback in the log")
    print(f"{kills} kills; {dict(sorted(answers.counts.items()))}; {len(lost)} lost")
    print(*sorted(lost), sep="\n")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
