"""The deadline of a call holds where the search counts evaluations and one of them takes seconds."""

from __future__ import annotations

import time

import grpc

from go_opt.env import load_zoo
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.proto import optimizer_pb2, optimizer_pb2_grpc
from go_opt.service.transport.credentials import MESSAGE_OPTIONS
from go_opt.service.workers.optimizer import OptimizerService
from go_opt.service.workers.process_optimizer import ProcessOptimizer
from tests.service.big_graph import repeated
from tests.serving import START_S, serve_in_thread, wait_until_ready

DEADLINE_S = 8.0


def test_a_graph_of_50_000_ops_is_answered_or_given_up_in_time_and_its_worker_is_free_again() -> None:
    zoo = graph_to_proto(load_zoo("bert_base"))
    request = optimizer_pb2.OptimizeRequest(
        graph=repeated(zoo, -(-50_000 // len(zoo.ops))), policy="none", max_evaluations=1000
    )
    request.target.name = "mcm-6x6"
    optimizer = ProcessOptimizer(1)
    wait_until_ready(optimizer)
    with (
        serve_in_thread([OptimizerService(optimizer)], workers=1) as address,
        grpc.insecure_channel(address, MESSAGE_OPTIONS) as channel,
    ):
        stub = optimizer_pb2_grpc.OptimizerStub(channel)  # type: ignore[no-untyped-call]
        start_s = time.monotonic()
        call = stub.Optimize.future(request, timeout=DEADLINE_S)
        # A machine too slow for a first plan has none to answer.
        assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert time.monotonic() - start_s < DEADLINE_S + 1
        if call.code() is grpc.StatusCode.OK:
            assert len(call.result().plan.placement) == len(request.graph.ops)
        small = optimizer_pb2.OptimizeRequest(graph=zoo, policy="none", max_evaluations=2)
        small.target.name = "mcm-6x6"
        assert stub.Optimize(small, timeout=START_S).plan.placement
