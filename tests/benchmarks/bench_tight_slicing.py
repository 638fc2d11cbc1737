"""Time of one slicing of zoo graphs where memory is tight, against slicing with memory for all.

Run: PYTHONPATH=. python tests/benchmarks/bench_tight_slicing.py [--graphs NAME ...]

One kernel per op, the default order and a random one; memory as it is, and a half and a quarter of
it. Asserts that tight slicings are no faster than those with memory for
all. Prints CPU milliseconds and the ratio of the two. Targets: 300 ms at 2,000 ops, 2 s at 10,000
and more.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
from measuring import best_s

from go_opt.env import cost_tables, list_schedule, load_target, load_zoo
from go_opt.solver import slice_order
from tests.solver.brute_force import plenty_of_memory

GRAPHS = (
    "inception_v3", "vit_l16_384", "transformer_xl_8", "adm_unet_64", "granite_1b_a400m",
    "gnmt_2", "gnmt_4", "gnmt_8",
)  # fmt: skip
SLICERS = {
    "adjacent": partial(slice_order, passing="adjacent"),
    "relayed": partial(slice_order, passing="relayed"),
    "free": partial(slice_order, passing="free"),
}
SHARES = (1.0, 0.5, 0.25)  # of the memory of a chip
REPEATS = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    target = load_target("mcm-6x6")
    print(
        f"{'graph':>20} {'ops':>6} {'order':>8} {'passing':>9} {'memory':>7} {'ms':>8} {'ratio':>7} {'us':>9}"
    )
    for name in parser.parse_args().graphs:
        graph = load_zoo(name)
        tables = cost_tables(graph, target)
        one_each = np.arange(graph.num_ops, dtype=np.int32)
        keys = np.random.default_rng(0).random(graph.num_ops)
        for kind, order in (("default", one_each), ("random", list_schedule(graph, one_each, keys))):
            for passing, cut in SLICERS.items():
                run = partial(cut, plenty_of_memory(tables), order, one_each)
                free_s, free = best_s(run, REPEATS, time.process_time)
                for share in SHARES:
                    tight = tables._replace(sram_bytes=(tables.sram_bytes * share).astype(np.int64))
                    run = partial(cut, tight, order, one_each)
                    seconds, found = best_s(run, REPEATS, time.process_time)
                    assert found is None or found.interval_s >= free.interval_s * (1.0 - 1e-9)
                    reached = "none" if found is None else f"{found.interval_s * 1e6:.1f}"
                    print(
                        f"{name:>20} {graph.num_ops:6d} {kind:>8} {passing:>9} {share:7.2f} "
                        f"{seconds * 1e3:8.1f} {seconds / free_s:7.1f} {reached:>9}"
                    )


if __name__ == "__main__":
    main()
