"""Simulated annealing on the placement."""
