"""``go-opt costs --kernels`` and ``calibrate --kernels``: from tables of kernels to costs and targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from go_opt.env import load_target, parse_target
from go_opt.env.gpu.figures import Collective, scaled_figures
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InvalidInputError
from go_opt.kernels.fitting import fit_kernels
from go_opt.kernels.tables import (
    ATTENTION,
    MESSAGES,
    PRODUCTS,
    KernelTable,
    Predictor,
    predictor,
    read_kernel_table,
)
from tests.benchmarks.measure_gpu_kernels import KINDS, Drawn, also, append
from tests.cli.conftest import Cli, graph_file

DATA = Path(__file__).parents[1] / "benchmarks" / "data" / "gpu_kernels"
# The measured tables, the target whose figures were fitted to them, and the largest mean relative error.
SHIPPED = {
    "h100_gemm_bf16": ("h100-sxm-1", 0.07),
    "a100_gemm_bf16": ("gpu-2", 0.08),
    "h100_context_attention_bf16": ("h100-sxm-2", 0.09),
    "h100_generation_attention_bf16": ("h100-sxm-4", 0.08),
    "h100_nccl_half": ("h100-sxm-8", 0.07),
    "a100_nccl_half": ("gpu-8-graph", 0.07),
}


def drawn(columns: tuple[str, ...], rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)

    def around(least: float, most: float) -> np.ndarray:
        return np.exp(rng.uniform(np.log(least), np.log(most), rows)).astype(int)

    if columns == PRODUCTS:
        return np.stack([around(1, 5000), around(32, 9000), around(32, 9000)], axis=1).astype(float)
    if columns == ATTENTION:
        groups = around(1, 17)
        length = np.where(rng.random(rows) < 0.5, 1, around(2, 5000))
        step = np.where(length == 1, around(1, 20_000), 0)
        return np.stack([around(1, 65), length, step, 4 * groups, groups, [128] * rows], axis=1).astype(float)
    return np.stack([rng.integers(0, 4, rows), 2 ** rng.integers(1, 4, rows), around(256, 1e8)], axis=1)


def measured(like: Predictor, columns: tuple[str, ...], rows: int, seed: int = 0) -> KernelTable:
    """Rows that take what ``like`` predicts, 3 % off."""
    table = KernelTable("drawn", columns, drawn(columns, rows, seed), None)
    noise = np.exp(np.random.default_rng(seed).normal(0.0, 0.03, rows))
    return replace(table, measured_s=like.seconds(table) * noise)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_targets_predict_the_rows_they_were_fitted_to(cli: Cli, name: str) -> None:
    target, most = SHIPPED[name]
    rows = cli("costs", "--kernels", DATA / f"{name}.csv", "--target", target, "--json").json
    table = read_kernel_table(DATA / f"{name}.csv")
    assert [row["row"] for row in rows] == list(range(1, len(table.sizes) + 1))
    off = np.array([row["predicted_s"] for row in rows]) / table.measured_s - 1.0
    assert np.abs(off).mean() < most


def test_times_are_not_needed_for_costs(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("m,n,k\n1,1024,1024\n\n2,1024,1024\n")
    (tmp_path / "n.csv").write_text("op_name,num_gpus,message_size\nalltoall,2,512\n")
    assert len(cli("costs", "--kernels", "t.csv", "--target", "h100-sxm-1", "--json").json) == 2
    assert cli("costs", "--kernels", "t.csv").out.startswith("row 1  4.")
    assert cli("costs", "--kernels", "n.csv", "--target", "gpu-2", "--json").json[0]["predicted_s"] > 1e-5
    cli("calibrate", "--kernels", "t.csv", "-o", "a.toml").is_refused("the column milliseconds is missing")


@pytest.mark.parametrize(
    "text",
    [
        "k,m,milliseconds,n\n2048,64,0.0125,1024\n# again\n2048,64,0.25,1024\n",
        "M;N;K;us;gpu\r\n64;1024;2048;12.5;L40S\r\n64;1024;2048;250;L40S\r\n",
        '"m"\t"n"\t"k"\t"s"\n64.0\t1024.\t2048\t1.25e-5\n\n 64\t1024\t2048\t2.5e-4\n',
    ],
)
def test_tables_may_be_written_in_other_ways(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_bytes(("\ufeff" + text).encode())
    table = read_kernel_table(tmp_path / "t.csv", is_measured=True)
    assert table.columns == PRODUCTS
    assert table.sizes.tolist() == [[64, 1024, 2048]] * 2
    assert table.measured_s == pytest.approx([12.5e-6, 250e-6])
    assert table.ignored == (("gpu",) if "gpu" in text else ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", ("unknown header 'a,b'", "m,n,k,milliseconds")),
        ("m,n,k,k\n1,2,3,4\n", ("the column 'k' is there twice",)),
        ("m,n,k,us,ms\n1,2,3,4,5\n", ("the columns us and ms are both times",)),
        ("m,n,k\n1.5,2,3\n", ("m must be a whole number from 1 to 1099511627776, not '1.5'",)),
        ("m,n,k,milliseconds\n", ("has no row",)),
        ("m,n,k,milliseconds\n1,2,3,0.1\n1,2,3\n", ("line 3", "3 fields, must be 4")),
        ("m,n,k,milliseconds\n1,0,3,0.1\n", ("line 2", "n must be a whole number from 1")),
        ("m,n,k,milliseconds\n1,2,3,-1\n", ("line 2", "milliseconds must be a number above zero")),
        ("op_name,num_gpus,message_size\nall_reduc,2,5\n", ("line 2", "did you mean 'all_reduce'")),
        ("op_name,num_gpus,message_size\nall_reduce,1,5\n", ("num_gpus must be a whole number from 2",)),
        (f"{','.join(ATTENTION)}\n1,1,1,3,2,64\n", ("num_key_value_heads must divide num_heads",)),
    ],
)
def test_bad_tables_are_refused_in_a_sentence(
    cli: Cli, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "t.csv").write_text(text)
    cli("costs", "--kernels", "t.csv", "--target", "h100-sxm-8").is_refused(*words)


def test_other_mistakes_are_refused_in_a_sentence(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("m,n,k,milliseconds\n4096,4096,4096,0.0002\n64,4096,4096,0.00001\n")
    fit = ("calibrate", "-o", "a.toml", "--kernels", "s.csv")
    cli(*fit, "--target", "h100-sxm-1").is_refused("0.00085 of those expected", "milliseconds?")
    cli(*fit, "zoo:resnet50").is_refused("either MODEL or --kernels")
    cli("calibrate", "-o", "a.toml").is_refused("either MODEL or --kernels")
    cli(*fit, "--run").is_refused("measures no plan")
    cli("calibrate", "-o", "a.toml", "zoo:resnet50", "--processors", 5).is_refused("give --kernels")
    cli("costs", "--kernels", "s.csv", "--target", "mcm-2x2").is_refused("no figures of kernels")
    assert not (tmp_path / "a.toml").exists()


def test_a_target_is_fitted_to_tables(cli: Cli, tmp_path: Path) -> None:
    """From 60 rows of products and 40 collectives of an A100 to a target that plans take."""
    for name, rows in (("a100_gemm_bf16", 60), ("a100_nccl_half", 40)):
        head, *lines = (DATA / f"{name}.csv").read_text().splitlines()
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines[:: len(lines) // rows]]))
    tables = ("--kernels", "a100_gemm_bf16.csv", "--kernels", "a100_nccl_half.csv")
    run = cli("calibrate", *tables, "--target", "h100-pcie-2", "--processors", 108, "-o", "mine.toml")
    assert run.code == 0, run.err
    assert "of products" in run.out
    text = (tmp_path / "mine.toml").read_text()
    assert "matrix_share" in text
    assert text.count("# fitted") == 7 + 4 * 4
    assert "# as in h100-pcie-2" in text
    assert "tiles_at_once = 108 # given" in text
    found = load_target("mine.toml")
    assert found.fitted_to.startswith("products: ")
    assert (
        cli("calibrate", *tables, "--target", "h100-pcie-2", "--processors", 108, "-o", "again.toml").code
        == 0
    )
    assert (tmp_path / "again.toml").read_text() == text  # nothing is drawn
    rest = read_kernel_table(DATA / "a100_gemm_bf16.csv")
    assert np.abs(predictor(found).seconds(rest) / rest.measured_s - 1.0).mean() < 0.11
    assert parse_target(target_to_toml(found), "x").kinds == found.kinds


def test_a_fit_finds_the_figures_of_a_made_up_gpu() -> None:
    given = predictor(load_target("h100-sxm-1"))
    figures = replace(
        given.figures, start_s=4e-6, matrix_share=0.6, memory_share=0.7, step_s=2e-7, decode_block_s=4e-6
    )
    truth = replace(given, figures=figures, collectives=(Collective("all_reduce", 9e-6, 3e11, 2e-6, 4e11),))
    tables = [measured(truth, PRODUCTS, 200), measured(truth, ATTENTION, 100, 1)]
    fit = fit_kernels(tables, given, processors=132)
    within = {"start_s": 0.15, "matrix_share": 0.06, "memory_share": 0.06, "decode_block_s": 0.15}
    for name, rel in within.items():
        assert getattr(fit.predictor.figures, name) == pytest.approx(getattr(figures, name), rel=rel)
    assert fit.predictor.figures.cache_bytes == 0.0
    assert all(error < 0.06 for _, error in fit.errors.values())


@pytest.mark.parametrize("base", ["h100-sxm-1", "gpu-2"])
def test_a_gpu_that_is_no_shipped_one(base: str) -> None:
    """28 processors, a twentieth of an H100's matrix rate: what is held out is as far off as its noise."""
    given = predictor(load_target(base))
    small = scaled_figures(51e12, 360e9, 28)
    small = replace(
        small, start_s=4e-6, step_s=2.5e-7, attention_matrix_ratio=1.1, attention_memory_ratio=1.2
    )
    truth = Predictor(small, 51e12, 360e9, 2.0)
    fit = fit_kernels([measured(truth, PRODUCTS, 50), measured(truth, ATTENTION, 100, 1)], given)
    assert fit.predictor.figures.tiles_at_once == 28
    assert {"tiles_at_once", "attention_matrix_ratio"} <= fit.fitted
    for columns in (PRODUCTS, ATTENTION):
        rest = measured(truth, columns, 200, seed=7)
        assert np.abs(fit.predictor.seconds(rest) / rest.measured_s - 1.0).mean() < 0.06


