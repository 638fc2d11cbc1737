"""The clients of a loaded service, in one process: ``python load_clients.py``, started by the benchmark.

Each has a connection and a name of its own, and asks again as soon as it is answered, or as
soon as it may where it was refused. Messages stay bytes; a sample is verified in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc
from google.rpc import error_details_pb2, status_pb2
from load_mix import BATCH_PLANS, BATCHES, BROKEN_PLANS, TARGET, Ask, Subject, subjects

import go_opt
from go_opt.proto import environment_pb2, optimizer_pb2
from go_opt.service.messages.convert import result_from_proto
from go_opt.service.transport.credentials import MESSAGE_OPTIONS

CLIENTS = 64
DEADLINE_S = 120.0
SAMPLED = 5  # every fifth answer of a client is verified
ALONE_S = 30.0  # one client asks an idle service
ECHO_S = 15.0
# Else all clients of a process share a connection.
OPTIONS = (*MESSAGE_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


@dataclass
class Answer:
    """How a call went."""

    client: int
    kind: str
    size: str
    start_s: float  # all since the load began
    end_s: float
    refused: int
    sent_bytes: int
    received_bytes: int


@dataclass
class Log:
    """What came of all calls."""

    answers: list[Answer] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    sample: list[tuple[Ask, bytes]] = field(default_factory=list)
    unexplained: int = 0  # refusals that do not say when to ask again


class Client:
    """One caller of the service."""

    def __init__(self, number: int, address: str, token: str, every: list[Subject], log: Log) -> None:
        self._number = number
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._every, self._log = every, log
        self._draw = random.Random(number)
        self._calls = 0

    async def run(self, since_s: float, seconds: float) -> None:
        """Ask one thing after the other until the time is over."""
        while time.monotonic() - since_s < seconds:
            self._calls += 1
            seed = 1 + self._number + 1_000_000 * self._draw.randrange(1_000_000)
            ask = Ask.draw(self._every, seed, self._draw)
            start_s, refused = time.monotonic(), 0
            while (data := await self._tried(ask)) is None:
                refused += 1
                if time.monotonic() - since_s >= seconds:
                    return
            end_s = time.monotonic()
            self._log.answers.append(
                Answer(
                    self._number,
                    ask.kind,
                    ask.subject.size,
                    start_s - since_s,
                    end_s - since_s,
                    refused,
                    len(ask.request),
                    len(data),
                )
            )
            if self._calls % SAMPLED == 0:
                self._log.sample.append((ask, data))

    async def close(self) -> None:
        await self._channel.close()

    async def _tried(self, ask: Ask) -> bytes | None:
        """The answer; None where there was no room, once the time to wait is over."""
        try:
            data = await self._answer(ask)
        except grpc.aio.AioRpcError as error:
            self._log.statuses[error.code().name] += 1
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                print(f"{ask.kind}: {error.code().name} {error.details()}", file=sys.stderr)
            wait_s = _retry_s(error)
            if wait_s is None:
                self._log.unexplained += 1
            await asyncio.sleep((wait_s or 1.0) * (1 + 0.1 * self._draw.random()))
            return None
        self._log.statuses["OK"] += 1
        return data

    async def _answer(self, ask: Ask) -> bytes:
        if ask.kind.startswith("Environment"):
            return await self._batches(ask)
        if ask.kind.startswith("OptimizeStream"):
            last = b""
            call = self._channel.unary_stream("/go_opt.v1.Optimizer/OptimizeStream")
            async for update in call(ask.request, timeout=DEADLINE_S, metadata=self._metadata):
                last = update
            return last
        method = "Evaluate" if ask.kind == "Evaluate" else "Optimize"
        return await self._unary(f"go_opt.v1.Optimizer/{method}", ask.request)

    async def _batches(self, ask: Ask) -> bytes:
        created = await self._unary("go_opt.v1.Environment/CreateSession", ask.request)
        session_id = environment_pb2.CreateSessionResponse.FromString(created).session_id
        head = environment_pb2.EvaluateBatchRequest(session_id=session_id).SerializeToString()
        request = head + ask.subject.batch.SerializeToString()
        stream = self._channel.stream_stream("/go_opt.v1.Environment/Evaluate")(
            timeout=DEADLINE_S, metadata=self._metadata
        )
        for _ in range(BATCHES):
            await stream.write(request)
            data = await stream.read()
            if data is grpc.aio.EOF:
                await stream  # raises what ended it
        await stream.done_writing()
        await self._unary("go_opt.v1.Environment/CloseSession", head)
        return bytes(data)

    async def _unary(self, method: str, request: bytes) -> bytes:
        call = self._channel.unary_unary(f"/{method}")
        return bytes(await call(request, timeout=DEADLINE_S, metadata=self._metadata))


def _retry_s(error: grpc.aio.AioRpcError) -> float | None:
    """How long a refusal asks to wait."""
    packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    for detail in status_pb2.Status.FromString(packed).details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToMicroseconds()) / 1e6
    return None


async def load(
    address: str, tokens: list[str], every: list[Subject], seconds: float, *, greedy_calls: int = 1
) -> Log:
    """All clients at once; the first has several calls open, the others one each."""
    log = Log()
    clients = [Client(i, address, tokens[i], every, log) for i in range(len(tokens))]
    since_s = time.monotonic()
    runs = [client.run(since_s, seconds) for client in clients]
    runs += [clients[0].run(since_s, seconds) for _ in range(greedy_calls - 1)]
    await asyncio.gather(*runs)
    await asyncio.gather(*(client.close() for client in clients))
    return log


async def echo(address: str, log: Log) -> int:
    """Answers of a bare server that takes and gives messages of the same sizes."""
    sizes = [(answer.sent_bytes, answer.received_bytes) for answer in log.answers]
    sizes = random.Random(0).choices(sizes, k=1000)
    done = 0

    async def run(number: int) -> None:
        nonlocal done
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            ask = channel.unary_unary("/bench.Echo/Ask")
            while time.monotonic() - since_s < ECHO_S:
                sent, received = sizes[(done + number) % len(sizes)]
                await ask(bytes(sent), metadata=(("answer-bytes", str(received)),))
                done += 1

    since_s = time.monotonic()
    await asyncio.gather(*(run(number) for number in range(CLIENTS)))
    return done


def check(ask: Ask, data: bytes) -> None:
    """Raise where an answer is not what it says."""
    subject = ask.subject
    if ask.kind == "Evaluate":
        metrics = optimizer_pb2.EvaluateResponse.FromString(data).metrics
        assert metrics.interval_s == subject.interval_s
    elif ask.kind.startswith("Environment"):
        answers = environment_pb2.EvaluateBatchResponse.FromString(data).metrics
        assert len(answers) == BATCH_PLANS
        assert all(answer.interval_s == subject.interval_s for answer in answers[:-BROKEN_PLANS])
    else:
        if ask.kind.startswith("OptimizeStream"):
            message = optimizer_pb2.OptimizeUpdate.FromString(data).result
        else:
            message = optimizer_pb2.OptimizeResponse.FromString(data)
        result = result_from_proto(message)
        assert go_opt.verify(subject.graph, TARGET, result.plan) == []
        metrics = go_opt.evaluate(subject.graph, TARGET, result.plan)
        assert metrics.interval_s == result.metrics.interval_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", required=True)
    parser.add_argument("--echo", required=True)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--greedy-calls", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    every = subjects()
    tokens = [line.split()[1] for line in options.tokens.read_text().splitlines()]
    print("ready", flush=True)
    sys.stdin.readline()
    cpu_s = time.process_time()
    log = asyncio.run(
        load(options.service, tokens, every, options.seconds, greedy_calls=options.greedy_calls)
    )
    cpu_s = time.process_time() - cpu_s
    print("loaded", flush=True)
    sys.stdin.readline()
    alone = asyncio.run(load(options.service, tokens[:1], every, ALONE_S))
    echoes = asyncio.run(echo(options.echo, log))
    for ask, data in log.sample:
        check(ask, data)
    told = {
        "answers": [asdict(answer) for answer in log.answers],
        "alone": [asdict(answer) for answer in alone.answers],
        "statuses": log.statuses,
        "unexplained": log.unexplained,
        "verified": len(log.sample),
        "cpu_s": cpu_s,
        "echoes": echoes,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
