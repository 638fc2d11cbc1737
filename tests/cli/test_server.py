"""Commands that ask a service: plans, training jobs, and who may ask."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from go_opt import api
from go_opt.env import Target
from go_opt.model.graph import Graph
from go_opt.result import OptimizeResult
from go_opt.service.calls.security import Security
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.jobs.manager import JobManager
from go_opt.service.jobs.services import OperationsService, TrainingService
from go_opt.service.jobs.store import DataDirectory
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService
from tests.certificates import Authority
from tests.cli.conftest import Cli, graph_file
from tests.cli.test_process import PATIENCE_S, start
from tests.contract.conftest import FAKE_JOB
from tests.serving import serve_in_thread

TOKEN: Final = "0123456789abcdef"
FINETUNE: Final = ("finetune", "m.json", "--policy", "none", "--target", "mcm-2x2", "--samples", "2")
ENDLESS: Final = (*FINETUNE[:-1], "2000")
RESTLESS: Final = 7  # the seed of a search that always has a better plan to tell of


class Doors:
    """What the service searches with.

    Of a real search nobody knows when the last better plan comes, be it within the first second,
    which the command keeps quiet about; and then it says nothing more.
    """

    evaluate = staticmethod(api.evaluate)

    def __init__(self) -> None:
        self.was_told_to_stop = threading.Event()

    def optimize(
        self,
        graph: Graph,
        target: Target,
        *,
        on_improvement: Callable[[OptimizeResult], None],
        should_stop: Callable[[], bool],
        **options: Any,
    ) -> OptimizeResult:
        if options["seed"] != RESTLESS:
            calls = {"on_improvement": on_improvement, "should_stop": should_stop}
            return api.optimize(graph, target, **calls, **options)
        result = api.optimize(graph, target, **options | {"max_evaluations": 1})
        while not should_stop():
            result = replace(result, wall_s=result.wall_s + 1)
            on_improvement(result)
            time.sleep(0.05)
        self.was_told_to_stop.set()
        return result


@pytest.fixture(scope="module")
def doors() -> Doors:
    return Doors()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, doors: Doors) -> Iterator[tuple[str, ...]]:
    """The options that reach a service which asks for a certificate and a token."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    its, mine = authority.issue("service"), authority.issue("client")
    (folder / "tokens").write_text(f"tester {TOKEN}\n", "ascii")
    (folder / "tokens").chmod(0o600)
    (folder / "token").write_text(f"{TOKEN}\n", "ascii")
    manager = JobManager(DataDirectory(folder / "data"), LocalRunner(FAKE_JOB))
    services = (
        OptimizerService(LocalOptimizer(doors), find_policy=manager.find_policy),
        TrainingService(manager),
        OperationsService(manager),
    )
    security = Security(its.cert, its.key, authority.cert, folder / "tokens")
    try:
        with serve_in_thread(services, security=security) as address:
            files = ("--tls-ca", authority.cert, "--tls-cert", mine.cert, "--tls-key", mine.key)
            yield ("--server", address, *map(str, files), "--token-file", str(folder / "token"))
    finally:
        manager.close()


@pytest.fixture(autouse=True)
def model(tmp_path: Path) -> Path:
    return graph_file(tmp_path / "m.json", num_ops=6)


def without_clock(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("wall_s", "history")}


def test_the_same_plan_and_costs(cli: Cli, secured: tuple[str, ...]) -> None:
    optimize = ("optimize", "m.json", "--target", "mcm-2x2", "--max-evaluations", "5", "--json")
    here = cli(*optimize, "--out", "plan.json").json
    assert without_clock(cli(*optimize, *secured).json) == without_clock(here)
    evaluate = ("evaluate", "m.json", "plan.json", "--json")
    assert cli(*evaluate, *secured).json == cli(*evaluate).json