def test_processors_are_as_given() -> None:
    given = predictor(load_target("h100-sxm-1"))
    truth = replace(given, figures=replace(given.figures, tiles_at_once=40))
    tables = [measured(truth, ATTENTION, 60, 1)]
    assert fit_kernels(tables, given).predictor.figures.tiles_at_once == 40
    told = fit_kernels(tables, given, processors=44)
    assert told.predictor.figures.tiles_at_once == 44
    assert "tiles_at_once" not in told.fitted


def test_a_cache_is_found_where_there_is_one() -> None:
    given = predictor(load_target("l4-1"))
    truth = replace(given, figures=replace(given.figures, cache_bytes=20e6, cache_bytes_per_s=2e12))
    few = fit_kernels([measured(truth, PRODUCTS, 60)], given)
    assert few.predictor.figures.cache_bytes == pytest.approx(20e6, rel=0.25)
    rest = measured(truth, PRODUCTS, 200, seed=7)
    assert np.abs(few.predictor.seconds(rest) / rest.measured_s - 1.0).mean() < 0.06


def test_groups_of_chips_get_figures_of_their_own_where_links_are_no_switch() -> None:
    """Four chips cross a slow bridge, two do not: no rate over the number of chips says that."""
    given = predictor(load_target("gpu-8"))
    rates = {2: 20e9, 4: 4e9, 8: 1e9}
    rows = tuple(Collective("all_reduce", 1e-5, rate, group=group) for group, rate in rates.items())
    sizes = drawn(MESSAGES, 60, 3)
    sizes[:, 0] = 0.0
    truth = replace(given, collectives=rows)
    table = KernelTable("drawn", MESSAGES, sizes, None)
    table = replace(table, measured_s=truth.seconds(table))
    fit = fit_kernels([table], given).predictor
    assert np.abs(fit.seconds(table) / table.measured_s - 1.0).max() < 0.1
    assert {one.group for one in fit.collectives if one.op == "all_reduce"} == {0, 2, 4, 8}


