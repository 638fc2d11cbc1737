"""A policy: its network with its weights, its file, its process."""
