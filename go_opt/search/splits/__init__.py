"""Operator splits as a decision: which ops, into how many parts, and the search of whole ops against them."""

from go_opt.search.splits.race import search_with_splits
from go_opt.search.splits.ways import divisible_ops, outputs_in_parts, ways_to_split

__all__ = ["divisible_ops", "outputs_in_parts", "search_with_splits", "ways_to_split"]
