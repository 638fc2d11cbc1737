"""Constraints and measured costs on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from go_opt.model.codecs.plan_json import load_plan
from go_opt.service.workers.optimizer import LocalOptimizer, OptimizerService
from tests.cli.conftest import Cli, graph_file
from tests.serving import serve_in_thread

FEW = ("--max-evaluations", "6", "--policy", "none", "--target", "mcm-2x2")
ASKED = """
[[pin]]
ops = "op1"
chip = 0
[[cut_after]]
ops = "op[12]"
[[limit]]
chip = 3
at_most_s = 0
"""


def files(constraints: str = ASKED) -> tuple[Path, Path]:
    """A model, and constraints."""
    asked = Path("asked.toml")
    asked.write_text(constraints, "utf-8")
    return graph_file(Path("chain.json"), num_ops=6), asked


def test_constraints_are_kept_and_judged(cli: Cli) -> None:
    model, asked = files()
    found = cli("optimize", model, *FEW, "--constraints", asked, "--out", "plan.json", "--json").json
    assert found["placement"][0] == 0
    assert found["placement"][2] > found["placement"][1]
    assert 3 not in found["placement"]
    assert cli("verify", model, "plan.json", "--constraints", asked).code == 0
    assert cli("evaluate", model, "plan.json", "--constraints", asked).code == 0
    asked.write_text('[[pin]]\nops = "op1"\nchip = 2\n', "utf-8")
    run = cli("verify", model, "plan.json", "--constraints", asked)
    assert run.code == 3
    assert run.out == "pin: pin 'op1' to chip 2: op 'op1' is on chip 0.\n"
    judged = cli("evaluate", model, "plan.json", "--constraints", asked, "--json")
    assert judged.code == 3
    assert json.loads(judged.out)["reason"] == "pin 'op1' to chip 2: op 'op1' is on chip 0."


def test_op_types_and_numbers_of_ops(cli: Cli) -> None:
    model, asked = files('[[forbid]]\nop_types = "Re.u"\nchips = [0, 1, 2, 3]\n')
    free = cli("optimize", model, *FEW, "--no-replication", "--out", "free.json", "--json").json
    assert free["placement"].count(0) > 0
    assert cli("verify", model, "free.json", "--constraints", asked).code == 3
    run = cli("optimize", model, *FEW, "--constraints", asked)
    run.is_refused("forbid all Re.u chips 0, 1, 2, 3 leave op 'op1' no chip of mcm-2x2.", code=3)
    asked.write_text("[[limit]]\nchip = 0\nat_most_ops = 2\n", "utf-8")
    found = cli("optimize", model, *FEW, "--constraints", asked, "--out", "plan.json", "--json").json
    assert 1 <= found["placement"].count(0) <= 2
    assert cli("verify", model, "plan.json", "--constraints", asked).code == 0
    asked.write_text("[[limit]]\nchip = 1\nat_most_kernels = 0\n", "utf-8")
    found = cli("optimize", model, *FEW, "--constraints", asked, "--out", "plan.json", "--json").json
    assert 1 not in found["placement"]
    assert cli("verify", model, "plan.json", "--constraints", asked).code == 0
    asked.write_text('[[pin]]\nop_types = "Relv"\nchip = 1\n', "utf-8")
    cli("optimize", model, *FEW, "--constraints", asked).is_refused(
        "pin all Relv to chip 1: 'Relv' matches no op type; did you mean 'Relu'?"
    )


def test_a_number_of_stages(cli: Cli) -> None:
    model, asked = files("[[stages]]\ncount = 3\n")
    found = cli("optimize", model, *FEW, "--stages", 3, "--out", "plan.json", "--json").json
    assert len(set(found["placement"])) == 3
    assert cli("verify", model, "plan.json", "--constraints", asked).code == 0
    asked.write_text("[[stages]]\ncount = 2\n", "utf-8")
    run = cli("verify", model, "plan.json", "--constraints", asked)
    assert (run.code, run.out) == (3, "stages: exactly 2 stages: the plan has 3.\n")
    run = cli("optimize", model, *FEW, "--stages", 3, "--constraints", asked)
    run.is_refused("no plan has exactly 2 stages and exactly 3 stages.", code=3)
    cli("optimize", model, *FEW, "--stages", 9).is_refused("exactly 9 stages: there are only 4", code=3)
    cli("optimize", model, *FEW, "--stages", 0).is_refused("count must be a whole number of 1 or more, not 0")


def test_a_conflict_ends_with_its_names(cli: Cli) -> None:
    model, asked = files(ASKED + '[[pin]]\nops = "op5"\nchip = 0\n')
    run = cli("optimize", model, *FEW, "--constraints", asked)
    run.is_refused("pin 'op5' to chip 0 and cut after 'op[12]'", "rules of mcm-2x2", code=3)


def test_mistakes_are_one_sentence(cli: Cli) -> None:
    model, asked = files('[[pin]]\nops = "op9"\nchip = 1\n')
    cli("optimize", model, *FEW, "--constraints", asked).is_refused("'op9' matches no op; did you mean")
    asked.write_text("[[pin]]\nop = 'op1'\n", "utf-8")
    cli("optimize", model, *FEW, "--constraints", asked).is_refused("asked.toml", "pin[0].ops is missing")
    cli("optimize", model, *FEW, "--constraints", "none.toml").is_refused("none.toml", "cannot be read")
    cli("optimize", model, *FEW, "--costs", "none.csv").is_refused("none.csv", "cannot be read")


def test_measured_costs_are_what_ops_cost(cli: Cli) -> None:
    model, _ = files()
    costs = Path("costs.csv")
    costs.write_text("op,kind,seconds\nop3,*,1.5\n", "utf-8")
    asked = (*FEW, "--no-replication", "--costs", costs)
    found = cli("optimize", model, *asked, "--out", "plan.json", "--json").json
    assert found["interval_s"] >= 1.5
    assert cli("verify", model, "plan.json", "--costs", costs).code == 0
    assert cli("evaluate", model, "plan.json", "--costs", costs, "--json").json["interval_s"] >= 1.5
    for command in ("verify", "evaluate"):
        cli(command, model, "plan.json").is_refused("with the measured costs 'costs.csv'", "with --costs.")
    Path("other.csv").write_text("op,kind,seconds\nop3,*,2.5\nfolded,*,1\n", "utf-8")
    other = cli("verify", model, "plan.json", "--costs", "other.csv")
    other.is_refused("give --costs costs.csv.")
    costs.write_text("op,kind,seconds\nop3,chip,-1\n", "utf-8")
    cli("optimize", model, *FEW, "--costs", costs).is_refused("costs.csv', line 2")
    assert len(load_plan(Path("plan.json")).placement) == 6


def test_a_service_is_asked_the_same(cli: Cli) -> None:
    model, asked = files()
    with serve_in_thread((OptimizerService(LocalOptimizer()),)) as address:
        server = ("--server", address)
        found = cli("optimize", model, *FEW, *server, "--constraints", asked, "--out", "plan.json", "--json")
        here = cli("optimize", model, *FEW, "--constraints", asked, "--json")
        assert found.json["placement"] == here.json["placement"]
        assert cli("evaluate", model, "plan.json", *server, "--constraints", asked).code == 0
        asked.write_text('[[pin]]\nops = "op1"\nchip = 2\n', "utf-8")
        assert cli("evaluate", model, "plan.json", *server, "--constraints", asked).code == 3
        asked.write_text('[[pin]]\nops = "op9"\nchip = 1\n', "utf-8")
        cli("optimize", model, *FEW, *server, "--constraints", asked).is_refused("'op9' matches no op")
