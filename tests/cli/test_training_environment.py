"""``--environment`` of the commands that train: a service, and what is none."""

from __future__ import annotations

import pytest

from go_opt.agents.training.problems.environment import LocalEnvironment
from go_opt.service.environment.environment_service import EnvironmentService
from tests.cli.conftest import Cli
from tests.serving import serve_in_thread

FINETUNE = ("finetune", "zoo:din", "--policy", "none", "--samples", "1", "--out", "run")
PRETRAIN = ("pretrain", "--graph", "zoo:din", "--samples", "1", "--out", "run")


@pytest.mark.parametrize("command", [FINETUNE, PRETRAIN])
def test_nobody_there(cli: Cli, command: tuple[str, ...]) -> None:
    with serve_in_thread([EnvironmentService()]) as address:
        pass
    cli(*command, "--environment", address).is_refused(f"no environment answers at {address}", code=4)


@pytest.mark.parametrize("command", [FINETUNE, PRETRAIN])
@pytest.mark.parametrize("name", ["measured", "a b:1", ":1", "host:99999"])
def test_no_such_environment(cli: Cli, command: tuple[str, ...], name: str) -> None:
    cli(*command, "--environment", name).is_refused("HOST:PORT", name)


def test_a_service_without_hardware(cli: Cli) -> None:
    with serve_in_thread([EnvironmentService({("analytical", "throughput"): LocalEnvironment()})]) as address:
        run = cli(*FINETUNE, "--environment", address)
    assert run.code == 4
    sentence = run.err[-1]
    assert sentence.startswith("go-opt: RemoteEnvironment for 'din' on 'mcm-6x6' cannot be opened: ")
    assert "does not serve hardware, but analytical" in sentence
