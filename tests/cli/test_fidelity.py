"""The simulated fidelity on the command line: what it prints, refuses and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import go_opt
from go_opt.env import target_text
from go_opt.model.codecs.graph_json import graph_to_dict
from go_opt.model.codecs.plan_json import save_plan
from tests.cli.conftest import Cli, graph_file
from tests.cli.test_end_to_end import without_clock
from tests.env.simulator.test_deadlock import detour
from tests.serving import serve_in_thread
from tests.strategies import make_plan

SIMULATED = ("--fidelity", "simulated")
CAUSES = ("input", "host", "output", "weights")


@pytest.fixture
def planned(cli: Cli, tmp_path: Path) -> None:
    """A chain with a plan on four chips, in the folder the command line runs in."""
    graph_file(tmp_path / "chain.json", num_ops=12)
    args = ("--target", "mcm-2x2", "--max-evaluations", "3", "--decide", "placement", "--out", "plan.json")
    assert cli("optimize", "chain.json", *args).code == 0


def changed_plan(placement: list[int], target: str = "mcm-2x2") -> None:
    """Another plan for the chain, as ``changed.json``."""
    graph, on = go_opt.load("chain.json"), go_opt.target(target)
    save_plan(make_plan(graph, on, placement), "changed.json")


@pytest.mark.usefixtures("planned")
def test_evaluate(cli: Cli) -> None:
    analytical = cli("evaluate", "chain.json", "plan.json", "--json").json
    assert analytical["simulation"] is None
    answer = cli("evaluate", "chain.json", "plan.json", *SIMULATED, "--json").json
    assert answer.keys() == analytical.keys()
    assert answer["valid"]
    assert answer["interval_s"] >= analytical["interval_s"]
    simulation = answer["simulation"]
    assert [len(simulation["stall_s"][cause]) for cause in CAUSES] == [4] * 4
    assert list(simulation["stall_s"]) == [*CAUSES]
    assert len(simulation["utilisation"]) == 4
    assert len(simulation["link_utilisation"]) == len(simulation["link_wait_s"]) == 6
    assert max(simulation["utilisation"] + simulation["link_utilisation"]) <= 1 + 1e-9
    assert simulation["period"] >= 1
    assert simulation["inferences"] >= 8

    shown = cli("evaluate", "chain.json", "plan.json", *SIMULATED).out
    for word in (
        "utilisation",
        "waits for weights",
        "tensors wait",
        "link 0->1",
        "repeats after",
        "bottleneck",
    ):
        assert word in shown
    assert "utilisation" not in cli("evaluate", "chain.json", "plan.json").out


@pytest.mark.usefixtures("planned")
def test_a_seed_draws_noise(cli: Cli) -> None:
    def interval_s(*seed: str) -> float:
        return float(
            cli("evaluate", "chain.json", "plan.json", *SIMULATED, *seed, "--json").json["interval_s"]
        )

    exact, first = interval_s(), interval_s("--seed", "1")
    assert first == interval_s("--seed", "1")
    assert len({exact, first, interval_s("--seed", "2")}) == 3
    assert first == pytest.approx(exact, rel=0.05)


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("fidelity", ["simulated", "analytical"])
def test_a_broken_constraint_is_an_answer(cli: Cli, fidelity: str) -> None:
    changed_plan([1] * 12)
    run = cli("evaluate", "chain.json", "changed.json", "--fidelity", fidelity, "--json")
    assert run.code == 3
    answer = json.loads(run.out)
    assert not answer["valid"]
    assert "chip 0" in answer["reason"]


@pytest.mark.usefixtures("planned")
def test_what_does_not_run(cli: Cli) -> None:
    small = target_text("mcm-2x2").replace("sram_bytes = 32_000_000", "sram_bytes = 20_000")
    Path("small.toml").write_text(small, "utf-8")
    changed_plan([0] * 12, "small.toml")
    run = cli("evaluate", "chain.json", "changed.json", *SIMULATED, "--json")
    assert run.code == 3
    answer = json.loads(run.out, parse_constant=pytest.fail)
    assert [answer[name] for name in ("interval_s", "latency_s", "makespan_s", "valid")] == [
        None,
        None,
        None,
        False,
    ]
    assert "out of memory" in answer["reason"]
    run = cli("evaluate", "chain.json", "changed.json", *SIMULATED)
    assert run.code == 3
    assert "does not run, INVALID: out of memory" in run.out
    trace = cli("trace", "chain.json", "changed.json", "-o", "trace.json")
    trace.is_refused("nothing to trace", "out of memory", code=3)
    assert not Path("trace.json").exists()


@pytest.mark.usefixtures("planned")
def test_optimize(cli: Cli) -> None:
    args = ("optimize", "chain.json", "--target", "mcm-2x2", "--max-evaluations", "6", "--json", *SIMULATED)
    answer = cli(*args, "--out", "best.json").json
    assert (answer["status"], answer["lower_bound_s"], answer["gap"]) == ("HEURISTIC", 0, None)
    assert "simulated" in answer["bound_reason"]
    assert answer["evaluations"] <= 6
    again = cli("evaluate", "chain.json", "best.json", *SIMULATED, "--json").json
    assert again == {name: answer[name] for name in again}
    assert without_clock(cli(*args).json) == without_clock(answer)
    shown = cli(*args[:-3], *SIMULATED).out
    for word in ("HEURISTIC", "gap unknown", "none is proven", "utilisation"):
        assert word in shown


@pytest.mark.usefixtures("planned")
def test_a_service_simulates_too(cli: Cli) -> None:
    args = ("optimize", "chain.json", "--target", "mcm-2x2", "--max-evaluations", "4", "--json", *SIMULATED)
    here = cli(*args).json
    with serve_in_thread() as address:
        assert without_clock(cli(*args, "--server", address).json) == without_clock(here)


@pytest.mark.parametrize("command", [("optimize", "chain.json"), ("evaluate", "chain.json", "plan.json")])
@pytest.mark.usefixtures("planned")
def test_a_bad_fidelity(cli: Cli, command: tuple[str, ...]) -> None:
    cli(*command, "--fidelity", "exact").is_refused("fidelity", "exact", "analytical", "simulated")


@pytest.mark.usefixtures("planned")
def test_a_bad_seed(cli: Cli) -> None:
    cli("evaluate", "chain.json", "plan.json", *SIMULATED, "--seed", "-1").is_refused("seed", "-1")


# --------------------------------------------------------------------------- trace


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("fidelity", ["simulated", "analytical"])
def test_trace(cli: Cli, fidelity: str) -> None:
    run = cli(
        "trace", "chain.json", "plan.json", "--out", "trace.json", "--fidelity", fidelity, "--inferences", "5"
    )
    assert run.code == 0, run.err
    assert run.out.startswith("trace.json: 5 inferences, 60 kernels, ")
    trace = json.loads(Path("trace.json").read_text("utf-8"), parse_constant=pytest.fail)
    assert trace["otherData"] == {
        "model": "chain",
        "target": "mcm-2x2",
        "fidelity": fidelity,
        "interval_s": cli("evaluate", "chain.json", "plan.json", "--fidelity", fidelity, "--json").json[
            "interval_s"
        ],
    }
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    assert len(kernels) == 60
    assert {event["args"]["ops"] for event in kernels} == {f"op{i}" for i in range(1, 13)}


@pytest.mark.usefixtures("planned")
def test_a_trace_is_simulated_by_default(cli: Cli) -> None:
    assert cli("trace", "chain.json", "plan.json", "-o", "trace.json").out.startswith(
        "trace.json: 16 inferences"
    )
    assert json.loads(Path("trace.json").read_text("utf-8"))["otherData"]["fidelity"] == "simulated"
    assert cli("trace", "chain.json", "plan.json", "-o", os.devnull).code == 0


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-o", "no/trace.json"], ("no", "does not exist")),
        (["-o", "."], ("is a folder",)),
        ([], ("--out",)),
        (["-o", "t.json", "--inferences", "0"], ("inferences", "0")),
        (["-o", "t.json", "--inferences", "1000000"], ("inferences", "10000")),
        (["-o", "t.json", "--fidelity", "exact"], ("fidelity", "exact")),
        (["-o", "t.json", "--target", "gpu-2"], ("another target",)),
    ],
    ids=str,
)
def test_a_trace_that_is_refused(cli: Cli, args: list[str], words: tuple[str, ...]) -> None:
    cli("trace", "chain.json", "plan.json", *args).is_refused(*words)
    assert not Path("t.json").exists()


@pytest.mark.usefixtures("planned")
def test_a_trace_of_a_broken_plan(cli: Cli) -> None:
    changed_plan([1] * 12)
    run = cli("trace", "chain.json", "changed.json", "-o", "t.json")
    run.is_refused("nothing to trace", "chip 0", code=3)
    assert not Path("t.json").exists()


def test_a_trace_that_ends_in_a_deadlock(cli: Cli, tmp_path: Path) -> None:
    graph = detour(2)
    (tmp_path / "detour.json").write_text(json.dumps(graph_to_dict(graph)), "utf-8")
    target = go_opt.target("mcm-6x6")
    save_plan(make_plan(graph, target, range(4)), tmp_path / "plan.json")
    run = cli("trace", "detour.json", "plan.json", "-o", "t.json")
    assert run.code == 3
    assert run.out.startswith("t.json: ")
    assert len(run.err) == 1
    assert run.err[0].startswith("go-opt: the trace ends in a deadlock: link ")
    assert json.loads(Path("t.json").read_text("utf-8"))["otherData"]["interval_s"] is None


# --------------------------------------------------------------------------- loads where it is asked for


def test_the_engine_loads_where_it_is_asked_for(user_env: dict[str, str], tmp_path: Path) -> None:
    graph_file(tmp_path / "chain.json", num_ops=12)
    # Plans for throughput may stream weights, whose waits are simulated.
    code = """
import sys
asked = ["--objective", "latency", "--max-evaluations", "3", "--no-simulate"]
sys.argv = ["go-opt", "optimize", "chain.json", *asked, "--json"]
from go_opt.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
print(*(name for name in sys.modules if name.startswith("go_opt.env.simulator.")), file=sys.stderr)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], env=user_env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stderr.splitlines()[-1].strip() == ""
