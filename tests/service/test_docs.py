"""docs/service.md and the code say the same: its Python runs, its tables are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from google.protobuf import json_format
from google.rpc import code_pb2

from go_opt.cli.app import app
from go_opt.model.codecs.wire import graph_from_proto
from go_opt.proto import optimizer_pb2
from go_opt.service import server
from go_opt.service.assembly import Assembly
from go_opt.service.calls import calls as front
from go_opt.service.calls.admission import AdmissionLimits
from go_opt.service.environment import environment_service
from go_opt.service.environment.environment_service import SessionLimits
from go_opt.service.jobs.manager import JobLimits
from go_opt.service.messages.errors import MAX_MESSAGE_BYTES as MAX_ERROR_BYTES
from go_opt.service.messages.errors import TABLE
from go_opt.service.observability import Metrics
from go_opt.service.transport.credentials import MAX_MESSAGE_BYTES
from go_opt.service.transport.retry import Retry
from tests.serving import serve_in_thread

TEXT = (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    """What stands below a heading."""
    (found,) = re.findall(rf"^##+ {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = {i for i, line in enumerate(lines) if line.startswith("|---")}
    return [row for i, row in enumerate(cells) if i not in heads and i + 1 not in heads]


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for language, block in BLOCKS if language == "python"]
    with serve_in_thread() as address:
        exec(compile(code.replace("127.0.0.1:50051", address), "service.md", "exec"), {})
    assert "gap" in capsys.readouterr().out


def test_every_command_line_is_understood() -> None:
    shown = [
        line.split("  #")[0]
        for _, block in BLOCKS
        for line in block.splitlines()
        if line.startswith("go-opt ")
    ]
    assert len(shown) > 5
    for line in shown:
        name, *arguments = shlex.split(line)[1:]
        command: Any = COMMANDS[name].loaded
        if hasattr(command, "commands"):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        command.make_context(name, arguments)


def test_the_table_of_statuses_is_complete() -> None:
    told = rows(section("Statuses"))
    for row in TABLE:
        status, error, code = (
            f"`{code_pb2.Code.Name(row.code)}`",
            f"`{row.error.__name__}`",
            row.error.exit_code,
        )
        assert [1 for cells in told if cells[0] == status and error in cells[2] and cells[3] == str(code)], (
            row
        )
    assert {cells[0].strip("`") for cells in told} <= {code.name for code in grpc.StatusCode}
    assert f"end after {MAX_ERROR_BYTES} bytes" in TEXT


def test_the_table_of_metrics_is_complete() -> None:
    metrics = Metrics()
    metrics.watch_calls(front.Calls(workers=1))
    for service in Assembly(workers=1).services():
        metrics.watch(service.metrics())
        service.close()
    told = {
        re.sub(r"_total$", "", name)
        for row in rows(section("Watch it"))
        for name in re.findall(r"`(go_opt_\w+)`", row[0])
    }
    assert told == {family.name for family in metrics.registry.collect() if family.name.startswith("go_opt_")}


def test_the_limits_are_right() -> None:
    told = {row[0]: row[1] for row in rows(section("Limits"))}
    calls, sessions = AdmissionLimits(), SessionLimits()
    assert f"{MAX_MESSAGE_BYTES >> 20} MiB" in told["message"]
    assert f"{calls.waiting};" in told["calls that wait for a worker"]
    assert calls.waiting_per_client * 4 == calls.waiting
    assert calls.waiting_bytes == sessions.held_bytes == 1 << 30
    assert told["calls open"] == f"{front._MAX_OPEN}, of one client {front._MAX_OPEN_PER_CLIENT}"
    assert f"{sessions.sessions}, of one client {sessions.sessions_per_client}" in told["sessions"]
    assert f"after {sessions.idle_timeout_s / 60:g} min" in told["sessions"]
    assert f"{environment_service.MAX_BATCH_PLANS} plans" in told["a batch"]
    assert f"{environment_service._MAX_BATCH_OPS:,} ops" in told["a batch"]
    assert f"{JobLimits().waiting} more wait" in told["jobs"]
    assert JobLimits().failed_attempts == 5
    assert "after five starts" in TEXT
    assert Retry().tries == 8
    assert "eight times" in TEXT
    assert f"have {server._FINISH_S:g} s to end by themselves" in TEXT


def test_the_request_of_the_shell_example_is_a_request() -> None:
    (data,) = re.findall(r"-d '(\{.*?\n\})'", TEXT, re.DOTALL)
    request = json_format.Parse(data, optimizer_pb2.OptimizeRequest())
    assert graph_from_proto(request.graph).num_ops == 2
