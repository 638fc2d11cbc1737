"""Closed forms of GPU kernels on rows held out: errors, beside a roofline and boosted trees; monotone.

Run: python tests/benchmarks/bench_gpu_kernels.py      (needs scipy; lightgbm if it is installed)

Every third row of the measured tables (data/gpu_kernels) is held out, at random by seed 0. Figures are fitted
to the others, from those of an unmeasured GPU with the rates of the data sheet. Prints the mean relative
error; then those of fits to 20, 50 and 200 rows of a GPU that the figures do not come from, in the mean and
at worst of four draws, and the worst row; asserts that no prediction falls as a size grows, on 10,000 shapes
of each form.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Target, load_target
from go_opt.env.gpu.figures import COLLECTIVES, scaled_figures
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

DATA: Final = Path(__file__).parent / "data" / "gpu_kernels"
TABLES: Final = {
    "H100": (
        "h100-sxm-8",
        ("h100_gemm_bf16", "h100_context_attention_bf16", "h100_generation_attention_bf16", "h100_nccl_half"),
    ),
    "A100": ("gpu-8", ("a100_gemm_bf16", "a100_nccl_half")),
}
LAUNCH_S: Final = 3e-6
SKINNY: Final = 64  # rows
FEW: Final = (20, 50, 200)
DRAWS: Final = 4
OTHERS: Final = (  # rows, their file, and the target of another GPU
    ("A100, products", "a100_gemm_bf16", "h100-sxm-1"),
    ("H100, products", "h100_gemm_bf16", "gpu-8"),
    ("H100, prefill", "h100_context_attention_bf16", "gpu-8"),
    ("H100, decode", "h100_generation_attention_bf16", "gpu-8"),
    ("A100, collectives", "a100_nccl_half", "h100-sxm-8"),
    ("H100, collectives", "h100_nccl_half", "gpu-8"),
)
GRID: Final = 10_000


def main() -> None:
    columns = ("rows held out", "form", "roofline", "roofline + 3 us", "lightgbm")
    print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name, (target_name, files) in TABLES.items():
        target = load_target(target_name)
        given = unmeasured(target)
        for file in files:
            rest, held = parted(read_kernel_table(DATA / f"{file}.csv"))
            form = fit_kernels([rest], given).predictor.seconds(held)
            floor = roofline(held, given, target)
            trees = boosted(rest, held)
            for what, rows in subjects(held):
                answers = [form, floor, floor + LAUNCH_S, trees]
                cells = [f"{error(one, held, rows):.1%}" if one is not None else "" for one in answers]
                print(f"| {name}, {what} | {rows.sum()} | {' | '.join(cells)} |", flush=True)
    few_rows()
    check_growth()


def unmeasured(target: Target) -> Predictor:
    """Figures scaled by the data sheet, and no collectives."""
    like = predictor(target)
    figures = scaled_figures(like.flops_per_s, like.bytes_per_s, like.figures.tiles_at_once)
    return Predictor(figures, like.flops_per_s, like.bytes_per_s, like.element_bytes)


def parted(table: KernelTable) -> tuple[KernelTable, KernelTable]:
    """The rows to fit to, and those held out."""
    order = np.random.default_rng(0).permutation(len(table.sizes))
    return table.rows(order[len(order) // 3 :]), table.rows(order[: len(order) // 3])


def subjects(table: KernelTable) -> list[tuple[str, np.ndarray]]:
    if table.kind == "collectives":
        return [("collectives", np.ones(len(table.sizes), np.bool_))]
    if table.kind == "products":
        return [("products", np.ones(len(table.sizes), np.bool_)), ("skinny", table.sizes[:, 0] <= SKINNY)]
    parts = [("prefill", ~table.is_decoding), ("decode", table.is_decoding)]
    return [max(parts, key=lambda part: part[1].sum())]


def error(seconds: FloatArray, table: KernelTable, rows: np.ndarray) -> float:
    assert table.measured_s is not None
    return float(np.abs(seconds / table.measured_s - 1.0)[rows].mean())


def roofline(table: KernelTable, given: Predictor, target: Target) -> FloatArray:
    """FLOPs and bytes at the rates of the data sheet; of collectives what crosses a chip's link."""
    size = given.element_bytes
    if table.kind == "products":
        m, n, k = table.sizes.T
        flops, moved = 2.0 * m * n * k, size * (m * k + k * n + m * n)
    elif table.kind == "attention":
        batch, rows, cached, heads, groups, depth = table.sizes.T
        flops = 4.0 * batch * heads * depth * rows * (cached + rows / 2)
        moved = size * batch * depth * (2 * rows * heads + 2 * (rows + cached) * groups)
    else:
        op, group, elements = table.sizes.T
        share = (group - 1) / group * np.where(op == COLLECTIVES.index("all_reduce"), 2.0, 1.0)
        return np.asarray(share * size * elements / float(target.topology.rate_bytes_per_s.max()), np.float64)
    return np.maximum(flops / given.flops_per_s, moved / given.bytes_per_s)


