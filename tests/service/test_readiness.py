"""Health says that a service serves once it has loaded what it needs, and not before."""

from __future__ import annotations

import threading

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

from go_opt.service.observability import Metrics
from go_opt.service.workers.optimizer import OptimizerService
from go_opt.service.workers.process_optimizer import ProcessOptimizer
from tests.service.conftest import ToyService
from tests.serving import serve_in_thread

Status = health_pb2.HealthCheckResponse


class SlowToy(ToyService):
    def __init__(self) -> None:
        super().__init__()
        self.loaded = threading.Event()

    def is_ready(self) -> bool:
        return self.loaded.is_set()


class OtherToy(ToyService):
    name = "toy.Other"


def test_a_service_that_loads_is_not_serving_but_takes_calls() -> None:
    slow = SlowToy()
    with serve_in_thread([slow, OtherToy()]) as address, grpc.insecure_channel(address) as channel:
        checks = health_pb2_grpc.HealthStub(channel)
        asked = {name: health_pb2.HealthCheckRequest(service=name) for name in ("", "toy.Toy", "toy.Other")}
        assert checks.Check(asked[""], timeout=20).status == Status.NOT_SERVING
        assert checks.Check(asked["toy.Toy"], timeout=20).status == Status.NOT_SERVING
        assert checks.Check(asked["toy.Other"], timeout=20).status == Status.SERVING
        data = BytesValue(value=b"x").SerializeToString()
        assert channel.unary_unary("/toy.Toy/Quick")(data, timeout=20) == data
        changes = checks.Watch(asked[""], timeout=20)
        assert next(changes).status == Status.NOT_SERVING
        slow.loaded.set()
        assert next(changes).status == Status.SERVING
        assert checks.Check(asked["toy.Toy"], timeout=20).status == Status.SERVING
        changes.cancel()


def test_a_drain_before_all_is_loaded_leaves_it_not_serving() -> None:
    slow = SlowToy()
    with serve_in_thread([slow]) as address, grpc.insecure_channel(address) as channel:
        changes = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(changes).status == Status.NOT_SERVING
    slow.loaded.set()
    with pytest.raises(grpc.RpcError):
        next(changes)


def test_workers_are_ready_together_and_told_of() -> None:
    metrics = Metrics()
    services = [OptimizerService(ProcessOptimizer(2))]
    with serve_in_thread(services, metrics=metrics) as address, grpc.insecure_channel(address) as channel:
        changes = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=120)
        assert next(changes).status == Status.NOT_SERVING
        assert next(changes).status == Status.SERVING
        changes.cancel()
        for name in ("cached_answers_total", "cache_bytes", "workers_replaced_total", "workers_killed_total"):
            assert metrics.registry.get_sample_value(f"go_opt_optimizer_{name}") == 0
