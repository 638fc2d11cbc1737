"""``design``: links, memory and orders of chips, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

QUICK = ("--max-evaluations", "20", "--objective", "latency")


def test_links_are_added_and_the_target_is_used(cli: Cli, tmp_path: Path) -> None:
    mine, plan = tmp_path / "mine.toml", tmp_path / "plan.json"
    asked = ("--budget", "+2 links", *QUICK, "-o", mine, "--plan", plan)
    run = cli("design", "mcm-2x2", "zoo:shufflenet", *asked, "--json")
    assert "the triangle rule is of rings" in run.err[0]
    (package,) = run.json["packages"]
    assert package["lower_bound_s"] <= package["objective_s"] <= package["before_s"]
    assert len(package["links"]) <= 2
    assert cli("verify", "zoo:shufflenet", plan).code == 0
    metrics = cli("evaluate", "zoo:shufflenet", plan, "--json").json
    assert metrics["makespan_s"] == pytest.approx(package["objective_s"])
    start = ("--start", plan, "--target", mine, "--policy", "none")
    ordinary = cli("optimize", "zoo:shufflenet", *start, *QUICK, "--json").json
    assert package["lower_bound_s"] * (1 - 1e-9) <= ordinary["makespan_s"]
    assert ordinary["makespan_s"] <= package["objective_s"] * (1 + 1e-9)


def test_sizes_of_memory(cli: Cli) -> None:
    asked = ("mcm-2x2", "zoo:shufflenet", "--max-evaluations", "10", "--memory", "4MB,32MB")
    answer = cli("design", *asked, "--json").json
    assert [one["package"] for one in answer["packages"]] == [f"mcm-2x2, {size}MB a chip" for size in (4, 32)]
    small, large = (one["objective_s"] for one in answer["packages"])
    assert large <= small
    assert "best " in cli("design", *asked).out


def test_what_is_refused(cli: Cli) -> None:
    model = "zoo:shufflenet"
    cli("design", "mcm-2x2", model).is_refused("give --budget '+8 links', --memory or --order")
    cli("design", "mcm-2x2", model, "--budget", "5s").is_refused("--budget must be links to add")
    cli("design", "mcm-2x2:paper", model, "--budget", "1 link").is_refused("with all their effects")
    cli("design", "gpu-2", model, "--budget", "1 link").is_refused("linked to the host alone")
    cli("design", "mcm-2x2", model, "--budget", "1 link", "--plan", "p.json").is_refused("--plan needs --out")
    cli("design", "mcm-2x2", model, "--order", "3*chip").is_refused("must have the chips 4*chip")
    cli("design", "mcm-2x2", model, "--memory", "much").is_refused("--memory must be an amount")
