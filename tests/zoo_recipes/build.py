"""Builds the graphs that the zoo ships: ``python -m tests.zoo_recipes.build [NAME ...]``.

Needs the extra ``zoo`` (``pip install go-opt[zoo]``). Models get random weights, nothing
is downloaded, and the same library versions give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import sys
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from go_opt.common.files import write_atomically
from go_opt.env.peak_memory import op_that_runs_nowhere
from go_opt.env.target import load_target
from go_opt.env.zoo import INDEX_NAME, ZooEntry, graph_file_name, zoo_families
from go_opt.errors import ModelError
from go_opt.model.codecs.wire import graph_to_proto
from go_opt.model.dtypes import size_bytes
from go_opt.model.graph import WEIGHT, Graph
from tests.zoo_recipes.recipe import Recipe
from tests.zoo_recipes.recipes import RECIPES

_SHIPPED: Final = Path(__file__).parents[2] / "env" / "zoo" / "data"


def made(recipe: Recipe) -> Graph:
    """The recipe's graph, under the recipe's name."""
    return replace(recipe.build(), name=recipe.name)


def describe(recipe: Recipe, graph: Graph) -> ZooEntry:
    """The entry of the index for a recipe's graph."""
    sizes = size_bytes(graph.tensor_elements, graph.tensor_dtype)
    return ZooEntry(
        name=recipe.name,
        family=recipe.family,
        split=zoo_families()[recipe.family].split,
        target="gpu-8" if op_that_runs_nowhere(graph, load_target("mcm-6x6")) else "mcm-6x6",
        ops=graph.num_ops,
        edges=graph.num_edges,
        flops=math.fsum(graph.op_flops),
        weight_bytes=int(sizes[graph.tensor_kind == WEIGHT].sum()),
        state_bytes=sum(int(max(sizes[state.read], sizes[state.next])) for state in graph.states),
        source=f"{recipe.library} {version(recipe.library).partition('+')[0]} {recipe.model}",
        fingerprint=graph.fingerprint,
    )


def build(name: str, folder: Path) -> ZooEntry:
    """Make the graph of the recipe ``name`` and write its file into ``folder``."""
    recipe = {recipe.name: recipe for recipe in RECIPES}[name]
    graph = made(recipe)
    data = graph_to_proto(graph).SerializeToString(deterministic=True)
    packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    (folder / graph_file_name(name)).write_bytes(packed)
    return describe(recipe, graph)


def index_text(entries: Iterable[ZooEntry]) -> str:
    """The index: a table for each entry, ordered by name."""
    tables = [_toml_table(entry) for entry in sorted(entries, key=lambda entry: entry.name)]
    return "# Written by `python -m tests.zoo_recipes.build`.\n\n" + "\n".join(tables)


def _toml_table(entry: ZooEntry) -> str:
    fields = asdict(entry)
    # A JSON string or number is also one of TOML.
    lines = [f"{field} = {json.dumps(value)}" for field, value in fields.items() if field != "name"]
    return "\n".join([f"[{entry.name}]", *lines, ""])


def _add_to_index(entry: ZooEntry, folder: Path) -> None:
    path = folder / INDEX_NAME
    # Read again each time: another build may have added to it meanwhile.
    index = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    kept = [ZooEntry(name=name, **fields) for name, fields in index.items() if name != entry.name]
    write_atomically(path, index_text([*kept, entry]))


def main(arguments: Sequence[str]) -> None:
    """Build the named graphs, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo_recipes.build", description="Build the zoo.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="graphs to build; all where none is named")
    parser.add_argument("--folder", type=Path, default=_SHIPPED, help="where to write; default: what ships")
    parser.add_argument("--jobs", type=int, default=1, help="processes that build side by side")
    options = parser.parse_args(arguments)
    names = options.names or [recipe.name for recipe in RECIPES]
    _check_known(names)
    options.folder.mkdir(parents=True, exist_ok=True)
    # In processes of their own, so that no graph depends on what was built before it.
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        pending = [pool.submit(build, name, options.folder) for name in names]
        for done in as_completed(pending):
            entry = done.result()
            _add_to_index(entry, options.folder)
            print(
                f"{entry.name}: {entry.ops} ops, {entry.edges} edges, "
                f"{entry.flops / 1e9:.2f} GFLOP, {entry.target}"
            )


def _check_known(names: Sequence[str]) -> None:
    known = {recipe.name for recipe in RECIPES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ModelError(f"no recipe is called {unknown[0]!r}; there are {', '.join(sorted(known))}.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ModelError as error:
        sys.exit(f"error: {error}")
