"""What relays are worth: the best plan under the triangle rule against the best with relays and clones.

Run: PYTHONPATH=. python tests/benchmarks/bench_relays.py [--budget SECONDS] [--link-scale SCALE]
     [--unbounded] [--body] [NAME ...]

Each graph is optimised twice by the portfolio without a policy and without replication, for the
same time. ``--unbounded`` takes away what hides the links: the host's traffic and the chips'
memory cost nothing, as where the prototypes found what relays can be worth. ``--body`` leaves
out the op with the most work and what follows it: the vocabulary matrix of a language model,
which no placement can divide. *at least*: the proven bound of all plans without relays over the
interval with them. Asserts that a plan with relays is never the slower one where the strict
plan, or the plan with relays, is proven. Prints a Markdown table and the mean.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import networkx as nx
import numpy as np
from measuring import header, row

import go_opt
from go_opt.bench.link_scale import with_links_scaled
from go_opt.env import Target, parse_target
from go_opt.env.target.toml import target_to_toml
from go_opt.model.graph import Graph

NAMES = ("gpt2", "densenet121")
NO_LIMIT = 10**15  # bytes, and bytes per second
COLUMNS = ("graph", "ops", "strict", "gap", "relays", "gap", "gain", "at least")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", default="mcm-6x6")
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--link-scale", type=float, default=1.0)
    parser.add_argument("--decide", choices=("all", "placement"), default="all")
    parser.add_argument("--unbounded", action="store_true")
    parser.add_argument("--body", action="store_true")
    options = parser.parse_args()
    target = with_links_scaled(go_opt.target(options.target), options.link_scale)
    if options.unbounded:
        target = unbounded(target)
    header(COLUMNS)
    logs = []
    for name in options.names or NAMES:
        graph = go_opt.load(f"zoo:{name}")
        graph = body(graph) if options.body else graph
        gain = compare(name, graph, target, options.budget, options.decide)
        logs.append(math.log(gain))
    print(f"\ngeometric mean {math.exp(np.mean(logs)):.2f}")


def compare(name: str, graph: Graph, target: Target, budget_s: float, decide: str) -> float:
    """Print a graph's row; the gain."""
    strict, relayed = (
        go_opt.optimize(
            graph, target, budget_s=budget_s, decide=decide, relays=relays, replication=False, policy=None
        )
        for relays in (False, True)
    )
    gain = strict.metrics.interval_s / relayed.metrics.interval_s
    if min(strict.gap, relayed.gap) <= 1e-6:
        assert gain >= 1 - 1e-6
    cells = (
        name,
        f"{graph.num_ops:,}",
        f"{strict.metrics.interval_s * 1e6:,.1f}",
        f"{strict.gap:.1%}",
        f"{relayed.metrics.interval_s * 1e6:,.1f}",
        f"{relayed.gap:.1%}",
        f"{gain:.2f}",
        f"{strict.lower_bound_s / relayed.metrics.interval_s:.2f}",
    )
    row(cells)
    return gain


def unbounded(target: Target) -> Target:
    """``target`` whose host and memories are as good as free."""
    kinds = tuple(
        replace(kind, sram_bytes=NO_LIMIT, sram_bytes_per_s=float(NO_LIMIT)) for kind in target.kinds
    )
    free = replace(
        target,
        name=f"{target.name}, unbounded",
        kinds=kinds,
        host_in_bytes_per_s=float(NO_LIMIT),
        host_out_bytes_per_s=float(NO_LIMIT),
    )
    return parse_target(target_to_toml(free), free.name)


def body(graph: Graph) -> Graph:
    """``graph`` without the op of most work and what depends on it."""
    largest = graph.op_names[int(np.argmax(graph.op_flops))]
    ops = go_opt.to_networkx(graph)
    ops.remove_nodes_from({largest, *nx.descendants(ops, largest)})
    return go_opt.from_networkx(ops)


if __name__ == "__main__":
    main()
