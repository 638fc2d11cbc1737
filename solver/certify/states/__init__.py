"""The states of the refinement and the search for chains of states."""
