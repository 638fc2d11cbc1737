"""``go-opt chips`` and ``go-opt optimize --fewest-chips``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli

COMMON = ("zoo:mobilenet_v2", "--target", "mcm-2x2", "--max-evaluations", "10", "--policy", "none")


def test_the_table_has_a_row_for_each_count(cli: Cli) -> None:
    run = cli("chips", *COMMON, "--counts", "1,4")
    assert [line.split()[0] for line in run.out.splitlines()] == ["chips", "1", "4"]
    assert any(line.startswith("4 chips: interval") for line in run.err)


def test_the_fewest_chips_of_a_rate_that_the_table_has(cli: Cli) -> None:
    (row,) = cli("chips", *COMMON, "--counts", "2", "--json").json
    assert row["chips"] == 2
    assert row["interval_s"] >= row["lower_bound_s"]
    rate = f"{0.9 / row['interval_s']}/s"
    run = cli("optimize", *COMMON, "--fewest-chips", "--rate", rate, "--json")
    assert run.json["chips_used"] == 2
    assert run.err[-1] == "chips       2 of 4; 1 chip is proven to be too few."


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["optimize", "zoo:mobilenet_v2", "--fewest-chips"], "give a rate or a latency"),
        (["optimize", "zoo:mobilenet_v2", "--fewest-chips", "--rate", "x"], "--rate must be a rate"),
        (["chips", "zoo:mobilenet_v2", "--counts", "1,x"], "--counts must be whole numbers"),
        (["chips", "zoo:mobilenet_v2", "--counts", "0"], "which has 1 to 36"),
    ],
)
def test_wrong_options_are_refused(cli: Cli, options: list[str], reason: str) -> None:
    cli(*options).is_refused(reason)
