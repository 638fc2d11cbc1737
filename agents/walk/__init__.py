"""A policy of twelve weights for the walk of the solver: drawing, learning, training, its file."""
