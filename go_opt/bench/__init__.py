"""Compares the portfolio with its rivals on many graphs: matches, their processes, standings."""
