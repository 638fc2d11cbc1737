"""The life of a service whose disk fills up; run by test_full_disk.py on a small file system of its own.

``full_disk.py LOGS DISK``
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc

import go_opt
from go_opt.errors import ServiceError
from go_opt.proto import training_pb2, training_pb2_grpc
from go_opt.service.client.client import Client
from go_opt.service.client.operation import Operation
from tests.service.faults.served import folder_of, serving
from tests.service.jobs import fake_job
from tests.service.jobs.conftest import eventually


def fill(ballast: Path) -> None:
    """Leave no room on the disk."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def a_job(client: Client, policy: str, seed: int) -> Operation:
    return client.pretrain(
        policy, graphs=["zoo:din"], target="mcm-2x2", seed=seed, request_id=f"request-{policy}"
    )


def created_until_refused(client: Client, address: str) -> list[str]:
    """Jobs that were acknowledged before the disk had no room for another."""
    names = []
    while len(names) < 90:
        policy = f"p{len(names)}"
        try:
            names.append(a_job(client, policy, fake_job.RUNS).name)
        except ServiceError:
            message = training_pb2.PretrainRequest(policy=policy, zoo_graphs=["din"])
            with grpc.insecure_channel(address) as channel:
                asked = training_pb2_grpc.TrainingStub(channel).Pretrain.future(message, timeout=20)
                assert asked.code() is grpc.StatusCode.UNAVAILABLE, asked.details()
                assert "cannot store or read its jobs: database or disk is full" in asked.details()
            return names
    raise AssertionError("nothing was refused.")


def main() -> None:
    logs, disk = map(Path, sys.argv[1:])
    data, ballast, graph = disk / "data", disk / "ballast", go_opt.load("zoo:din")
    with serving(logs, data=data) as served, served.client() as client:
        running = a_job(client, "runs", fake_job.WAITS)
        eventually((folder_of(data, running) / fake_job.STANDS).exists)
        fill(ballast)
        acknowledged = [running.name, *created_until_refused(client, served.address)]
        assert sorted(job.name for job in client.list_operations()) == sorted(acknowledged)
        # What needs no disk goes on.
        found = client.optimize(graph, max_evaluations=3)
        assert client.evaluate(graph, "mcm-6x6", found.plan).interval_s == found.metrics.interval_s
        (folder_of(data, running) / fake_job.GO).touch()
        eventually(lambda: "o space left on device" in served.log() or "disk is full" in served.log())
        assert not client.operation(running.name).latest.is_done
        assert "Traceback" not in served.log()
        ballast.unlink()
        assert running.wait(60).state == "SUCCEEDED"
        policy = folder_of(data, running) / "policy.safetensors"
        assert policy.read_bytes() == b"trained from "
        refused = a_job(client, f"p{len(acknowledged) - 1}", fake_job.RUNS)
        assert refused.wait(60).state == "SUCCEEDED"
    with serving(logs, data=data) as served, served.client() as client:
        left = {job.name: job.latest.state for job in client.list_operations()}
        assert left.keys() == {*acknowledged, refused.name}
        for name in left:
            assert client.operation(name).wait(60).state == "SUCCEEDED"
    print("done")


if __name__ == "__main__":
    main()
