"""The zoo: graphs of real models that ship with go-opt, loaded by name.

Only the structure ships, no weights. :mod:`tests.zoo_recipes.build` makes the files.
"""

from go_opt.env.zoo.catalogue import (
    SPLITS,
    Family,
    Split,
    ZooEntry,
    load_zoo,
    shipped_bytes,
    zoo_entries,
    zoo_entry,
    zoo_families,
)

__all__ = [
    "SPLITS",
    "Family",
    "Split",
    "ZooEntry",
    "load_zoo",
    "shipped_bytes",
    "zoo_entries",
    "zoo_entry",
    "zoo_families",
]
