"""The states of the refinement and the search over chains of them."""
