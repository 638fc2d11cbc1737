"""The user's constraints as a problem of the propagation engine."""