def test_what_a_search_begins_with(cli: Cli, secured: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text("op1,1\nop6,3\n")
    optimize = ("optimize", "m.json", "--target", "mcm-2x2", "--max-evaluations", "3", "--json")
    here = cli(*optimize, "--placement", "split.csv", "--out", "plan.json")
    there = cli(*optimize, "--placement", "split.csv", *secured)
    assert here.err[0] == there.err[0] == "start: 2 of 6 ops; the others follow their neighbours"
    assert without_clock(there.json) == without_clock(here.json)
    begun = (*optimize, "--start", "plan.json", "--seed", "5")
    assert without_clock(cli(*begun, *secured).json) == without_clock(cli(*begun).json)


def test_the_fewest_chips(cli: Cli, secured: tuple[str, ...]) -> None:
    optimize = ("optimize", "m.json", "--target", "mcm-2x2", "--max-evaluations", "5", "--json")
    optimize = (*optimize, "--policy", "none", "--fewest-chips", "--max-latency", "1s")
    here, there = cli(*optimize), cli(*optimize, *secured)
    assert without_clock(there.json) == without_clock(here.json)
    assert there.err[-1] == here.err[-1] == "chips       1 of 4; there is no package with fewer."
    assert sorted(there.err) == sorted(here.err)
    cli(*optimize[:-2], *secured).is_refused("give a rate or a latency")


def test_the_token_of_the_environment(
    cli: Cli, secured: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_token = secured[:-2]
    monkeypatch.delenv("GO_OPT_TOKEN", raising=False)
    cli("jobs", "list", *without_token).is_refused("token", "(request ", code=4)
    monkeypatch.setenv("GO_OPT_TOKEN", TOKEN)
    assert cli("jobs", "list", "--json", *without_token).code == 0


def test_a_job_from_its_start_to_its_deletion(cli: Cli, secured: tuple[str, ...]) -> None:
    started = cli(*FINETUNE, "--name", "mine", *secured)
    assert started.code == 0, started.err
    name = started.out.strip()
    assert name.startswith("operations/")
    done = cli("jobs", "wait", name, "--out", "best.json", "--json", *secured).json
    assert (done["name"], done["policy"], done["state"]) == (name, "mine", "SUCCEEDED")
    evaluated = cli("evaluate", "m.json", "best.json", "--json").json
    assert evaluated["interval_s"] == done["best_interval_s"]
    assert cli("jobs", "get", name, "--json", *secured).json["step"] == 2
    assert "finetune of 'mine', SUCCEEDED" in cli("jobs", "get", name, *secured).out
    assert [job["name"] for job in cli("jobs", "list", "--json", *secured).json] == [name]
    assert name in cli("jobs", "list", *secured).out
    assert cli("jobs", "delete", name, *secured).code == 0
    assert cli("jobs", "list", "--json", *secured).json == []
    cli("jobs", "get", name, *secured).is_refused(name)


def test_a_job_that_is_waited_for(cli: Cli, secured: tuple[str, ...]) -> None:
    run = cli("pretrain", "--name", "wide", "--samples", "10", "--lesson", "placement", "--wait", *secured)
    assert run.code == 0, run.err
    assert run.err[0].startswith("operations/")
    assert "2/2" in run.err[-1]
    assert run.out.startswith("complete: 2 of 2 steps")
    assert run.out.splitlines()[-1] == "policy      wide"


def test_a_job_that_is_cancelled(cli: Cli, secured: tuple[str, ...]) -> None:
    name = cli(*ENDLESS, "--name", "endless", *secured).out.strip()
    cli("jobs", "delete", name, *secured).is_refused(name, "has not ended")
    assert cli("jobs", "cancel", name, *secured).code == 0
    waited = cli("jobs", "wait", name, *secured)
    assert waited.code == 4
    assert "cancelled" in waited.err[-1]
    cli("jobs", "wait", name, "--out", "no/plan.json", *secured).is_refused("--out", "'no'")


def test_ctrl_c_leaves_the_job(
    cli: Cli, user_env: dict[str, str], secured: tuple[str, ...], tmp_path: Path
) -> None:
    with start(user_env, tmp_path, *ENDLESS, "--name", "left", "--wait", *secured) as process:
        assert process.stderr is not None
        name = next(line for line in process.stderr if line.startswith("operations/")).strip()
        next(line for line in process.stderr if line.startswith("step "))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err == (
        f"go-opt: {name} goes on; `go-opt jobs wait {name} --server {secured[1]}` comes back to it.\n"
    )
    assert cli("jobs", "get", name, "--json", *secured).json["state"] == "RUNNING"
    cli("jobs", "cancel", name, *secured)
    cli("jobs", "wait", name, *secured)


def test_ctrl_c_keeps_the_best_plan_sent(
    user_env: dict[str, str], secured: tuple[str, ...], doors: Doors, tmp_path: Path
) -> None:
    search = ("optimize", "m.json", "--seed", str(RESTLESS), "--json", "--out", "plan.json")
    with start(user_env, tmp_path, *search, *secured) as process:
        assert process.stderr is not None
        # There is a plan; one that the first line shows may come before kernels are compiled.
        assert any("best interval" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    answer = json.loads(out)
    assert answer["placement"] == json.loads((tmp_path / "plan.json").read_text("utf-8"))["placement"]
    assert answer["history"]
    assert doors.was_told_to_stop.wait(30)


SERVER = ("--server", "127.0.0.1:1")
REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no server": (("optimize", "m.json", "--tls-ca", "ca.pem"), ("--tls-ca", "--server")),
    "no server to evaluate": (("evaluate", "m.json", "p.json", "--tls"), ("--tls", "--server")),
    "no certificate": (("jobs", "list", "--tls-ca", "no.pem"), ("tls_ca", "no.pem", "No such file")),
    "half a pair": (("jobs", "list", "--tls", "--tls-key", "a.key"), ("tls_cert", "tls_key")),
    "no token file": (("jobs", "list", "--token-file", "no.txt"), ("--token-file", "no.txt")),
    "token of two words": (("jobs", "list", "--token-file", "m.json"), ("token", "printable")),
    "no name": ((*FINETUNE, *SERVER), ("--server needs --name",)),
    "folder at a service": ((*FINETUNE, *SERVER, "--name", "a", "--out", "run"), ("--out", "this machine")),
    "threads at a service": (("pretrain", *SERVER, "--name", "a", "--workers", "2"), ("--workers",)),
    "split at a service": (("pretrain", *SERVER, "--name", "a", "--split", "test"), ("--split",)),
    "name without a service": ((*FINETUNE, "--out", "run", "--name", "a"), ("--name needs --server",)),
    "wait without a service": ((*FINETUNE, "--out", "run", "--wait"), ("--wait needs --server",)),
    "no folder": (FINETUNE, ("--out is missing",)),
    "address": (("jobs", "list", "--server", "here"), ("HOST:PORT", "'here'")),
    "out": (("jobs", "wait", "operations/1", "--out", "no/p.json"), ("--out", "'no'")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(cli: Cli, case: str) -> None:
    args, words = REFUSED[case]
    cli(*args).is_refused(*words)


def test_a_token_for_a_far_service_that_is_not_encrypted(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    run = cli("jobs", "list", "--server", "192.0.2.1:50051", "--token-file", "token")
    run.is_refused("token", "192.0.2.1:50051", "unencrypted")
    assert os.environ.get("GO_OPT_TOKEN") is None
