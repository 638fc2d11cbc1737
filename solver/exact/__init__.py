"""Exact dynamic programs over down-sets, for hosts with a star of chips."""
