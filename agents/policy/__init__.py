"""A policy: its network with its weights, and its file."""
