"""Helix's clusters as ours: its files of nodes and links, its pruning, its tokens per second."""

from __future__ import annotations

import json
from configparser import ConfigParser
from pathlib import Path
from typing import Final

from go_opt.parallel import Transformer
from go_opt.serving.mixed.cluster import Case, parse_cluster

TOKENS: Final = Path(__file__).parent / "data" / "helix_tokens_per_s.json"
TOKEN_BYTES: Final = 2
_NETWORK_BYTES_PER_S: Final = 10e9  # of all its machine profiles
_RATES: Final = {"gbps": 1e9, "mbps": 1e6, "kbps": 1e3}  # in bytes, as its code has them
MODELS: Final = {
    "30B": Transformer(hidden=6656, layers=60, heads=52, sequence=2048),
    "70B": Transformer(hidden=8192, layers=80, heads=64, sequence=2048),
}
_Links = dict[tuple[str, str], float]


def read(path: Path) -> tuple[list[str], _Links]:
    """The types of nodes, and the bytes per second of links by the names of their ends."""
    config = ConfigParser()
    config.read(path)
    types = [
        config[f"ComputeNode-{i}"]["type"] for i in range(config.getint("NodeNames", "total_compute_nodes"))
    ]
    links = {}
    for name in config.sections():
        if name.startswith("Link-"):
            _, first, second = name.split("-")
            number, unit = config[name]["bandwidth"].split(" * ")
            links[first, second] = float(number) * _RATES[unit]
    return types, links


def pruned(links: _Links, keep: int = 12) -> _Links:
    """The fastest links of each node, of the source and of the sink; by name where they are equal."""
    by_end: dict[str, list[tuple[float, object, tuple[str, str]]]] = {}
    for (first, second), rate in links.items():
        is_end = "source" in (first, second) or "sink" in (first, second)
        order: object = int(second if first == "source" else first) if is_end else f"Link-{first}-{second}"
        for end in (first, second):
            if not is_end or end in ("source", "sink"):
                by_end.setdefault(end, []).append((rate, order, (first, second)))
    kept = {one[2] for found in by_end.values() for one in sorted(found, reverse=True)[:keep]}
    return {ends: rate for ends, rate in links.items() if ends in kept}


def case_of(path: Path, tokens: str, model: str, *, is_pruned: bool) -> Case:
    types, links = read(path)
    text = cluster_text(types, pruned(links) if is_pruned else links, tokens)
    return Case(MODELS[model], parse_cluster(text, path.name))


def cluster_text(types: list[str], links: _Links, tokens: str) -> str:
    """The TOML of a cluster, its nodes in the order of Helix's."""
    rates = json.loads(TOKENS.read_text())["tokens_per_s"][tokens]
    text = f'name = "{tokens}"\ntoken_bytes = {TOKEN_BYTES}\n'
    for kind in dict.fromkeys(types):
        text += f'\n[[kinds]]\nname = "{kind}"\ntokens_per_s = {rates[kind]}\n'
        text += f"network_bytes_per_s = {_NETWORK_BYTES_PER_S}\n"
    for i, kind in enumerate(types):
        text += f'\n[[nodes]]\nkind = "{kind}"\ngroup = "{i}"\n'
    for ends, rate in links.items():
        text += f"\n[[links]]\nbetween = {list(ends)}\nrate_bytes_per_s = {rate}\n"
    return text