def test_a_fit_to_plans_has_tiles_in_place_of_figures_of_kernels(cli: Cli, tmp_path: Path) -> None:
    graph_file(tmp_path / "chain.json", num_ops=4)
    fit = ("calibrate", "chain.json", "--target", "gpu-2", "--simulator", "gpu-2", "--samples", 2)
    assert cli(*fit, "-o", "found.toml").code == 0
    assert load_target("found.toml").kinds[0].kernels is None


@pytest.mark.parametrize("name", KINDS)
def test_tables_that_are_measured_are_read_or_refused(tmp_path: Path, name: str) -> None:
    """Those of ``measure_gpu_kernels.py``: no other kernels are taken for those that the forms are of."""
    kind = KINDS[name]
    sizes = kind.draw(Drawn(0, 1.0))
    path = tmp_path / f"{name}.csv"
    append(path, kind.columns, sizes | also(sizes), float("nan"))
    append(path, kind.columns, sizes | also(sizes), 2e-3)
    is_known = name.startswith(
        ("products", "batched", "convolutions", "attention_causal", "attention_decode")
    )
    if not is_known:
        with pytest.raises(InvalidInputError, match="unknown header"):
            read_kernel_table(path)
        return
    table = read_kernel_table(path, is_measured=True)
    assert table.measured_s == pytest.approx([2e-3])
    assert table.sizes.shape == (1, len(table.columns))
