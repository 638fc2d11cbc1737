"""Searches in worker processes: the same answers, and nothing a worker does ends the service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from go_opt.env import load_zoo
from go_opt.errors import CancelledError, GraphError, InfeasibleError, InvalidInputError, ServiceError
from go_opt.model.codecs.wire import graph_from_proto, graph_to_proto
from go_opt.proto import optimizer_pb2
from go_opt.service.calls.calls import Stop
from go_opt.service.workers.optimizer import LocalOptimizer, SearchControl
from go_opt.service.workers.process_optimizer import ProcessOptimizer, Worker
from tests.service.big_graph import repeated
from tests.serving import START_S, wait_until_ready


@pytest.fixture(scope="module")
def optimizer() -> Iterator[ProcessOptimizer]:
    optimizer = ProcessOptimizer(1)
    yield optimizer
    optimizer.close()


@pytest.fixture
def ready(optimizer: ProcessOptimizer) -> ProcessOptimizer:
    wait_until_ready(optimizer)
    return optimizer


def a_request(**fields: object) -> optimizer_pb2.OptimizeRequest:
    request = optimizer_pb2.OptimizeRequest(graph=graph_to_proto(load_zoo("bert_base")), **fields)
    request.target.name = "mcm-6x6"
    return request


def optimize(
    optimizer: ProcessOptimizer | LocalOptimizer,
    request: optimizer_pb2.OptimizeRequest,
    stop: Stop | None = None,
    deadline_s: float | None = None,
    on_improvement: Callable[[optimizer_pb2.OptimizeResponse], None] | None = None,
) -> optimizer_pb2.OptimizeResponse:
    control = SearchControl(None, stop or Stop(), deadline_s, on_improvement)
    return optimizer.optimize(request.SerializeToString(), control).response


def without_times(response: optimizer_pb2.OptimizeResponse) -> optimizer_pb2.OptimizeResponse:
    response.wall_s = 0
    for step in response.history:
        step.elapsed_s = 0
    return response


def test_a_worker_answers_as_this_process_does(ready: ProcessOptimizer) -> None:
    request = a_request(max_evaluations=12, seed=1)
    assert without_times(optimize(ready, request)) == without_times(optimize(LocalOptimizer(), request))


def test_an_evaluation_is_the_same(ready: ProcessOptimizer) -> None:
    asked = a_request(max_evaluations=3)
    request = optimizer_pb2.EvaluateRequest(
        graph=asked.graph, target=asked.target, plan=optimize(ready, asked).plan
    ).SerializeToString()
    stop = Stop()
    assert ready.inspect("evaluate", request, stop=stop) == LocalOptimizer().inspect(
        "evaluate", request, stop=stop
    )


def test_every_improvement_comes_and_the_last_is_the_answer(ready: ProcessOptimizer) -> None:
    seen: list[optimizer_pb2.OptimizeResponse] = []
    answer = optimize(ready, a_request(max_evaluations=20, seed=2), on_improvement=seen.append)
    reached_s = [improvement.metrics.interval_s for improvement in seen]
    assert len(seen) >= 2
    assert reached_s == sorted(set(reached_s), reverse=True)
    assert seen[-1].plan == answer.plan
    assert seen[-1].metrics == answer.metrics


def test_refusals_keep_their_class_and_field(ready: ProcessOptimizer) -> None:
    request = a_request(max_evaluations=2)
    request.graph.ops[3].flops = -1
    with pytest.raises(GraphError) as here:
        graph_from_proto(request.graph)
    with pytest.raises(GraphError) as there:
        optimize(ready, request)
    assert str(there.value) == str(here.value)
    with pytest.raises(InvalidInputError, match="max_evaluations") as refused:
        optimize(ready, a_request(max_evaluations=-1))
    assert refused.value.field == "max_evaluations"
    huge = a_request(max_evaluations=2)
    for tensor in huge.graph.tensors:
        tensor.elements = 2**50
        for reader in tensor.readers:
            reader.ClearField("elements")
    for op in huge.graph.ops:  # of other sizes
        op.ClearField("rule")
    with pytest.raises(InfeasibleError):
        optimize(ready, huge)


def test_a_killed_worker_ends_its_call_only(ready: ProcessOptimizer) -> None:
    def kill(_: optimizer_pb2.OptimizeResponse) -> None:
        (worker,) = ready._lent
        os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(ServiceError, match="ended by SIGKILL"):
        optimize(ready, a_request(budget_s=60, seed=5), on_improvement=kill)
    assert optimize(ready, a_request(max_evaluations=2, seed=6)).plan.placement


def test_an_idle_worker_that_dies_is_not_missed(ready: ProcessOptimizer) -> None:
    for worker in ready._idle:
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert optimize(ready, a_request(max_evaluations=2, seed=7)).plan.placement


def test_a_search_that_is_told_to_stop_answers_the_best_it_has(ready: ProcessOptimizer) -> None:
    stop = Stop()
    request = a_request(budget_s=60, seed=8).SerializeToString()
    answer, is_whole = ready.optimize(request, SearchControl(stop=stop, on_improvement=lambda _: stop.set()))
    assert answer.plan.placement
    assert answer.wall_s < 30
    assert not is_whole


def test_a_worker_has_the_time_that_whoever_waits_for_its_answer_gives_it(ready: ProcessOptimizer) -> None:
    stop, killed = Stop(), ready._killed

    def freeze(_: optimizer_pb2.OptimizeResponse) -> None:
        if not stop.is_set():
            (worker,) = ready._lent
            os.kill(worker.pid, signal.SIGSTOP)
            stop.set_within(60)
            threading.Timer(5 * Stop.grace_s, os.kill, (worker.pid, signal.SIGCONT)).start()

    assert optimize(ready, a_request(budget_s=60, seed=11), stop, on_improvement=freeze).plan.placement
    assert ready._killed == killed


def test_a_worker_that_does_not_listen_is_replaced(
    ready: ProcessOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, searches, stopped_s = Stop(), threading.Event(), 0.0
    send = Worker.send

    def noted(worker: Worker, kind: str, body: bytes = b"", **values: object) -> None:
        send(worker, kind, body, **values)
        searches.set()

    def freeze() -> None:
        nonlocal stopped_s
        searches.wait()
        (worker,) = ready._lent
        os.kill(worker.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        stop.set()

    monkeypatch.setattr(Worker, "send", noted)
    thread = threading.Thread(target=freeze)
    thread.start()
    with pytest.raises(CancelledError):
        optimize(ready, a_request(budget_s=60, seed=9), stop)
    assert time.monotonic() - stopped_s < 10  # 100 ms on an idle machine
    thread.join()
    assert optimize(ready, a_request(max_evaluations=2, seed=9)).plan.placement


@pytest.mark.flaky(reruns=2, reason="on a busy machine one step of a search may outlast the deadline")
def test_the_deadline_is_the_budget_and_such_answers_are_not_whole(ready: ProcessOptimizer) -> None:
    # A search that ends by itself where no gain is to be expected does so within a second on a quick machine.
    request = a_request(max_evaluations=100_000, seed=10, no_early_end=True).SerializeToString()
    end_s = time.monotonic() + 1.5
    answer, is_whole = ready.optimize(request, SearchControl(deadline_s=end_s))
    assert time.monotonic() < end_s + 1.0
    assert not is_whole
    assert answer.wall_s < 1.5


def test_a_large_graph_is_answered_by_its_deadline(ready: ProcessOptimizer) -> None:
    request = a_request(max_evaluations=1000)
    request.graph.CopyFrom(repeated(request.graph, 40))
    assert len(request.graph.ops) > 10_000
    answer = optimize(ready, request, deadline_s=time.monotonic() + 6)
    assert len(answer.plan.placement) == len(request.graph.ops)


def test_workers_end_with_the_service(tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from go_opt.service.workers.process_optimizer import ProcessOptimizer\n"
        "optimizer = ProcessOptimizer(1)\n"
        "print(*[worker.pid for worker in optimizer._idle], flush=True)\n"
        "time.sleep(600)\n"
    )
    service = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    with service.stdout as output:
        pids = [int(pid) for pid in output.readline().split()]
        assert len(pids) == 2
        service.kill()
        service.wait()
    end_s = time.monotonic() + START_S
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_closed_optimizer_says_so() -> None:
    optimizer = ProcessOptimizer(1)
    optimizer.close()
    with pytest.raises(ServiceError, match="has stopped"):
        optimize(optimizer, a_request(max_evaluations=1))
