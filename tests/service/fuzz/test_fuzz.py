"""Whatever is sent: a status that is documented, a field that is named, no file that is reached."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from go_opt.proto import environment_pb2, graph_pb2, optimizer_pb2, plan_pb2
from tests.service.fuzz.fuzzer import Case, Fuzzer
from tests.service.fuzz.messages import BOMB
from tests.service.fuzz.methods import METHODS
from tests.service.fuzz.process import FIFO, FuzzedProcess, fuzzed_process

EXAMPLES: Final = 8  # of every method
MOST_GROWTH_BYTES: Final = 32 * 2**20
ROOT: Final = Path(__file__).parents[3]
UNPICKLES: Final = re.compile(
    r"^\s*(import|from) (_?pickle|cloudpickle|dill|joblib|marshal|shelve)\b"
    r"|\.recv\(|allow_pickle"  # of a Connection, which recv_bytes is not; of numpy
    r"|(?<![\w.])(eval|exec)\(",
    re.MULTILINE,
)
SEARCH: Final = "go_opt.v1.Optimizer/Optimize"


@pytest.fixture(scope="module")
def service() -> Iterator[FuzzedProcess]:
    with fuzzed_process() as process:
        yield process


@pytest.fixture(scope="module")
def fuzzer(service: FuzzedProcess) -> Iterator[Fuzzer]:
    made = Fuzzer(service)
    yield made
    made.check_is_well()
    made.close()


@pytest.mark.parametrize("name", METHODS)
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_every_message_has_an_answer(fuzzer: Fuzzer, name: str, data: st.DataObject) -> None:
    fuzzer.run(data.draw(fuzzer.cases(name)))


def test_refused_requests_leave_nothing_behind(fuzzer: Fuzzer, service: FuzzedProcess) -> None:
    session: Any = environment_pb2.CreateSessionRequest()
    session.CopyFrom(fuzzer.examples.session)
    session.target.toml = "a = " + "[" * 100_000
    cases = [
        Case(METHODS[name], (data,), 30.0)
        for name in ("go_opt.v1.Environment/CreateSession", "go_opt.v1.Training/Pretrain")
        for data in (session.SerializeToString(), b"\xff" * 100_000)
    ]
    for _ in range(25):
        for case in cases:
            fuzzer.run(case)
    before_bytes, files = service.resident_bytes(), service.num_open_files()
    for _ in range(75):
        for case in cases:
            assert fuzzer.run(case).code == "INVALID_ARGUMENT"
    assert service.resident_bytes() - before_bytes < MOST_GROWTH_BYTES
    assert service.num_open_files() <= files + 2


def test_a_file_that_exists_is_as_unknown_as_one_that_does_not(
    fuzzer: Fuzzer, service: FuzzedProcess
) -> None:
    pairs = [
        ("canary.toml", "canarz.toml"),
        ("canary", "canarz"),
        (str(service.folder / FIFO), str(service.folder / "fifa.toml")),
        ("/etc/passwd", "/etc/passwx"),
    ]
    for name, examples in fuzzer.examples.of_method.items():
        for example in examples:
            for put in _text_fields(example):
                for pair in pairs:
                    there, missing = (_answered(fuzzer, name, put(text), text) for text in pair)
                    assert there == missing


def test_a_pickle_is_a_text_like_any_other(fuzzer: Fuzzer) -> None:
    text = BOMB.decode("ascii")
    for name, examples in fuzzer.examples.of_method.items():
        timeout_s = 1.0 if METHODS[name].is_watch else 30.0
        fuzzer.run(Case(METHODS[name], (BOMB,), timeout_s))
        for put in _text_fields(examples[0]):
            fuzzer.run(Case(METHODS[name], (put(text).SerializeToString(),), timeout_s))


def test_nothing_that_came_from_elsewhere_is_unpickled() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("go_opt", "proto", "env", "solver", "agents")
        for path in (ROOT / folder).rglob("*.py")
        if UNPICKLES.search(path.read_text("utf-8"))
    }
    # Processes that one of ours has started itself, by a pipe: each unpickles what the other pickled.
    assert found == {
        "go_opt/bench/processes.py",
    }


def test_a_search_that_does_not_end_ends_with_its_call(fuzzer: Fuzzer) -> None:
    graph = _dense_graph(3000, 100)
    request = optimizer_pb2.OptimizeRequest(
        graph=graph, target=plan_pb2.Target(name="mcm-6x6"), policy="none"
    )
    outcome = fuzzer.run(Case(METHODS[SEARCH], (request.SerializeToString(),), 0.5))
    assert outcome.code in ("OK", "DEADLINE_EXCEEDED")
    small = fuzzer.examples.of_method[SEARCH][0]
    assert fuzzer.run(Case(METHODS[SEARCH], (small.SerializeToString(),), 20.0)).code == "OK"


def _answered(fuzzer: Fuzzer, name: str, request: Message, text: str) -> tuple[object, ...]:
    """What a caller can tell of the answer, but for the text itself."""
    if METHODS[name].is_watch:
        return (fuzzer.run(Case(METHODS[name], (request.SerializeToString(),), 0.05)).code,)
    outcome = fuzzer.run(Case(METHODS[name], (request.SerializeToString(),), 30.0))
    parts = (text[:length] for length in range(len(text), 0, -1))  # a message may show only its beginning
    shown = next((part for part in parts if part in outcome.text), text)
    return outcome.code, outcome.text.replace(shown, "NAME"), outcome.fields


def _text_fields(example: Message) -> list[Callable[[str], Message]]:
    """Puts a text into each text field of a request, but for those of its graphs and plans."""
    return [lambda text, path=path: _with_text(example, path, text) for path in _text_paths(example)]


def _text_paths(message: Any) -> Iterator[tuple[str, ...]]:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            if field.type == field.TYPE_STRING:
                yield (field.name,)
        elif not field.is_repeated and field.message_type not in (
            graph_pb2.Graph.DESCRIPTOR,
            plan_pb2.Plan.DESCRIPTOR,
        ):
            yield from ((field.name, *path) for path in _text_paths(getattr(message, field.name)))


def _with_text(example: Message, path: tuple[str, ...], text: str) -> Message:
    changed = type(example)()
    changed.CopyFrom(example)
    part: Any = changed
    for name in path[:-1]:
        part = getattr(part, name)
    if part.DESCRIPTOR.fields_by_name[path[-1]].is_repeated:
        getattr(part, path[-1])[:] = [text]
    else:
        setattr(part, path[-1], text)
    return changed


def _dense_graph(num_ops: int, reads: int) -> graph_pb2.Graph:
    """A chain in which every op also reads what the last ``reads`` before it made."""
    graph = graph_pb2.Graph(name="dense")
    for i in range(num_ops):
        graph.ops.add(name=f"op{i}", op_type="Add", op_class=2, flops=8, dtype="float32")
        tensor = graph.tensors.add(name=f"t{i}", elements=8, dtype="float32", kind=1, producer=i)
        for reader in range(i + 1, min(num_ops, i + 1 + reads)):
            tensor.readers.add(op=reader)
    return graph
