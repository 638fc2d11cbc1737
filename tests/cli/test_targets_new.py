"""``targets new``: figures by questions or by ``--set``, checked at once, written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from go_opt.cli.inputs.machine import FIGURES, TOPOLOGIES
from go_opt.env import load_target
from tests.cli.conftest import Cli, graph_file


def test_figures_of_options(cli: Cli, tmp_path: Path) -> None:
    figures = ("topology=chain", "chips=3", "memory_bytes=24GB", "matrix_flops_per_s=2.5 TFLOPS")
    more = ("link_bytes_per_s=400 Gbit/s", "link_latency_s=0", "overlap=no", "native_dtype=fp16", "name=a=b")
    more += ("dependency_overhead_s=1.5us",)
    settings = [part for figure in figures + more for part in ("--set", figure)]
    assert cli("targets", "new", "-o", "box.toml", *settings).code == 0
    target = load_target(tmp_path / "box.toml")
    (kind,) = target.kinds
    assert (target.name, target.num_chips, target.topology.kind) == ("a=b", 3, "chain")
    assert (target.native_dtype, target.overlap, target.constraints.acyclic) == ("float16", False, True)
    assert (kind.sram_bytes, kind.dependency_overhead_s) == (24_000_000_000, 1.5e-6)
    assert dict(kind.matrix_flops_per_s) == {"float16": 2.5e12}
    assert dict(kind.vector_flops_per_s) == {"default": 10e12}
    assert target.topology.rate_bytes_per_s.tolist() == [50e9, 50e9]
    assert target.topology.latency_s.tolist() == [0, 0]
    lines = (tmp_path / "box.toml").read_text().splitlines()
    assert "latency_s = 0.0" in lines
    assert "rate_bytes_per_s = 50e9" in lines
    assert "kernel_overhead_s = 4e-6 # assumed" in lines
    assert sum(line.endswith("# assumed") for line in lines) == len(FIGURES) - 1 - len(settings) // 2
    made = cli("optimize", graph_file(tmp_path / "m.json"), "--target", "box.toml", "--max-evaluations", "2")
    assert made.code == 0


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_defaults_of_each_topology(cli: Cli, tmp_path: Path, topology: str) -> None:
    assert cli("targets", "new", "-o", "box.toml", "--set", f"topology={topology}").code == 0
    target = load_target(tmp_path / "box.toml")
    assert (target.name, target.num_chips, target.topology.kind) == ("box", 4, topology)
    assert target.goes_forward == (topology in ("ring", "chain"))


def test_questions(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["lab", "grid", "mesh2d", "0", "6", "4", "3", "", "12 furlongs", "12 TFLOPS", *[""] * 9, "no"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers) + "\n"))
    run = cli("targets", "new", "-o", "box.toml")
    assert run.code == 0
    said = "\n".join(run.err)
    for sentence in (
        "topology must be one of all_to_all, ring, chain, mesh2d, host_star, not 'grid'.",
        "chips must be a whole number from 1 to 4096, not '0'.",
        "columns must divide the 6 chips.",
        "matrix_flops_per_s must be an amount such as 120 TFLOPS, not '12 furlongs'.",
    ):
        assert said.count(sentence) == 1
    target = load_target(tmp_path / "box.toml")
    assert (target.name, target.num_chips, target.overlap) == ("lab", 6, False)
    assert target.topology.num_links == 2 * (3 + 2 * 2)
    assert dict(target.kinds[0].matrix_flops_per_s) == {"bfloat16": 12e12}


def test_answers_that_end_leave_no_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("lab\n"))
    assert cli("targets", "new", "-o", "box.toml").code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["chip=2"], "a target has no figure 'chip'; did you mean 'chips'?"),
        (["xyz=2"], "a target has no figure 'xyz'; known: name, topology"),
        (["chips"], "--set must be KEY=VALUE, not 'chips'."),
        (["chips=2", "chips=3"], "--set chips is given twice."),
        (["chips=2.5"], "chips must be a whole number from 1 to 4096, not '2.5'."),
        (["chips=300"], "chips must be at most 256 for all_to_all, not 300."),
        (["columns=2"], "columns is of a mesh2d only."),
        (["topology=mesh2d", "columns=3"], "columns must divide the 4 chips."),
        (["memory_bytes=0"], "memory_bytes must be above zero."),
        (["memory_bytes=24"], None),
        (["link_latency_s=-2us"], "link_latency_s must be an amount such as 5us, not '-2us'."),
        (["link_bytes_per_s=24GB"], "link_bytes_per_s must be an amount such as 300 GB/s, not '24GB'."),
        (["native_dtype=bf17"], "native_dtype: unknown dtype 'bf17'."),
        (["overlap=maybe"], "overlap must be yes or no, not 'maybe'."),
        (["name="], "name must not be empty."),
    ],
)
def test_a_mistake_is_one_sentence(
    cli: Cli, tmp_path: Path, settings: list[str], sentence: str | None
) -> None:
    run = cli("targets", "new", "-o", "box.toml", *(part for one in settings for part in ("--set", one)))
    if sentence is None:
        assert run.code == 0
    else:
        run.is_refused(sentence)
        assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_when_asked(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "box.toml").write_text("mine")
    command = ("targets", "new", "-o", "box.toml", "--set", "chips=2")
    cli(*command).is_refused("'box.toml' exists", "--overwrite replaces it.")
    assert (tmp_path / "box.toml").read_text() == "mine"
    assert cli(*command, "--force").code == 0
    assert load_target(tmp_path / "box.toml").num_chips == 2
    cli("targets", "new", "-o", "nowhere/box.toml", "--set", "chips=2").is_refused("'nowhere' does not exist")


def test_a_gpu_gets_figures_of_kernels(cli: Cli) -> None:
    figures = ("chips=1", "matrix_flops_per_s=362 TFLOPS", "memory_bytes_per_s=864GB/s", "processors=142")
    assert cli("targets", "new", "-o", "l40s.toml", *(f"--set={one}" for one in figures)).code == 0
    kernels = load_target("l40s.toml").kinds[0].kernels
    assert kernels is not None
    assert (kernels.tiles_at_once, kernels.matrix_share) == (142, 0.88)
    assert kernels.feed_bytes_per_s == pytest.approx(0.031 * 362e12)


def test_rates_of_op_types_and_what_figures_were_fitted_to(cli: Cli) -> None:
    rates = "flops_per_s_by_op_type=Conv=5 TFLOPS, com.microsoft.LSTM = 1 TFLOPS"
    figures = (rates, "fitted_to=50 products, 8% off", "native_dtype=int8", "processors=84")
    assert cli("targets", "new", "-o", "box.toml", *(f"--set={one}" for one in figures)).code == 0
    target = load_target("box.toml")
    assert target.fitted_to == "50 products, 8% off"
    of_types = {name: dict(rate) for name, rate in target.kinds[0].flops_per_s_by_op_type.items()}
    assert of_types == {"Conv": {"int8": 5e12}, "com.microsoft.LSTM": {"int8": 1e12}}
    assert target.kinds[0].kernels is not None
    for wrong in ("Conv", "Conv=", "=5 TFLOPS", "Conv=5 TFLOPS,Conv=6 TFLOPS", "Conv=fast"):
        cli("targets", "new", "-o", "b.toml", "--set", f"flops_per_s_by_op_type={wrong}").is_refused(
            "flops_per_s_by_op_type must be"
        )


def test_a_cluster_of_gpus(cli: Cli) -> None:
    figures = (
        "chips=4",
        "processors=100",
        "link_bytes_per_s=100GB/s",
        "devices=16",
        "not_op_types=LSTM, GRU",
    )
    assert cli("targets", "new", "-o", "lab.toml", *(f"--set={one}" for one in figures)).code == 0
    target = load_target("lab.toml")
    assert {one.op: one.link_bytes_per_s for one in target.collectives}["all_reduce"] == 176e9
    assert [(one.name, one.size, one.rate_bytes_per_s) for one in target.levels] == [
        ("node", 4, 100e9),
        ("cluster", 16, 50e9),
    ]
    assert target.kinds[0].not_op_types == ("LSTM", "GRU")
    step = cli(
        "optimize",
        "gpt:hidden=1024,layers=4,heads=16,sequence=512",
        "--objective",
        "step",
        "--target",
        "lab.toml",
        "--batch",
        64,
        "--json",
    )
    assert step.code == 0, step.err
    cli("targets", "new", "-o", "b.toml", "--set", "op_types=Conv,").is_refused(
        "op_types must be names between"
    )
    cli("targets", "new", "-o", "b.toml", "--set", "chips=4", "--set", "devices=2").is_refused(
        "levels[1].size"
    )
