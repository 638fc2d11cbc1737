"""Graphs and plans."""
