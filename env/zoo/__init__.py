"""The zoo: graphs of real models that ship with go-opt, loaded by name.

Only the structure ships, no weights. :mod:`go_opt.env.zoo.build` makes the files.
"""

from go_opt.env.zoo.catalogue import SPLITS, Split, ZooEntry, load_zoo, zoo_entries, zoo_entry

__all__ = ["SPLITS", "Split", "ZooEntry", "load_zoo", "zoo_entries", "zoo_entry"]
