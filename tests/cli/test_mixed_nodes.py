"""``optimize gpt:… --target CLUSTER.toml``: a model over mixed nodes, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.go_opt.serving.test_mixed import PAIR
from tests.serving import serve_in_thread

MODEL = "gpt:hidden=8,layers=4,heads=1,sequence=1"


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(PAIR)
    return path


def test_a_plan_is_made_and_verified(cli: Cli, cluster: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    answer = cli("optimize", MODEL, "--target", str(cluster), "--out", str(plan), "--json").json
    assert answer["throughput_per_s"] == pytest.approx(6.0)
    assert answer["status"] == "OPTIMAL"
    assert [node["kind"] for node in answer["nodes"]] == ["fast", "slow", "slow"]
    assert "valid: 6.0 tokens/s" in cli("verify", MODEL, str(plan)).out
    assert "bound       6.0 tokens/s" in cli("evaluate", MODEL, str(plan)).out


def test_a_service_finds_the_same(cli: Cli, cluster: Path) -> None:
    here = cli("optimize", MODEL, "--target", cluster, "--json").json
    with serve_in_thread() as address:
        there = cli("optimize", MODEL, "--target", cluster, "--json", "--server", address).json
    for answer in (here, there):
        del answer["wall_s"]
    assert there == here


def test_helix_form_is_written(cli: Cli, cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "ilp_sol.ini"
    cli("optimize", MODEL, "--target", str(cluster), "--out", str(out))
    assert out.read_text().startswith("[Settings]\noffset=2\n")


def test_what_is_refused(cli: Cli, cluster: Path, tmp_path: Path) -> None:
    refused = cli("optimize", MODEL, "--target", cluster, "--max-latency", "1ms")
    refused.is_refused("--max-latency is not for a model gpt:… on a cluster of nodes")
    few = cli("optimize", MODEL.replace("layers=4", "layers=8"), "--target", cluster)
    few.is_refused("hold 7 layers together, the model has 8", code=3)
    plan = tmp_path / "plan.json"
    assert cli("optimize", MODEL, "--target", cluster, "--out", plan).code == 0
    cluster.write_text(PAIR.replace("10, 6", "10, 7"))
    cli("verify", MODEL, plan).is_refused("another target")