def boosted(rest: KernelTable, held: KernelTable) -> FloatArray | None:
    """Boosted trees on the logarithms of sizes; None without lightgbm."""
    if find_spec("lightgbm") is None:
        return None
    import lightgbm

    options = {"learning_rate": 0.05, "num_leaves": 31, "seed": 0, "verbose": -1, "num_threads": 1}
    trees = lightgbm.train(options, lightgbm.Dataset(np.log1p(rest.sizes), np.log(rest.measured_s)), 800)
    return np.asarray(np.exp(trees.predict(np.log1p(held.sizes))), np.float64)


def few_rows() -> None:
    """Fits to few rows of a GPU: from a target with its data sheet, and from one of another GPU."""
    sheet = unmeasured(load_target("gpu-8"))
    print("\n| rows of | figures from | rows | mean | worst draw | median worst row |")
    print("|---|---|---:|---:|---:|---:|")
    for what, file, source, given in (
        ("A100, products", "a100_gemm_bf16", "its data sheet", sheet),
        *((what, file, of, predictor(load_target(of))) for what, file, of in OTHERS),
    ):
        rest, held = parted(read_kernel_table(DATA / f"{file}.csv"))
        every = subjects(held)[0][1]
        if held.kind != "collectives" or given.collectives:
            print(f"| {what} | {source} | 0 | {error(given.seconds(held), held, every):.1%} | | |")
        for number in FEW:
            if number > len(rest.sizes):
                continue
            draws = [
                np.random.default_rng(seed).choice(len(rest.sizes), number, False) for seed in range(DRAWS)
            ]
            found = [fit_kernels([rest.rows(one)], given).predictor.seconds(held) for one in draws]
            errors = [error(one, held, every) for one in found]
            worst = np.median([np.abs(one / held.measured_s - 1.0)[every].max() for one in found])
            cells = f"{np.mean(errors):.1%} | {max(errors):.1%} | {worst:.0%}"
            print(f"| {what} | {source} | {number} | {cells} |", flush=True)


def check_growth() -> None:
    """Asserts that no size makes a kernel faster."""
    rng, tables = np.random.default_rng(0), 0
    for name in ("h100-sxm-8", "gpu-8"):
        for columns in (PRODUCTS, ATTENTION, MESSAGES):
            sizes = np.floor(np.exp(rng.uniform(0.0, np.log(70_000), (GRID, len(columns)))))
            if columns == MESSAGES:
                sizes[:, 0], sizes[:, 1] = rng.integers(0, 4, GRID), rng.integers(2, 65, GRID)
            elif columns == ATTENTION:
                sizes[:, [0, 3, 4]] = np.minimum(sizes[:, [0, 3, 4]], 64)
                sizes[:, 3] *= sizes[:, 4]
            like = predictor(load_target(name))
            before = like.seconds(KernelTable("", columns, sizes, None))
            for place in range(columns == MESSAGES, len(columns)):
                grown = sizes.copy()
                grown[:, place] += sizes[:, 4] if (columns, place) == (ATTENTION, 3) else 1
                if (columns, place) == (ATTENTION, 4):
                    grown[:, 3] += sizes[:, 3] / sizes[:, 4]  # as many heads of queries for each of keys
                after = like.seconds(KernelTable("", columns, grown, None))
                assert (after >= before * (1 - 1e-12)).all(), (name, columns[place])
                tables += 1
    print(f"\nno prediction falls: {tables} times {GRID} shapes, one size each one larger")


if __name__ == "__main__":
    main()
