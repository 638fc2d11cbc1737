"""Slicing where weights that do not fit are fetched for every inference."""
